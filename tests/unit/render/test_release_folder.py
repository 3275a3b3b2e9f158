"""The folder of one release: exactly the files, at a path that says nothing of their content."""

from __future__ import annotations

from pathlib import Path

from infra.render.login import write_release

FILES = {"jobs/train": b"#!/bin/bash\n", "workloads/a.py": b"a"}


def held(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_the_folder_holds_exactly_the_files(tmp_path: Path) -> None:
    write_release(tmp_path / "build", FILES, tmp_path)
    assert held(tmp_path / "build") == FILES


def test_what_an_older_release_left_is_removed_with_its_folders(tmp_path: Path) -> None:
    """A deleted module would stay importable on the cluster."""
    build = tmp_path / "build"
    write_release(build, {**FILES, "workloads/old/deep/gone.py": b"x"}, tmp_path)
    write_release(build, FILES, tmp_path)
    assert held(build) == FILES
    assert not (build / "workloads" / "old").exists()


def test_new_content_replaces_old_content_and_the_path_stays(tmp_path: Path) -> None:
    build = tmp_path / "build"
    first = write_release(build, FILES, tmp_path)
    changed = {**FILES, "workloads/a.py": b"b"}
    assert write_release(build, changed, tmp_path) == first
    assert held(build) == changed


def test_a_file_that_is_right_already_is_not_written_again(tmp_path: Path) -> None:
    build = tmp_path / "build"
    write_release(build, FILES, tmp_path)
    (build / "workloads" / "a.py").chmod(0o444)
    before = (build / "workloads" / "a.py").stat()
    write_release(build, FILES, tmp_path)
    after = (build / "workloads" / "a.py").stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)


def test_the_path_is_relative_and_ends_in_a_slash(tmp_path: Path) -> None:
    """With a slash CopyToRemote sends the content; absolute, two checkouts would differ."""
    found = write_release(tmp_path / ".soperator" / "build", FILES, tmp_path)
    assert found == ".soperator/build/"


def test_a_folder_outside_the_checkout_is_reached_from_it(tmp_path: Path) -> None:
    root = tmp_path / "checkout"
    root.mkdir()
    assert write_release(tmp_path / "state" / "build", FILES, root) == "../state/build/"
