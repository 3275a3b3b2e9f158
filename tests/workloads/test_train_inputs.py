"""The same model and data on every node: by files before ranks start, by rows between ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from workloads.common.dist import World
from workloads.common.exit_codes import DataError
from workloads.common.places import WHOLE_BYTES
from workloads.train.inputs import identity, refuse_other_rows


def folder(path: Path, *, small: bytes = b"{}", large: int = WHOLE_BYTES + 1) -> Path:
    """Returns a new folder with a small file, a large one and what a download keeps hidden."""
    (path / ".cache").mkdir(parents=True)
    (path / ".cache" / "lock").write_text(str(path))
    (path / "manifest.json").write_bytes(small)
    with (path / "tokens_train.parquet").open("wb") as file:
        file.truncate(large)
    return path


def test_copies_are_the_same_and_another_manifest_or_size_is_not(tmp_path: Path) -> None:
    first = identity(folder(tmp_path / "a"))
    assert identity(folder(tmp_path / "b")) == first
    assert identity(folder(tmp_path / "c", small=b"[]")) != first
    assert identity(folder(tmp_path / "d", large=WHOLE_BYTES + 2)) != first
    one = tmp_path / "one.parquet"
    one.write_bytes(b"x")
    assert identity(one) != identity(folder(tmp_path / "e"))


class _Answers(World):
    """Rank 1 of three, whose peers read `rows`."""

    def gather(self, value: Any) -> list[Any]:
        return [("worker-0", "rows"), value, ("worker-1", "rows")]


def test_a_rank_with_other_rows_is_named_on_every_rank() -> None:
    here = _Answers(rank=1, local_rank=1, world_size=3, device=torch.device("cpu"))
    refuse_other_rows(here, "rows")
    with pytest.raises(DataError, match=r"ranks 1 \(.+\) read other rows than rank 0 \(worker-0\)"):
        refuse_other_rows(here, "others")
