"""Delivery without the engine: the same layout, run by a real shell in a folder of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from infra.clients.errors import JobsError
from infra.clients.ssh import Result
from infra.jobs import transfer
from infra.render.delivery import hash_files

FILES = {
    "workloads/train.py": b"print(1)\n",
    "jobs/finetune": b"#!/bin/bash\n",
    "configs/stack.json": b"{}\n",
}


class Local:
    """The login node's shell, on this machine."""

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        done = subprocess.run(["sh", "-c", command], input=stdin, capture_output=True, check=False)
        return Result(
            command=command,
            exit_code=done.returncode,
            stdout=done.stdout.decode(),
            stderr=done.stderr.decode(),
        )


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.feature("S002-30", "S003-74")
def test_what_is_sent_is_live_under_its_hash_and_the_short_names(tmp_path: Path) -> None:
    release = transfer.send(Local(), str(tmp_path), FILES)
    assert release == hash_files(FILES)
    assert (tmp_path / "current").readlink() == Path("releases") / release
    assert content(tmp_path / "releases" / release) == FILES
    assert (tmp_path / "jobs" / "finetune").read_bytes() == FILES["jobs/finetune"]


def test_an_older_release_stays_and_comes_back_without_a_second_copy(tmp_path: Path) -> None:
    first = transfer.send(Local(), str(tmp_path), FILES)
    inode = (tmp_path / "releases" / first).stat().st_ino
    transfer.send(Local(), str(tmp_path), {**FILES, "workloads/train.py": b"print(2)\n"})
    assert (tmp_path / "workloads" / "train.py").read_bytes() == b"print(2)\n"
    transfer.send(Local(), str(tmp_path), FILES)
    assert (tmp_path / "workloads" / "train.py").read_bytes() == b"print(1)\n"
    assert (tmp_path / "releases" / first).stat().st_ino == inode


def test_what_a_killed_delivery_left_is_made_anew(tmp_path: Path) -> None:
    part = tmp_path / "releases" / f"{hash_files(FILES)}.part"
    part.mkdir(parents=True)
    (part / "torn").touch()
    release = transfer.send(Local(), str(tmp_path), FILES)
    assert content(tmp_path / "releases" / release) == FILES
    assert not part.exists()


def test_a_release_that_never_went_live_is_not_trusted(tmp_path: Path) -> None:
    """A killed `pulumi up` leaves a half copied folder under the final name."""
    torn = tmp_path / "releases" / hash_files(FILES) / "workloads"
    torn.mkdir(parents=True)
    (torn / "half.py").touch()
    release = transfer.send(Local(), str(tmp_path), FILES)
    assert content(tmp_path / "releases" / release) == FILES


def test_code_that_cannot_be_installed_is_an_error_that_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(JobsError, match=r"none: the code was not installed: .*cd"):
        transfer.send(Local(), str(tmp_path / "none"), FILES)


def test_a_full_filesystem_is_one_line_with_the_way_out_and_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tar says it once for each of hundreds of files."""
    transfer.send(Local(), str(tmp_path), FILES)
    before = content(tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "tar").write_text(
        '#!/bin/sh\ncd "$4" && echo half > half\n'
        'for n in 1 2 3; do echo "tar: $n: Cannot write: No space left on device" >&2; done\n'
        "echo 'tar: Exiting with failure status due to previous errors' >&2; exit 2\n"
    )
    (programs / "tar").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    with pytest.raises(JobsError) as refusal:
        transfer.send(Local(), str(tmp_path), {**FILES, "workloads/train.py": b"print(2)\n"})
    said = str(refusal.value)
    assert said.count("No space left on device") == 1
    assert "\n" not in said
    assert "raise its size_gib and run pulumi up" in said
    (programs / "tar").unlink()
    assert content(tmp_path) == before
    assert [path.name for path in (tmp_path / "releases").glob("*.part")] == []
