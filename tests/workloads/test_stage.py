"""Prepared data on the node's own disk: copied once, whole, trusted, with room, and removed again.

A tmpfs stands for shared storage here: another filesystem than that of the disk is asked for.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stacks.load import load_stack
from tests.another_user import Neighbour
from tests.workloads.ranks import REPOSITORY
from tests.workloads.test_train import launch, losses
from workloads.common import places as places_module
from workloads.common.places import PREPARED, Places, filesystem_of, stage
from workloads.train.tasks import open_task

pytestmark = pytest.mark.feature("S003-48")

_COPIES = """
import pathlib, sys
from workloads.common.places import PREPARED, Places, stage
print("asks", flush=True)
print(stage(pathlib.Path(sys.argv[1]), Places(), PREPARED).text, flush=True)
"""
_COPIES_HALF = """
import pathlib, sys, time
from workloads.common import places
def half(deadline):
    print("half\\n", end="", flush=True)  # one write: several files are copied at once
    time.sleep(600)
places._check = half
places.stage(pathlib.Path(sys.argv[1]), places.Places(), places.PREPARED)
"""
_WAITS = "\nsys.stdin.read()"


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place scratch, on a disk, with the folder that h200-elastic declares."""
    if filesystem_of(tmp_path) not in PREPARED.filesystems:
        pytest.skip(f"{tmp_path} is on no disk of this machine alone")
    folder = tmp_path / "scratch"
    (folder / "preprocessed").mkdir(parents=True)
    (folder / "preprocessed").chmod(0o1777)
    monkeypatch.setenv("SOPERATOR_PLACE_SCRATCH", str(folder))
    return folder


@pytest.fixture
def own(scratch: Path) -> Path:
    """Where this user's copies are."""
    return scratch / "preprocessed" / str(os.geteuid())


@pytest.fixture
def data(ram_disk: Path) -> Path:
    """A prepared data set on other storage."""
    folder = ram_disk / "glaive"
    folder.mkdir()
    (folder / "tokens_train.parquet").write_bytes(b"tokens" * 1000)
    (folder / "tokens_test.parquet").write_bytes(b"others")
    (folder / "manifest.json").write_text('{"format": 2}')
    (folder / "chats_train.jsonl").write_text("text, which no training reads\n")
    return folder


def copies(own: Path) -> set[Path]:
    """All that lies there, whole or not; not the file that is locked."""
    return set(own.iterdir()) - {own / ".lock"}


