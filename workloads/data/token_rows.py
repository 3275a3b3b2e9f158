"""The tokenised file: written row group by row group, read into flat arrays.

Owns the three columns (docs/data.md) and Example. Rows are not padded or packed: packing.py does
that at training. In memory a token takes 5 bytes: its id, and whether it carries a label.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

from workloads.common.exit_codes import DataError

if TYPE_CHECKING:
    import numpy as np

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
class TokenRows(Sequence[Example]):
    """Tokenised conversations over flat arrays; an Example is made when one is asked for."""

    input_ids: np.ndarray[Any, Any]
    """int32, all rows one after another."""
    learned: np.ndarray[Any, Any]
    """bool, as long as input_ids: the token carries a label."""
    offsets: np.ndarray[Any, Any]
    """int64, one more than rows: row i is [offsets[i], offsets[i + 1])."""

    @classmethod
    def of(cls, examples: Iterable[Example]) -> TokenRows:
        """Return the rows of `examples`; a TokenRows stays what it is."""
        import numpy as np

        if isinstance(examples, TokenRows):
            return examples
        rows = list(examples)
        lengths = [len(row.input_ids) for row in rows]
        labels = np.array([label for row in rows for label in row.labels], dtype=np.int32)
        return cls(
            input_ids=np.array([i for row in rows for i in row.input_ids], dtype=np.int32),
            learned=labels != IGNORED,
            offsets=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64),
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        ids, labels = self.arrays(index % len(self))
        return Example(input_ids=tuple(ids.tolist()), labels=tuple(labels.tolist()))

    def arrays(self, index: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the token ids and the labels of row `index`, both int32."""
        import numpy as np

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
        import numpy as np

        lengths = self.lengths[keep]
        tokens = np.repeat(keep, self.lengths)
        return TokenRows(
            input_ids=self.input_ids[tokens],
            learned=self.learned[tokens],
            offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        )

    @property
    def digest(self) -> str:
        """Return the SHA-256 of all tokens, labels and row bounds."""
        digest = hashlib.sha256()
        for values in (self.offsets, self.input_ids, self.learned):
            digest.update(values.view("uint8").data)
        return digest.hexdigest()


class Writer:
    """Writes token rows to a parquet file in row groups; use it as a context manager."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        kinds = (pa.int32(), pa.int32(), pa.int8())
        self._schema = pa.schema(
            [(name, pa.list_(kind)) for name, kind in zip(COLUMNS, kinds, strict=True)]
        )
        # Ids hardly repeat within a page, so a dictionary costs time and saves nothing.
        self._file: Any = pq.ParquetWriter(
            path, self._schema, use_dictionary=False, compression="zstd"
        )
        self._waiting: list[TokenRows] = []
        self._num_waiting = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._flush()
        self._file.close()

    def write(self, rows: TokenRows) -> None:
        """Add rows at the end; row groups are as many rows however they come."""
        self._waiting.append(rows)
        self._num_waiting += len(rows)
        if self._num_waiting >= _ROWS_A_GROUP:
            self._flush()

    def _flush(self) -> None:
        import numpy as np
        import pyarrow as pa

        if not self._num_waiting:
            return
        ids = np.concatenate([rows.input_ids for rows in self._waiting])
        learned = np.concatenate([rows.learned for rows in self._waiting])
        lengths = np.concatenate([rows.lengths for rows in self._waiting])
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        values = (
            ids,
            np.where(learned, ids, np.int32(IGNORED)),
            np.ones(len(ids), dtype=np.int8),
        )
        columns = [pa.ListArray.from_arrays(offsets, pa.array(each)) for each in values]
        self._file.write_table(pa.table(columns, schema=self._schema))
        self._waiting, self._num_waiting = [], 0


def read_parquet(path: Path) -> TokenRows:
    """Return the rows of a file that Writer wrote, read row group by row group."""
    import numpy as np
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
    lengths = np.concatenate([np.zeros(1, np.int64), *(group.lengths for group in groups)])
    return TokenRows(
        input_ids=np.concatenate([np.zeros(0, np.int32), *(group.input_ids for group in groups)]),
        learned=np.concatenate([np.zeros(0, np.bool_), *(group.learned for group in groups)]),
        offsets=np.cumsum(lengths),
    )


def _group(file: Any, number: int, path: Path) -> TokenRows:
    import numpy as np

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
    lengths = ids_column.value_lengths().to_numpy()
    return TokenRows(
        input_ids=ids,
        learned=learned,
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
    )
