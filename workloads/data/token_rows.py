"""The tokenised file: written row group by row group, read into flat arrays, packed at training.

Rows of the file are not padded or packed. In memory a token takes 5 bytes: its id, and whether it
carries a label. Best-fit packing makes rows of fixed length with document boundaries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workloads.common.exit_codes import DataError
from workloads.data.manifest import read_manifest, read_object, sha256

if TYPE_CHECKING:
    import torch


IGNORED = -100
"""Label of a token that is not learned, as torch's cross_entropy has it."""
COLUMNS = ("input_ids", "labels", "attention_mask")
_ROWS_A_GROUP = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Token ids of one sequence and their labels."""

    input_ids: tuple[int, ...]
    labels: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenRows:
    """Tokenised conversations over flat arrays; an Example is made when one is asked for."""

    input_ids: np.ndarray[Any, Any]
    """int32, all rows one after another."""
    learned: np.ndarray[Any, Any]
    """bool, as long as input_ids: the token carries a label."""
    offsets: np.ndarray[Any, Any]
    """int64, one more than rows: row i is [offsets[i], offsets[i + 1])."""

    @classmethod
    def cut_at(cls, input_ids: Any, learned: Any, lengths: Any) -> TokenRows:
        """Return rows of these lengths, one after another in the flat arrays."""
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return cls(input_ids=input_ids, learned=learned, offsets=offsets)

    @classmethod
    def joined(cls, parts: Sequence[TokenRows]) -> TokenRows:
        """Return the rows of all parts; none of no part."""
        return cls.cut_at(
            np.concatenate([np.zeros(0, np.int32), *(part.input_ids for part in parts)]),
            np.concatenate([np.zeros(0, np.bool_), *(part.learned for part in parts)]),
            np.concatenate([np.zeros(0, np.int64), *(part.lengths for part in parts)]),
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Example:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        ids, labels = self.arrays(index % len(self))
        return Example(input_ids=tuple(ids.tolist()), labels=tuple(labels.tolist()))

    def arrays(self, index: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the token ids and the labels of row `index`, both int32."""
        first, last = self.offsets[index], self.offsets[index + 1]
        ids = self.input_ids[first:last]
        return ids, np.where(self.learned[first:last], ids, np.int32(IGNORED))

    @property
    def lengths(self) -> np.ndarray[Any, Any]:
        """Return the tokens of every row."""
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def num_tokens(self) -> int:
        """Return all tokens of all rows."""
        return len(self.input_ids)

    @property
    def num_label_tokens(self) -> int:
        """Return the tokens that can be predicted: labels, those of first tokens aside."""
        starts = self.offsets[:-1][self.lengths > 0]
        return int(self.learned.sum()) - int(self.learned[starts].sum())

    def select(self, keep: np.ndarray[Any, Any]) -> TokenRows:
        """Return the rows where `keep` (bool, one a row) is true."""
        tokens = np.repeat(keep, self.lengths)
        return self.cut_at(self.input_ids[tokens], self.learned[tokens], self.lengths[keep])

    def cut(self, limit: int) -> TokenRows:
        """Return the rows with at most `limit` tokens each."""
        lengths = np.minimum(self.lengths, limit)
        stays = np.arange(self.num_tokens) - np.repeat(self.offsets[:-1], self.lengths) < limit
        return self.cut_at(self.input_ids[stays], self.learned[stays], lengths)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of all tokens, labels and row bounds."""
        digest = hashlib.sha256()
        for values in (self.offsets, self.input_ids, self.learned):
            digest.update(values.view("uint8").data)
        return digest.hexdigest()


def write_parquet(path: Path, parts: Iterable[TokenRows]) -> None:
    """Write the rows of all parts; row groups are as many rows however they come."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = (pa.int32(), pa.int32(), pa.int8())
    schema = pa.schema([(name, pa.list_(kind)) for name, kind in zip(COLUMNS, kinds, strict=True)])
    # Ids hardly repeat within a page, so a dictionary costs time and saves nothing.
    with pq.ParquetWriter(path, schema, use_dictionary=False, compression="zstd") as file:
        for rows in _groups(parts):
            labels = np.where(rows.learned, rows.input_ids, np.int32(IGNORED))
            offsets = pa.array(rows.offsets.astype(np.int32))
            values = (rows.input_ids, labels, np.ones(rows.num_tokens, dtype=np.int8))
            columns = [pa.ListArray.from_arrays(offsets, pa.array(each)) for each in values]
            file.write_table(pa.table(columns, schema=schema))


def _groups(parts: Iterable[TokenRows]) -> Iterator[TokenRows]:
    waiting: list[TokenRows] = []
    for part in parts:
        waiting.append(part)
        if sum(map(len, waiting)) >= _ROWS_A_GROUP:
            yield TokenRows.joined(waiting)
            waiting = []
    if any(map(len, waiting)):
        yield TokenRows.joined(waiting)


