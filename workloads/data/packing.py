"""Best-fit packing of examples into rows of fixed length with document boundaries.

Owns which examples share a row, position ids that restart per document, and the block-diagonal
causal mask. Rows are padded only to the longest of their micro batch; the training loop reports
what padding was computed.
Shapes: B rows, T tokens of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workloads.common.exit_codes import DataError
from workloads.data.token_rows import IGNORED, Example, TokenRows

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """Examples that share one row, in order."""

    rows: TokenRows
    indices: tuple[int, ...]
    """Which of `rows` they are."""
    num_tokens: int
    """Tokens of the row that are not padding."""

    @property
    def examples(self) -> tuple[Example, ...]:
        """The examples, made anew each time."""
        return tuple(self.rows[index] for index in self.indices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Tensors of one micro batch."""

    input_ids_BT: torch.Tensor
    labels_BT: torch.Tensor
    """Label of a position is the next token; IGNORED where that is not learned."""
    position_ids_BT: torch.Tensor
    document_BT: torch.Tensor
    """Number of the document in its row; -1 on padding."""
    num_tokens: int
    """Tokens that are not padding."""
    num_label_tokens: int

    @property
    def mask_B1TT(self) -> torch.Tensor:  # noqa: N802
        """True where a query sees a key: same document, not later; made on each access."""
        import torch

        # Padding is a document of its own, so that no row of the mask is empty (softmax of
        # nothing).
        length = self.document_BT.shape[1]
        same_BTT = self.document_BT[:, :, None] == self.document_BT[:, None, :]
        ones_TT = torch.ones(length, length, dtype=torch.bool, device=self.document_BT.device)
        return (same_BTT & ones_TT.tril())[:, None]

    def to(self, device: torch.device) -> Batch:
        """Return the same batch on `device`."""
        return Batch(
            input_ids_BT=self.input_ids_BT.to(device, non_blocking=True),
            labels_BT=self.labels_BT.to(device, non_blocking=True),
            position_ids_BT=self.position_ids_BT.to(device, non_blocking=True),
            document_BT=self.document_BT.to(device, non_blocking=True),
            num_tokens=self.num_tokens,
            num_label_tokens=self.num_label_tokens,
        )


def pack(examples: Sequence[Example], *, sequence_length: int) -> list[Pack]:
    """Return rows of at most `sequence_length` tokens by best-fit decreasing; deterministic."""
    rows = TokenRows.of(examples)
    lengths: list[int] = rows.lengths.tolist()
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    packs: list[list[int]] = []
    # Bit n of `free` is set while some row has n tokens of room, and `open_rows[n]` names them: the
    # best fit is the lowest set bit from the length on.
    free = 0
    open_rows: dict[int, list[int]] = {}
    for index in order:
        length = lengths[index]
        if length > sequence_length:
            raise DataError(
                f"example {index}: {length} tokens do not fit sequence_length {sequence_length}"
            )
        fitting = free >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            row = open_rows[room].pop()
            if not open_rows[room]:
                free &= ~(1 << room)
        else:
            row, room = len(packs), sequence_length
            packs.append([])
        packs[row].append(index)
        left = room - length
        if left:
            open_rows.setdefault(left, []).append(row)
            free |= 1 << left
    return [
        Pack(rows=rows, indices=tuple(sorted(row)), num_tokens=sum(lengths[i] for i in row))
        for row in packs
    ]


def unused_percent(packs: Sequence[Pack], *, sequence_length: int) -> float:
    """Return the share of all rows' positions that holds no token, in percent."""
    total = len(packs) * sequence_length
    return 100 * (1 - sum(pack.num_tokens for pack in packs) / total) if total else 0.0


def collate(packs: Sequence[Pack], *, pad_id: int, length: int | None = None) -> Batch:
    """Return one micro batch; rows are padded to `length`, or to the longest of them."""
    import numpy as np
    import torch

    length = length or max(pack.num_tokens for pack in packs)
    shape = (len(packs), length)
    input_ids = np.full(shape, pad_id, dtype=np.int64)
    labels = np.full(shape, IGNORED, dtype=np.int64)
    position_ids = np.zeros(shape, dtype=np.int64)
    document = np.full(shape, -1, dtype=np.int64)
    for row, packed in enumerate(packs):
        start = 0
        for number, index in enumerate(packed.indices):
            ids, own_labels = packed.rows.arrays(index)
            end = start + len(ids)
            input_ids[row, start:end] = ids
            # Shifted inside the document: its last token predicts nothing, so the first token of
            # the next document is never a target.
            labels[row, start : end - 1] = own_labels[1:]
            position_ids[row, start:end] = np.arange(end - start)
            document[row, start:end] = number
            start = end
    return Batch(
        input_ids_BT=torch.from_numpy(input_ids),
        labels_BT=torch.from_numpy(labels),
        position_ids_BT=torch.from_numpy(position_ids),
        document_BT=torch.from_numpy(document),
        num_tokens=sum(packed.num_tokens for packed in packs),
        num_label_tokens=int((labels != IGNORED).sum()),
    )
