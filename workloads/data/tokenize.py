"""Chats to token rows in parquet: exactly input_ids, labels, attention_mask.

Owns the tokenised file format. Rows are not padded or packed: packing.py does that at training.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from workloads.common.exit_codes import DataError
from workloads.data.chat_template import IGNORED, Example, encode, render
from workloads.data.chats import Chat

CHATS_PER_BATCH = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenized:
    """Examples and what was left out."""

    examples: tuple[Example, ...]
    num_dropped: int
    """Examples longer than the limit."""

    @property
    def num_tokens(self) -> int:
        """All tokens of all examples."""
        return sum(len(example.input_ids) for example in self.examples)

    @property
    def num_assistant_tokens(self) -> int:
        """Tokens that carry a label."""
        return sum(sum(label != IGNORED for label in example.labels) for example in self.examples)


def tokenize(
    tokenizer: Any,
    chats: Sequence[Chat],
    *,
    max_tokens: int,
    overlong: Literal["drop", "refuse"],
    **template: Any,
) -> Tokenized:
    """Return the examples of `chats` in order; long ones are dropped and counted, or refused."""
    kept: list[Example] = []
    num_dropped = 0
    for first in range(0, len(chats), CHATS_PER_BATCH):
        batch = chats[first : first + CHATS_PER_BATCH]
        rendered, owners = [], []
        for chat in batch:
            try:
                pieces = render(tokenizer, chat.messages, **template)
            except DataError as error:
                raise DataError(f"chat {chat.id}: {error}") from error
            rendered += pieces
            owners += [chat.id] * len(pieces)
        for owner, example in zip(owners, encode(tokenizer, rendered), strict=True):
            if len(example.input_ids) <= max_tokens:
                kept.append(example)
            elif overlong == "drop":
                num_dropped += 1
            else:
                raise DataError(
                    f"chat {owner}: {len(example.input_ids)} tokens, at most {max_tokens} allowed; "
                    "raise data.max_tokens or set data.overlong to drop"
                )
    return Tokenized(examples=tuple(kept), num_dropped=num_dropped)


def write_parquet(path: Path, examples: Iterable[Example]) -> None:
    """Write the three columns as lists of int32."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = list(examples)
    kind = pa.list_(pa.int32())
    table = pa.table(
        {
            "input_ids": pa.array([row.input_ids for row in rows], kind),
            "labels": pa.array([row.labels for row in rows], kind),
            "attention_mask": pa.array([[1] * len(row.input_ids) for row in rows], kind),
        }
    )
    pq.write_table(table, path)


def read_parquet(path: Path) -> list[Example]:
    """Return the examples of a file that write_parquet wrote."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise DataError(f"{path}: missing; run prepare-data first")
    try:
        table = pq.read_table(path, columns=["input_ids", "labels"])
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: is not a tokenised data set: {error}") from error
    return [
        Example(input_ids=tuple(ids), labels=tuple(labels))
        for ids, labels in zip(
            table["input_ids"].to_pylist(), table["labels"].to_pylist(), strict=True
        )
    ]
