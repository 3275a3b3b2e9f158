"""Best-fit packing of examples into rows of fixed length with document boundaries.

Owns which examples share a row, position ids that restart per document, and the block-diagonal
causal mask. Rows are padded only to the longest of
their micro batch; the training loop reports what padding was computed.
Shapes: B rows, T tokens of a row.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workloads.common.exit_codes import DataError
from workloads.data.chat_template import IGNORED, Example

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """Examples that share one row, in order."""

    examples: tuple[Example, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of the row that are not padding."""
        return sum(len(example.input_ids) for example in self.examples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Tensors of one micro batch."""

    input_ids_BT: torch.Tensor
    labels_BT: torch.Tensor
    """Label of a position is the next token; IGNORED where that is not learned."""
    position_ids_BT: torch.Tensor
    mask_B1TT: torch.Tensor
    """True where a query sees a key."""
    num_tokens: int
    """Tokens that are not padding."""
    num_label_tokens: int

    def to(self, device: torch.device) -> Batch:
        """Return the same batch on `device`."""
        return Batch(
            input_ids_BT=self.input_ids_BT.to(device),
            labels_BT=self.labels_BT.to(device),
            position_ids_BT=self.position_ids_BT.to(device),
            mask_B1TT=self.mask_B1TT.to(device),
            num_tokens=self.num_tokens,
            num_label_tokens=self.num_label_tokens,
        )


def pack(examples: Sequence[Example], *, sequence_length: int) -> list[Pack]:
    """Return rows of at most `sequence_length` tokens by best-fit decreasing; deterministic."""
    order = sorted(range(len(examples)), key=lambda i: (-len(examples[i].input_ids), i))
    rows: list[list[int]] = []
    # Sorted (free tokens, row): the best fit is the first row with enough room.
    free: list[tuple[int, int]] = []
    for index in order:
        length = len(examples[index].input_ids)
        if length > sequence_length:
            raise DataError(
                f"example {index}: {length} tokens do not fit sequence_length {sequence_length}"
            )
        slot = bisect.bisect_left(free, (length, -1))
        if slot == len(free):
            row, room = len(rows), sequence_length
            rows.append([])
        else:
            room, row = free.pop(slot)
        rows[row].append(index)
        bisect.insort(free, (room - length, row))
    return [Pack(examples=tuple(examples[i] for i in sorted(row))) for row in rows]


def unused_percent(packs: Sequence[Pack], *, sequence_length: int) -> float:
    """Return the share of all rows' positions that holds no token, in percent."""
    total = len(packs) * sequence_length
    return 100 * (1 - sum(pack.num_tokens for pack in packs) / total) if total else 0.0


def collate(packs: Sequence[Pack], *, pad_id: int, length: int | None = None) -> Batch:
    """Return one micro batch; rows are padded to `length`, or to the longest of them."""
    import torch

    length = length or max(pack.num_tokens for pack in packs)
    shape = (len(packs), length)
    input_ids_BT = torch.full(shape, pad_id, dtype=torch.long)
    labels_BT = torch.full(shape, IGNORED, dtype=torch.long)
    position_ids_BT = torch.zeros(shape, dtype=torch.long)
    # Padding is a document of its own, so that no row of the mask is empty (softmax of nothing).
    document_BT = torch.full(shape, -1, dtype=torch.long)
    for row, packed in enumerate(packs):
        start = 0
        for document, example in enumerate(packed.examples):
            end = start + len(example.input_ids)
            input_ids_BT[row, start:end] = torch.tensor(example.input_ids)
            # Shifted inside the document: its last token predicts nothing, so the first token of
            # the next document is never a target.
            labels_BT[row, start : end - 1] = torch.tensor(example.labels[1:], dtype=torch.long)
            position_ids_BT[row, start:end] = torch.arange(end - start)
            document_BT[row, start:end] = document
            start = end
    same_BTT = document_BT[:, :, None] == document_BT[:, None, :]
    causal_TT = torch.ones(length, length, dtype=torch.bool).tril()
    return Batch(
        input_ids_BT=input_ids_BT,
        labels_BT=labels_BT,
        position_ids_BT=position_ids_BT,
        mask_B1TT=(same_BTT & causal_TT)[:, None],
        num_tokens=sum(packed.num_tokens for packed in packs),
        num_label_tokens=int((labels_BT != IGNORED).sum()),
    )
