"""Settings of the `data` section of a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from workloads.common.recipe import require


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """Where raw rows come from."""

    kind: Literal["bfcl", "jsonl", "parquet"]
    path: str
    """bfcl: folder of bfcl-eval's data; else a file or a folder of files. Place `data` first."""
    format: Literal["messages", "system_user_assistant", "glaive"] = "messages"
    """Columns of jsonl and parquet rows; has no effect on bfcl."""
    limit: int | None = None
    """First rows only; None takes all."""

    def __post_init__(self) -> None:
        require(self.limit is None or self.limit > 0, f"limit: got {self.limit}, expected > 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Convert, split and tokenise one data set."""

    source: SourceConfig
    output: str
    """Folder in the place `data`."""
    test_ratio: float = 0.2
    rand_sort: bool = True
    """Shuffle before the split; False keeps the source's order."""
    seed: int = 0
    max_tokens: int = 4096
    """Longest conversation; what is longer is treated as `overlong` says."""
    overlong: Literal["drop", "refuse"] = "drop"
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Switches of the model's chat template, such as enable_thinking."""

    def __post_init__(self) -> None:
        require(
            0 < self.test_ratio < 1, f"test_ratio: got {self.test_ratio}, expected between 0 and 1"
        )
        require(self.max_tokens > 1, f"max_tokens: got {self.max_tokens}, expected > 1")
