"""Tokenises one block of chats, in this process or in a worker process.

Owns what happens to a conversation longer than the limit. Workers are forked from a server that has
loaded the tokenizer already, so its memory is shared and a worker starts in milliseconds.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from workloads.common.exit_codes import DataError
from workloads.common.models import load_tokenizer
from workloads.data.chat_template import ChatRenderer, call_form, check_tokenizer, encode
from workloads.data.chats import parse_line
from workloads.data.token_rows import TokenRows
from workloads.recipes.data import Overlong
from workloads.recipes.reader import Settings, over

PRELOAD = "SOPERATOR_TOKENIZER_DIR"
"""Environment variable that tells the fork server which tokenizer to load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeConfig(Settings):
    """How chats become token rows."""

    max_tokens: Annotated[int, over(1)]
    overlong: Overlong = "drop"
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenized:
    """What was made of chats and what was left out."""

    num_chats: int = 0
    num_examples: int = 0
    num_tokens: int = 0
    num_assistant_tokens: int = 0
    num_dropped: int = 0
    """Longer than the limit."""
    num_cut: int = 0
    """Cut to the limit."""
    num_refused: int = 0
    """Lines of which no chat was made."""
    workers_cpu_s: float = field(default=0.0, compare=False)
    """CPU seconds of the processes that tokenised. A block counts from the end of the one before,
    so with sending that one; the first from when its tokenizer was loaded.
    """

    def __add__(self, other: Tokenized) -> Tokenized:
        names = [each.name for each in fields(self)]
        return Tokenized(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def counts(self, side: str = "") -> dict[str, int]:
        """Return the numbers for a manifest and a run record."""
        name = f"num_{side}_" if side else "num_"
        found = asdict(self)
        return {
            f"{name}{each}": found[f"num_{each}"]
            for each in ("examples", "tokens", "assistant_tokens", "dropped", "cut", "refused")
        }

    def __str__(self) -> str:
        return (
            f"{self.num_examples} examples of {self.num_chats} chats, {self.num_tokens} tokens, "
            f"{self.num_assistant_tokens} of the assistant, {self.num_dropped} dropped, "
            f"{self.num_cut} cut, {self.num_refused} refused"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Token rows of some lines and what happened to them."""

    rows: TokenRows
    done: Tokenized
    refused: tuple[tuple[str, str, str], ...]
    """file:line, reason and text of each line whose chat has no token rows: it cannot be read, or
    the template refuses it."""


class TokenWorker:
    """One tokenizer and how it is used."""

    def __init__(self, tokenizer: Any, config: TokenizeConfig) -> None:
        check_tokenizer(tokenizer)
        self._tokenizer = tokenizer
        self._config = config
        self._renderer = ChatRenderer(tokenizer, config.chat_template_kwargs)
        self._counted_s = time.process_time()

    def tokenize(self, lines: Mapping[str, bytes]) -> Block:
        """Return the token rows of the chats in `lines`, by their file:line, in order."""
        refused: tuple[tuple[str, str, str], ...] = ()
        try:
            rows, owners = self._encode(lines)
        except DataError:
            refused = tuple(self._refused(lines))
            bad = {at for at, *_ in refused}
            lines = {at: line for at, line in lines.items() if at not in bad}
            rows, owners = self._encode(lines)
        rows, num_dropped, num_cut = self._limit(rows, owners)
        counted_s, self._counted_s = self._counted_s, time.process_time()
        done = Tokenized(
            num_chats=len(lines),
            num_examples=len(rows),
            num_tokens=rows.num_tokens,
            num_assistant_tokens=int(rows.learned.sum()),
            num_dropped=num_dropped,
            num_cut=num_cut,
            num_refused=len(refused),
            workers_cpu_s=self._counted_s - counted_s,
        )
        return Block(rows=rows, done=done, refused=refused)

    def _refused(self, lines: Mapping[str, bytes]) -> Iterator[tuple[str, str, str]]:
        """Yield the lines that have no rows, each tried alone."""
        for at, line in lines.items():
            try:
                self._encode({at: line})
            except DataError as error:
                yield at, str(error), line.decode(errors="replace")

    def _encode(self, lines: Mapping[str, bytes]) -> tuple[TokenRows, list[str]]:
        """Return the token rows of the chats in `lines`, and the id of each row's chat."""
        if not lines:
            return TokenRows.joined([]), []
        chats = [parse_line(line, at=at) for at, line in lines.items()]
        rendered = self._renderer.render([c.messages for c in chats], [c.functions for c in chats])
        owners = [chat.id for chat, pieces in zip(chats, rendered, strict=True) for _ in pieces]
        return encode(self._tokenizer, [piece for pieces in rendered for piece in pieces]), owners

    def _limit(self, rows: TokenRows, owners: list[str]) -> tuple[TokenRows, int, int]:
        limit = self._config.max_tokens
        long = rows.lengths > limit
        num_long = int(long.sum())
        if not num_long:
            return rows, 0, 0
        if self._config.overlong == "refuse":
            first = int(long.argmax())
            raise DataError(
                f"chat {owners[first]}: {rows.lengths[first]} tokens, at most {limit} allowed; "
                "raise data.max_tokens or set data.overlong to drop or cut"
            )
        keep = ~long
        if self._config.overlong == "cut":
            rows = rows.cut(limit)
            # The first token of a row is never predicted; a row without a label left is dropped.
            labels = np.concatenate([[0], np.cumsum(rows.learned)])
            second = np.minimum(rows.offsets[:-1] + 1, rows.offsets[1:])
            keep |= labels[rows.offsets[1:]] > labels[second]
        num_dropped = int((~keep).sum())
        return rows.select(keep), num_dropped, num_long - num_dropped


_worker: TokenWorker | None = None


def start(model_dir: Path, config: TokenizeConfig) -> None:
    """Make this process a worker."""
    global _worker
    gc.freeze()  # a collection would copy every page that is shared with the other workers
    tokenizer = _preloaded if str(model_dir) == os.environ.get(PRELOAD) else None
    _worker = TokenWorker(tokenizer or load_tokenizer(model_dir), config)


def work(lines: Mapping[str, bytes]) -> Block:
    """Return the token rows of some lines; the process was started with `start`."""
    assert _worker is not None
    return _worker.tokenize(lines)


def _load(model_dir: Path) -> Any:
    """Return the tokenizer with what is learned of it once, which forked workers share too."""
    tokenizer = load_tokenizer(model_dir)
    if tokenizer.is_fast and tokenizer.chat_template:  # if not, each worker says so
        call_form(tokenizer)
        encode(tokenizer, [])
    return tokenizer


_preloaded: Any = _load(Path(os.environ[PRELOAD])) if os.environ.get(PRELOAD) else None
