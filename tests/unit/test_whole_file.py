"""A file is replaced in one step, and what was there stays until then."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from infra import whole_file


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_failed_write_leaves_what_was_there_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    whole_file.write(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        whole_file.write(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_writer_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / f".file.{os.getpid()}.part").write_text("half")
    whole_file.write(tmp_path / "file", b"\x00whole")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"\x00whole"]


def test_a_mode_is_kept_or_given_and_parents_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "file"
    whole_file.write(path, "secret", mode=0o600)
    assert mode_of(path) == 0o600
    path.chmod(0o640)
    whole_file.write(path, "changed")
    assert (mode_of(path), path.read_text()) == (0o640, "changed")
    whole_file.write(path, "private", mode=0o600)
    assert mode_of(path) == 0o600