def python(code: str, data: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(data)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def user(data: Path, own: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has asked for the data, and still lives."""
    process = python(_COPIES + _WAITS, data)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)][1].count(str(own)) == 1
    yield process
    process.kill()
    process.communicate()


def test_h200_elastic_makes_the_folder_that_copies_go_to(public_key_file: Path) -> None:
    spec = load_stack("h200-elastic")
    (disk,) = spec.nodes.workers[0].local_disks
    where = Path(spec.storage.places["scratch"]) / PREPARED.folder
    assert where in {Path(disk.mount_path) / folder for folder in disk.folders}


def test_two_processes_of_a_node_copy_once_and_read_what_others_cannot_see(
    scratch: Path, own: Path, data: Path
) -> None:
    own.mkdir(mode=0o700)
    lock = (own / ".lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)  # as if a third one copied
    ranks = [python(_COPIES, data) for _ in range(2)]
    for each in ranks:
        assert each.stdout is not None
        assert each.stdout.readline() == "asks\n"
    time.sleep(0.5)
    assert copies(own) == set(), "they wait"
    lock.close()
    said = sorted(each.communicate()[0] for each in ranks)
    (target,) = copies(own)
    assert "0.00 GiB of data copied to" in said[0]
    assert said[1] == f"data are in {target} already\n"
    assert target.name.startswith("glaive-")
    names = {"tokens_train.parquet", "tokens_test.parquet", "manifest.json"}
    assert {path.name for path in target.iterdir()} == names
    assert all((target / name).read_bytes() == (data / name).read_bytes() for name in names)
    assert own.stat().st_mode & 0o077 == 0


def test_a_copy_that_was_killed_is_never_read_and_is_removed(own: Path, data: Path) -> None:
    process = python(_COPIES_HALF, data)
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    (partial,) = copies(own)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert partial.is_dir()
    staged = stage(data, Places(), PREPARED)
    assert "copied to" in staged.text
    assert copies(own) == {staged.path}
    name = "tokens_train.parquet"
    assert (staged.path / name).read_bytes() == (data / name).read_bytes()


@pytest.mark.parametrize("name", ["tokens_train.parquet", "manifest.json"])
def test_a_changed_data_set_is_copied_anew(own: Path, data: Path, name: str) -> None:
    first = stage(data, Places(), PREPARED).path
    file, info = data / name, (data / name).stat()
    file.write_bytes(b"x" * info.st_size)
    if name == "manifest.json":  # its content counts whatever its time says
        os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns))
    second = stage(data, Places(), PREPARED)
    assert second.path != first
    assert (second.path / name).read_bytes() == file.read_bytes() != (first / name).read_bytes()


def test_data_that_changes_while_it_is_copied_is_read_where_it_lies(
    own: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(_: float) -> None:
        (data / "tokens_test.parquet").write_bytes(b"of the next preparation")

    monkeypatch.setattr(places_module, "_check", changed)
    staged = stage(data, Places(), PREPARED)
    assert (staged.is_staged, staged.path) == (False, data)
    assert staged.text == f"data are not staged: {data} changed while it was copied"
    assert copies(own) == set()


def test_without_room_the_copy_longest_unused_goes_and_never_one_in_use(
    own: Path, data: Path, user: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (used,) = copies(own)
    kept = [own / name for name in ("older-1", "old-2")]
    for age, folder in zip((3000, 2000), kept, strict=True):
        folder.mkdir()
        (folder / "tokens_train.parquet").write_bytes(b"x" * 8000)
        os.utime(folder, (time.time() - age,) * 2)
    os.utime(used, (0, 0))
    usage = shutil.disk_usage(own)

    def disk(_: Path) -> Any:
        """A disk of 20,000 bytes that these copies fill."""
        lying = sum(path.stat().st_size for path in own.rglob("*.parquet"))
        return usage._replace(free=33_000 - lying)

    monkeypatch.setattr(shutil, "disk_usage", disk)
    (data / "manifest.json").write_text('{"format": 3}')
    staged = stage(data, Places(), PREPARED)
    assert {used, kept[1], staged.path} == copies(own), staged.text

    (data / "tokens_train.parquet").write_bytes(b"x" * 20_000)
    user.kill()
    user.wait()
    full = stage(data, Places(), PREPARED)
    assert (full.is_staged, full.path) == (False, data)
    assert "GiB of room in" in full.text
    assert copies(own) == {kept[1], staged.path}, "but for the oldest nothing goes in vain"


def test_a_copy_that_nobody_used_for_a_week_goes_with_the_next(own: Path, data: Path) -> None:
    (own / "glaive-of-before").mkdir(parents=True)
    # Of a process that was killed while it removed that copy, which has been made anew since.
    (own / ".glaive-of-before.old" / "rest").mkdir(parents=True)
    own.chmod(0o700)
    os.utime(own / "glaive-of-before", (time.time() - 8 * 24 * 3600,) * 2)
    staged = stage(data, Places(), PREPARED)
    assert copies(own) == {staged.path}


def test_what_another_user_may_have_written_is_not_read(
    neighbour: Neighbour, data: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOPERATOR_PLACE_SCRATCH", str(neighbour.folder))

    beside = neighbour.folder / f"preprocessed-{os.geteuid()}"

    def said() -> str:
        staged = stage(data, Places(), PREPARED)
        assert (staged.path == data) is not staged.is_staged
        return staged.text

    folder, uid = neighbour.folder / "preprocessed", os.geteuid()
    neighbour.run(f"mkdir preprocessed preprocessed/{uid}")
    assert f"copied to {beside}/" in said()
    neighbour.run("chmod 1777 preprocessed")  # his own all the same: he can exchange what is in it
    shutil.rmtree(beside)
    neighbour.run(f"mkdir {beside.name}")
    assert f"not staged: {beside}: is of nobody" in said()
    shutil.rmtree(folder)
    folder.mkdir()
    folder.chmod(0o777)
    assert f"not staged: {beside}: is of nobody" in said()
    folder.chmod(0o1777)  # as the disk of a stack has it
    neighbour.run(f"mkdir preprocessed/{uid}")
    assert f"not staged: {folder / str(uid)}: is of nobody" in said()
    (folder / str(uid)).rmdir()
    target = stage(data, Places(), PREPARED).path
    assert target.parent == folder / str(uid)
    with pytest.raises(AssertionError, match="Permission denied"):
        neighbour.run(f"ls {target}")
    target.chmod(0o777)
    assert f"not staged: {target}: has mode 0777" in said()
    shutil.rmtree(target)
    target.symlink_to(neighbour.folder)
    assert f"not staged: {target}: is a link" in said()


def test_two_users_have_a_copy_each_where_no_stack_made_a_folder(
    neighbour: Neighbour, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one's folder, which nobody else may write to, once stood in the other's way."""
    scratch = neighbour.folder / "scratch"
    scratch.mkdir()
    scratch.chmod(0o1777)
    monkeypatch.setenv("SOPERATOR_PLACE_SCRATCH", str(scratch))
    neighbour.run("mkdir scratch/preprocessed; mkdir -m 700 scratch/preprocessed/65534")
    staged = stage(data, Places(), PREPARED)
    assert staged.path.parent == scratch / f"preprocessed-{os.geteuid()}", staged.text
    assert stage(data, Places(), PREPARED).text == f"data are in {staged.path} already"


def test_a_copy_that_is_there_waits_for_no_other(own: Path, data: Path) -> None:
    first = stage(data, Places(), PREPARED)
    with (own / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as if a process copied other data
        assert stage(data, Places(), PREPARED).path == first.path


def test_who_may_not_wait_so_long_reads_the_data_where_it_lies(own: Path, data: Path) -> None:
    """Else the other nodes, which wait for it with a limit, would end the run, again and again."""
    own.mkdir(mode=0o700)
    with (own / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        late = stage(data, Places(), PREPARED, limit_s=0.3)
    assert (late.is_staged, late.path) == (False, data)
    assert late.text == ("data are not staged: no copy in the time that this process may wait")
    slow = stage(data, Places(), PREPARED, limit_s=-1)
    assert (slow.is_staged, copies(own)) == (False, set())


def test_a_full_disk_ends_all_that_is_copied(
    own: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads went on into files that were deleted, and filled what was free again."""
    for number in range(6):
        (data / f"tokens_{number}.parquet").write_bytes(b"x" * 100)
    reads: list[str] = []

    def full(_: float) -> None:
        reads.append(threading.current_thread().name)
        if len(reads) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        time.sleep(0.2)

    monkeypatch.setattr(places_module, "_check", full)
    monkeypatch.setattr(places_module, "_BLOCK_BYTES", 10)
    staged = stage(data, Places(), PREPARED)
    assert "No space left on device" in staged.text
    running = {thread.name for thread in threading.enumerate()}
    assert not running & set(reads), "which still write"
    assert copies(own) == set()


def test_without_a_disk_of_the_node_data_is_read_where_it_lies(
    data: Path, scratch: Path, ram_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(folder: Path, at: Path | None) -> str:
        environment = {} if at is None else {"SOPERATOR_PLACE_SCRATCH": str(at)}
        staged = stage(folder, Places(environment), PREPARED)
        assert (staged.is_staged, staged.path) == (False, folder)
        return staged.text

    assert "names no place scratch (storage.places.scratch)" in said(data, None)
    no_disk = f"the place scratch, {ram_disk}, is tmpfs, not ext4 or xfs or btrfs"
    assert said(data, ram_disk) == f"data are not staged: {no_disk}"
    there = scratch / "glaive"
    shutil.copytree(data, there)
    assert "lies on the filesystem of the place scratch" in said(there, scratch)
    assert "holds no tokens_* or rows_*" in said(ram_disk, scratch)
    assert "No such file" in said(data, scratch / "gone")
    monkeypatch.setattr(places_module, "filesystem_of", lambda path: "virtiofs")
    assert "is virtiofs, not ext4" in said(data, scratch)


def test_a_training_is_the_same_to_the_bit_wherever_its_data_lies(
    places: Path, ram_disk: Path, scratch: Path, own: Path, run: Any, recipe_file: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Also where a run goes on with another number of ranks, from data that lies elsewhere."""
    monkeypatch.setenv("SOPERATOR_PLACE_DATA", str(ram_disk))
    run("prepare-data")
    options = ("train.sequence_length=1600", "train.overlong=drop")
    results: dict[str, Any] = {}
    for job_id, where in (("12", "never"), ("13", "auto")):
        done = launch(places, recipe_file, job_id, *options, f"train.stage={where}")
        assert done.returncode == 0, done.stderr
        results[where] = json.loads(done.stdout.splitlines()[-1])
        if where == "auto":
            assert done.stderr.count("of data copied to") == 1, done.stderr
    (copy,) = copies(own)
    assert losses(places, "13") == losses(places, "12")
    finals = [places / "chkpt" / "finetune" / job_id / "final" for job_id in ("12", "13")]
    first, second = ((each / "adapter_model.safetensors").read_bytes() for each in finals)
    assert first == second
    metrics = results["auto"]["metrics"]
    assert metrics["is_staged"] == 1
    assert metrics["staged_bytes"] == sum(path.stat().st_size for path in copy.iterdir())
    assert "is_staged" not in results["never"]["metrics"]
    for key in ("data_hash", "artifacts"):
        known = [results[where][key] for where in ("never", "auto")]
        known = [each["data_file"] if key == "artifacts" else each for each in known]
        assert known[0] == known[1]
    assert known[0] == str(ram_disk / "prepared" / "tokens_train.parquet")

    read: list[Path] = []

    def opened(*arguments: Any, **options: Any) -> Any:
        read.append(options["dataset"])
        return open_task(*arguments, **options)

    monkeypatch.setattr("workloads.train.inputs.open_task", opened)
    half = places / "chkpt" / "finetune" / "12" / "checkpoint-2"
    for job_id, where in (("14", "auto"), ("15", "never")):
        monkeypatch.setenv("SLURM_JOB_ID", job_id)
        code, _ = run("train", *options, f"train.stage={where}", f"train.resume={half}")
        assert code == 0
    assert losses(places, "14") == losses(places, "15") != []

    (copy / "tokens_train.parquet").write_bytes(b"of a failing disk")
    monkeypatch.setenv("SLURM_JOB_ID", "16")
    code, record = run("train", *options, f"train.resume={half}")
    assert (code, record["data_hash"]) == (0, results["never"]["data_hash"])
    assert losses(places, "16") == losses(places, "15")
    assert record["metrics"]["is_staged"] == 0
    assert copies(own) == set(), "the next run makes a new one"
    prepared = ram_disk / "prepared"
    assert read == [copy, prepared, copy, prepared]
