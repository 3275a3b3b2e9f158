"""Settings of the `data` section of a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

from workloads.common.exit_codes import ConfigError
from workloads.recipes.reader import Bound, Positive, Settings, over, require

T = TypeVar("T")
Kind = Literal["bfcl", "jsonl", "json", "csv", "parquet"]
Format = Literal["messages", "system_user_assistant", "glaive"]
Overlong = Literal["drop", "cut", "refuse"]
BFCL_CATEGORIES = (
    "simple_python", "simple_java", "simple_javascript", "multiple", "parallel",
    "parallel_multiple", "live_simple", "live_multiple", "live_parallel", "live_parallel_multiple"
)  # fmt: skip
BFCL_NO_CALL = ("irrelevance", "live_irrelevance")
"""Rows whose functions do not fit: right is no call."""
BFCL_SIMPLE = BFCL_CATEGORIES[:1]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig(Settings):
    """Where raw rows come from."""

    kind: Kind
    path: str
    """bfcl: folder of bfcl-eval's data; else a file or a folder of files. Place `data` first."""
    format: Format = "messages"
    """Columns of the rows; has no effect on bfcl."""
    keep: tuple[str, ...] = ()
    """Raw columns to carry along, for stratify_by."""
    categories: tuple[str, ...] = BFCL_SIMPLE
    """Categories of BFCL; has no effect on other kinds."""
    limit: Positive[int | None] = None
    """First rows only; None takes all."""

    def _check(self) -> None:
        known = (*BFCL_CATEGORIES, *BFCL_NO_CALL)
        unknown = [name for name in self.categories if name not in known]
        require(
            not unknown,
            f"categories: got {', '.join(unknown)}, expected some of {', '.join(known)}",
        )
        require(
            not (self.keep and self.kind == "bfcl"),
            f"keep: got {', '.join(self.keep)}, but bfcl rows have no columns; leave it out",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig(Settings):
    """Convert, split and tokenise one data set."""

    source: SourceConfig
    output: str
    """Folder in the place `data`."""
    test_ratio: Annotated[float, Bound("between 0 and 1", lambda value: 0 < value < 1)] = 0.2
    rand_sort: bool = True
    """Shuffle before the split; False keeps the source's order."""
    seed: int = 0
    stratify_by: str | None = None
    """One of source.keep: each of its values is split by test_ratio on its own."""
    max_tokens: Annotated[int, over(1)] = 4096
    """Longest conversation; what is longer is treated as `overlong` says."""
    overlong: Overlong = "drop"
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Switches of the model's chat template, such as enable_thinking."""

    def _check(self) -> None:
        require(
            self.stratify_by is None or self.stratify_by in self.source.keep,
            f"stratify_by: got {self.stratify_by!r}, expected one of source.keep "
            f"({', '.join(self.source.keep) or 'which is empty'})",
        )


def from_options(kind: type[T], /, **values: Any) -> T:
    """Return settings `kind` made of a command's options; what it refuses is a ConfigError."""
    try:
        return kind(**values)
    except ValueError as error:
        raise ConfigError(str(error)) from error