def read_parquet(path: Path) -> TokenRows:
    """Return the rows of a file of write_parquet, read row group by row group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise DataError(f"{path}: missing; run prepare-data first")
    try:
        with pq.ParquetFile(path) as file:
            if tuple(file.schema_arrow.names) != COLUMNS:
                raise DataError(
                    f"{path}: has columns {', '.join(file.schema_arrow.names)}, "
                    f"expected exactly {', '.join(COLUMNS)}"
                )
            groups = [_group(file, number, path) for number in range(file.num_row_groups)]
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: is not a tokenised data set: {error}") from error
    return TokenRows.joined(groups)


def _group(file: Any, number: int, path: Path) -> TokenRows:
    table = file.read_row_group(number, columns=["input_ids", "labels"]).combine_chunks()
    ids_column, labels_column = (table[name].combine_chunks() for name in COLUMNS[:2])
    ids = ids_column.flatten().to_numpy().astype(np.int32)
    labels = labels_column.flatten().to_numpy()
    learned = labels != IGNORED
    if len(labels) != len(ids) or not np.array_equal(labels[learned], ids[learned]):
        raise DataError(
            f"{path}: row group {number}: labels are neither the token nor {IGNORED}; "
            "make the file with dataset_tokenize"
        )
    return TokenRows.cut_at(ids, learned, ids_column.value_lengths().to_numpy())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """Examples that share one row, in order."""

    rows: TokenRows
    indices: tuple[int, ...]
    """Which of `rows` they are."""
    num_tokens: int
    """Tokens of the row that are not padding."""


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
    # Made on the CPU, before the batch moves: a GPU would be waited for.
    learned_N: Any = None
    """Positions that have a label, rows one after another."""
    document_ends: Any = None
    """0 and the end of each document, rows one after another, int32; padding is a document."""
    longest_document: int = 0
    """Tokens of the longest one at most: a power of two, so that compiled layers see few."""

    def __post_init__(self) -> None:
        if self.learned_N is None:
            found_N = (self.labels_BT.flatten() != IGNORED).nonzero()[:, 0]
            # One ignored position keeps every weight in the graph, as DDP waits for all of them.
            object.__setattr__(self, "learned_N", found_N if len(found_N) else found_N.new_zeros(1))
        if self.document_ends is None:
            import torch
            from torch.nn.functional import pad

            rows, length = self.document_BT.shape
            # A row's first token begins a document, and so does one of another than before it.
            begins_BT = pad(self.document_BT.diff(dim=1) != 0, (1, 0), value=True)
            ends = torch.cat([begins_BT.flatten().nonzero()[:, 0], torch.tensor([rows * length])])
            object.__setattr__(self, "document_ends", ends.to(torch.int32))
            longest = int(ends.diff().max())
            object.__setattr__(self, "longest_document", 1 << (longest - 1).bit_length())

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
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        moved = {k: v.to(device, non_blocking=True) for k, v in values if not isinstance(v, int)}
        return replace(self, **moved)


def pack(rows: TokenRows, *, sequence_length: int) -> list[Pack]:
    """Return rows of at most `sequence_length` tokens by best-fit decreasing; deterministic."""
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


def collate(packs: Sequence[Pack], *, pad_id: int, multiple: int = 1) -> Batch:
    """Return one micro batch; rows are padded to the longest of them, up to a `multiple`."""
    import torch

    length = -(-max(pack.num_tokens for pack in packs) // multiple) * multiple
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


TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json",
    "vocab.json", "merges.txt", "tokenizer.model"
)  # fmt: skip


def tokenizer_files(model_dir: Path) -> list[Path]:
    """Return the files that decide what the tokenizer does, for a manifest."""
    return [path for name in TOKENIZER_FILES if (path := model_dir / name).is_file()]


def check_tokens(file: Path, rows: TokenRows, *, model_dir: Path) -> None:
    """Refuse the `rows` of a tokenised file where another model's tokenizer made them.

    Without a manifest beside the file only the ids tell.
    """
    _check_ids(file, rows, model_dir)
    for manifest in (file.with_name(f"{file.name}.manifest.json"), file.parent / "manifest.json"):
        if not manifest.is_file():
            continue
        made_by = read_manifest(manifest).get("tokenizer")
        if not isinstance(made_by, dict):
            return
        here = {path.name: sha256(path) for path in tokenizer_files(model_dir)}
        names = [name for name in {**made_by, **here} if made_by.get(name) != here.get(name)]
        if names:
            raise DataError(
                f"{file}: made with another tokenizer than that of {model_dir}: {', '.join(names)} "
                "not the same; run prepare-data with this model, into an output of its own"
            )
        return


def _check_ids(file: Path, rows: TokenRows, model_dir: Path) -> None:
    config = read_object(model_dir / "config.json")
    parts = [each for each in (config, config.get("text_config")) if isinstance(each, dict)]
    size = next((n for each in parts if isinstance(n := each.get("vocab_size"), int)), None)
    if size is None or not rows.num_tokens:
        return
    for token in (int(rows.input_ids.min()), int(rows.input_ids.max())):
        if not 0 <= token < size:
            raise DataError(
                f"{file}: holds token id {token}, but {model_dir} knows the ids 0 to {size - 1}; "
                "run prepare-data with this model"
            )
