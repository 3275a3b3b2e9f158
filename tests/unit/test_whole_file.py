"""A file is replaced in one step, and what was there stays until then."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from infra import files


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_failed_write_leaves_what_was_there_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    files.write(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
        files.write(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_writer_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / f".file.{os.getpid()}.part").write_text("half")
    files.write(tmp_path / "file", b"\x00whole")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"\x00whole"]


def test_a_mode_is_kept_or_given_and_parents_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "file"
    files.write(path, "secret", mode=0o600)
    assert mode_of(path) == 0o600
    path.chmod(0o640)
    files.write(path, "changed")
    assert (mode_of(path), path.read_text()) == (0o640, "changed")
    files.write(path, "private", mode=0o600)
    assert mode_of(path) == 0o600


def test_a_link_stays_and_what_it_names_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    target, link, dangling = tmp_path / "kept" / "file", tmp_path / "link", tmp_path / "dangling"
    target.write_text("old")
    link.symlink_to("kept/file")
    dangling.symlink_to("kept/new")
    files.write(link, "new")
    files.write(dangling, "made")
    assert link.is_symlink()
    assert dangling.is_symlink()
    assert {each.name: each.read_text() for each in target.parent.iterdir()} == {
        "file": "new",
        "new": "made",
    }


def test_a_secret_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("theirs")
    link = tmp_path / "key"
    link.symlink_to("theirs")
    files.write(link, "secret", mode=0o600)
    assert not link.is_symlink()
    assert (tmp_path / "theirs").read_text() == "theirs"


def test_a_fifo_is_written_into(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        files.write(fifo, "bill")
        assert os.read(reader, 100) == b"bill"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_a_device_is_written_into(tmp_path: Path) -> None:
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        device.write_bytes(b"")
    except PermissionError:
        pytest.skip("making a device needs root and a filesystem that allows devices")
    files.write(device, "bill")
    assert stat.S_ISCHR(device.stat().st_mode)
    assert list(tmp_path.iterdir()) == [device]


@pytest.mark.parametrize("path", ["/", "."])
def test_a_folder_is_named_as_one(path: str) -> None:
    with pytest.raises(IsADirectoryError):
        files.write(Path(path), "bill")
