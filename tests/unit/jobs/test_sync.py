"""Code that a user sends without `pulumi up`, into a folder of the own, by a real shell."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from infra.clients.errors import JobsError
from infra.clients.ssh import Result
from infra.jobs import transfer
from infra.render.delivery import hash_files
from tests.another_user import Neighbour
from tests.unit.jobs.login_node import OUTPUTS

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


def send(folder: Path, files: dict[str, bytes]) -> str:
    return transfer.send(Local(), replace(OUTPUTS, code_path=str(folder)), files)


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("before", [None, 0o644])
def test_the_lock_is_one_that_nobody_else_can_open(before: int | None, tmp_path: Path) -> None:
    """Whoever may read a file may lock it, and kept its owner from sending for ever."""
    lock = tmp_path / ".install.lock"
    if before is not None:
        lock.touch(before)
    send(tmp_path, FILES)
    assert lock.stat().st_mode & 0o777 == 0o600


@pytest.mark.feature("S002-30", "S003-74")
def test_what_is_sent_lies_whole_under_its_hash_and_is_live_for_nobody_else(tmp_path: Path) -> None:
    release = send(tmp_path, FILES)
    assert release == hash_files(FILES)
    assert content(tmp_path / "releases" / release) == FILES
    assert (tmp_path / "releases" / f"{release}.whole").exists()
    assert not (tmp_path / "current").exists()
    # The archive has no times, for equal ones to be equal; a filesystem that clears by age has.
    sent = (path for path in (tmp_path / "releases" / release).rglob("*") if path.is_file())
    assert {time.time() - path.stat().st_mtime < 3600 for path in sent} == {True}


def test_two_laptops_of_one_user_send_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each took away what the other unpacked: the release then counted as whole and was not."""
    tar = tmp_path / "bin" / "tar"
    tar.parent.mkdir()
    other = "flock -n .install.lock touch was_not_locked"
    tar.write_text(f'#!/bin/sh\n{other}\nPATH=${{PATH#*:}} exec tar "$@"\n')
    tar.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tar.parent}:{os.environ['PATH']}")
    release = send(tmp_path / "code", FILES)
    assert content(tmp_path / "code" / "releases" / release) == FILES
    assert not (tmp_path / "code" / "was_not_locked").exists()


@pytest.mark.feature("S003-74")
def test_an_older_release_stays_and_is_not_sent_a_second_time(tmp_path: Path) -> None:
    first = send(tmp_path, FILES)
    inode = (tmp_path / "releases" / first).stat().st_ino
    second = send(tmp_path, {**FILES, "workloads/train.py": b"print(2)\n"})
    trained = tmp_path / "releases" / second / "workloads" / "train.py"
    assert trained.read_bytes() == b"print(2)\n"
    assert send(tmp_path, FILES) == first
    assert (tmp_path / "releases" / first).stat().st_ino == inode


def test_what_a_killed_delivery_left_is_made_anew(tmp_path: Path) -> None:
    part = tmp_path / "releases" / f"{hash_files(FILES)}.part"
    part.mkdir(parents=True)
    (part / "torn").touch()
    release = send(tmp_path, FILES)
    assert content(tmp_path / "releases" / release) == FILES
    assert not part.exists()


@pytest.mark.feature("S003-74")
def test_a_release_that_is_not_whole_is_not_trusted(tmp_path: Path) -> None:
    """A killed `pulumi up` leaves a half copied folder under the final name."""
    torn = tmp_path / "releases" / hash_files(FILES) / "workloads"
    torn.mkdir(parents=True)
    (torn / "half.py").touch()
    release = send(tmp_path, FILES)
    assert content(tmp_path / "releases" / release) == FILES


def test_code_that_cannot_be_installed_is_an_error_that_names_the_folder(tmp_path: Path) -> None:
    (tmp_path / "none").touch()
    with pytest.raises(JobsError, match=r"none: the code was not installed: .*mkdir"):
        send(tmp_path / "none", FILES)


def test_a_full_filesystem_is_one_line_with_the_way_out_and_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tar says it once for each of hundreds of files."""
    send(tmp_path, FILES)
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
        send(tmp_path, {**FILES, "workloads/train.py": b"print(2)\n"})
    said = str(refusal.value)
    assert said.count("No space left on device") == 1
    assert "\n" not in said
    assert "raise its size_gib and run pulumi up" in said
    (programs / "tar").unlink()
    assert content(tmp_path) == before
    assert [path.name for path in (tmp_path / "releases").glob("*.part")] == []


@pytest.mark.parametrize("kind", ["link", "folder", "writable", "behind a link"])
def test_an_attached_user_sends_nothing_below_what_another_user_can_exchange(
    neighbour: Neighbour, tmp_path: Path, kind: str
) -> None:
    """The next job would run what that user has put in its place by then."""
    below, mine = neighbour.folder / "me", tmp_path / "mine"
    mine.mkdir()
    if kind == "link":
        neighbour.run(f"ln -s {mine} me")
    elif kind == "folder":
        neighbour.run("mkdir me")
    elif kind == "writable":
        below.mkdir()
        below.chmod(0o777)
    else:
        neighbour.folder.chmod(0o777)
        below = tmp_path / "scratch"
        (neighbour.folder / "real").mkdir()
        below.symlink_to(neighbour.folder / "real")
    culprit = neighbour.folder if kind == "behind a link" else below
    attached = replace(OUTPUTS, code_path=f"{below}/lab/code", attached_key=tmp_path / "id")
    with pytest.raises(JobsError, match=f"{culprit}: is a .* of "):
        transfer.send(Local(), attached, FILES)
    assert not list(mine.iterdir())
    assert not list(below.iterdir())


def test_an_attached_user_sends_through_links_of_root(tmp_path: Path) -> None:
    """As sites have them: /scratch leads to the filesystem of the year."""
    real = tmp_path / "lustre7"
    real.mkdir()
    (tmp_path / "scratch").symlink_to("lustre7")
    places = {name: f"{tmp_path}/scratch/lab/{name}" for name in OUTPUTS.places}
    attached = replace(
        OUTPUTS,
        code_path=f"{tmp_path}/scratch/lab/code",
        places=places,
        attached_key=tmp_path / "id",
    )
    release = transfer.send(Local(), attached, FILES)
    assert content(real / "lab" / "code" / "current") == FILES
    assert (real / "lab" / "code" / "current").readlink() == Path("releases", release)
    made = [real / "lab", *(each for each in real.rglob("*") if each.is_dir())]
    assert {each.stat().st_mode & 0o077 for each in made} == {0}
