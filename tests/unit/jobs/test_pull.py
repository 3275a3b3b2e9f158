"""What crosses the connection lands in the job's folder as files, whole or not at all."""

from __future__ import annotations

import gzip
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from infra.clients.errors import JobsError, NothingThereError
from infra.clients.pulumi import StackOutputs
from infra.clients.ssh import Connection, ConnectionLostError, Result
from infra.jobs import history, transfer
from tests.unit.jobs.login_node import planned

OUTPUTS = StackOutputs(
    stack="demo",
    login_ip="127.0.0.1",
    ssh_port=22,
    login_host_key="",
    code_path="/code",
    code_hash="",
    places={},
    jobs={},
)
PIECE = 4096


class Cluster:
    """A login node whose shell is this machine's; it may lose the connection after some bytes."""

    def __init__(self, folder: Path, *cuts: int) -> None:
        self.folder = folder
        self.cuts = list(cuts)
        self.sent_bytes = 0
        self.before_stream: Callable[[], object] = lambda: None
        (folder / "results" / "7").mkdir(parents=True)
        (folder / "logs").mkdir()

    def write(self, path: str, content: bytes) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)

    def run_bytes(self, command: str, *, stdin: bytes = b"") -> tuple[Result, bytes]:
        done = subprocess.run(
            ["bash", "-c", command], input=stdin, capture_output=True, check=False
        )
        text = done.stdout.decode(errors="replace")
        result = Result(
            command=command, exit_code=done.returncode, stdout=text, stderr=done.stderr.decode()
        )
        return result, done.stdout

    def stream(self, command: str, *, poll_s: float, stdin: bytes = b"") -> Iterator[bytes]:
        self.before_stream()
        content = self.run_bytes(command, stdin=stdin)[1]
        limit = self.cuts.pop(0) if self.cuts else len(content)
        for start in range(0, min(limit, len(content)), PIECE):
            piece = content[start : min(start + PIECE, limit)]
            self.sent_bytes += len(piece)
            yield piece
        if limit < len(content):
            raise ConnectionLostError("cut")

    def reopen(self) -> None:
        """It is there again at once."""


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "cluster")


def pulled(cluster: Cluster, state: Path) -> Path:
    places = {name: str(cluster.folder / name) for name in ("results", "logs")}
    outputs = replace(OUTPUTS, places=places)
    shell = cast("Connection", cluster)
    return transfer.pull(shell, outputs, "finetune", "7", state=state / "state")


def noise(seed: int, num_bytes: int) -> bytes:
    """Bytes that gzip cannot make shorter."""
    return random.Random(seed).randbytes(num_bytes)


def test_results_and_log_become_files_of_the_job(cluster: Cluster, tmp_path: Path) -> None:
    cluster.write("results/7/a/loss of 1.json", b"new\n")
    cluster.write("results/7/empty", b"")
    cluster.write("results/7/new\nline", b"odd name")
    cluster.write("logs/finetune_7.log", b"log\n")
    folder = pulled(cluster, tmp_path)
    assert folder == tmp_path / "state" / "runs" / "demo" / "7"
    assert (folder / "a" / "loss of 1.json").read_bytes() == b"new\n"
    assert (folder / "empty").read_bytes() == b""
    assert (folder / "new\nline").read_bytes() == b"odd name"
    assert (folder / "job.log").read_bytes() == b"log\n"


def test_a_second_pull_replaces_the_first_but_for_the_submission(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.write("results/7/new", b"new")
    folder = tmp_path / "state" / "runs" / "demo" / "7"
    folder.mkdir(parents=True)
    (folder / "submission.json").write_text("{}")
    (folder / "old").write_text("old")
    pulled(cluster, tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["new", "submission.json"]
    assert not list(folder.parent.glob(".*"))


@pytest.mark.parametrize("cut", [1, PIECE, 50_000, 99_000])
def test_a_lost_connection_costs_no_byte_twice(cluster: Cluster, tmp_path: Path, cut: int) -> None:
    cluster.cuts = [cut]
    content = {f"results/7/file-{number}": noise(number, 25_000) for number in range(4)}
    for path, value in content.items():
        cluster.write(path, value)
    folder = pulled(cluster, tmp_path)
    for path, value in content.items():
        assert (folder / Path(path).name).read_bytes() == value
    # gzip's header, trailer and blocks, and what it had not yet told when the connection was cut
    assert cluster.sent_bytes < 100_000 + 2 * PIECE + 33_000


def test_what_a_killed_pull_brought_is_not_sent_again(cluster: Cluster, tmp_path: Path) -> None:
    cluster.write("results/7/big", noise(1, 400_000))
    part = tmp_path / "state" / "runs" / "demo" / ".7.part"
    part.mkdir(parents=True)
    (part / "big").write_bytes(noise(1, 400_000)[:300_000])
    (part / "gone").write_bytes(b"left by another job with this id")
    folder = pulled(cluster, tmp_path)
    assert (folder / "big").read_bytes() == noise(1, 400_000)
    assert not (folder / "gone").exists()
    assert cluster.sent_bytes < 110_000


def test_a_pull_that_is_killed_as_it_takes_the_place_of_another_keeps_the_submission(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the same job would be submitted once more."""
    cluster.write("results/7/new", b"new")
    made = replace(planned(), stack="demo", job_id="7")
    history.remember(tmp_path / "state", made)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            pulled(cluster, tmp_path)
    assert history.submissions(tmp_path / "state", "demo") == (made,)
    pulled(cluster, tmp_path)
    assert history.submissions(tmp_path / "state", "demo") == (made,)


def test_a_second_pull_of_the_same_job_at_once_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    cluster.write("results/7/new", b"new")
    refused: list[str] = []

    def second() -> None:
        cluster.before_stream = lambda: None
        with pytest.raises(JobsError) as error:
            pulled(cluster, tmp_path)
        refused.append(str(error.value))

    cluster.before_stream = second
    folder = pulled(cluster, tmp_path)
    assert refused[0].endswith("another pull of this job is on its way here; wait for its end")
    assert (folder / "new").read_bytes() == b"new"


@pytest.mark.parametrize("begun", [b"other beginning", b"longer than what is there now"])
def test_the_beginning_of_another_version_is_thrown_away(
    cluster: Cluster, tmp_path: Path, begun: bytes
) -> None:
    cluster.write("results/7/summary", b"the second version")
    part = tmp_path / "state" / "runs" / "demo" / ".7.part"
    part.mkdir(parents=True)
    (part / "summary").write_bytes(begun)
    assert (pulled(cluster, tmp_path) / "summary").read_bytes() == b"the second version"


def test_the_log_of_a_running_job_is_pulled_as_far_as_it_was(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.write("logs/finetune_7.log", b"step 1\n")
    cluster.before_stream = lambda: cluster.write("logs/finetune_7.log", b"step 1\nstep 2\n")
    assert (pulled(cluster, tmp_path) / "job.log").read_bytes() == b"step 1\n"


def test_a_file_that_changes_all_the_time_is_refused_and_the_older_pull_stays(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.write("results/7/state", b"0000")
    kept = pulled(cluster, tmp_path)
    cluster.write("results/7/state", b"1111")
    cluster.before_stream = lambda: cluster.write("results/7/state", b"2222")
    with pytest.raises(JobsError, match="1 of 1 files are not what the cluster listed"):
        pulled(cluster, tmp_path)
    assert (kept / "state").read_bytes() == b"0000"


def test_a_file_that_got_shorter_is_told(cluster: Cluster, tmp_path: Path) -> None:
    cluster.write("results/7/state", b"0000")
    cluster.before_stream = lambda: cluster.write("results/7/state", b"0")
    with pytest.raises(JobsError, match="got shorter while it was pulled"):
        pulled(cluster, tmp_path)


def test_a_job_that_left_nothing_is_told(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(JobsError, match="no results and no log on the cluster yet"):
        pulled(cluster, tmp_path)


@pytest.mark.parametrize("path", ["/results/7/../../escaped", "/tmp/escaped"])
def test_a_path_outside_the_folder_is_refused(
    cluster: Cluster, tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Result(command="", exit_code=0, stdout="", stderr="")
    entry = f"{'0' * 64} 4 {path}\0".encode()
    monkeypatch.setattr(cluster, "run_bytes", lambda *_, **__: (answer, entry))
    with pytest.raises(JobsError, match="outside the job's folder"):
        pulled(cluster, tmp_path)


def test_links_stay_on_the_cluster(cluster: Cluster, tmp_path: Path) -> None:
    cluster.write("results/7/file", b"x")
    (cluster.folder / "results" / "7" / "link").symlink_to("/etc/passwd")
    assert [path.name for path in pulled(cluster, tmp_path).iterdir()] == ["file"]


class Hostile(Cluster):
    """A login node that lists what it likes."""

    def __init__(self, folder: Path, *entries: str) -> None:
        super().__init__(folder)
        self.entries = entries

    def run_bytes(self, command: str, *, stdin: bytes = b"") -> tuple[Result, bytes]:
        if b"find " not in stdin:
            return super().run_bytes(command, stdin=stdin)
        listing = "".join(f"{each}\0" for each in self.entries).format(folder=self.folder)
        return Result(command=command, exit_code=0, stdout="", stderr=""), listing.encode()


HASH = "0" * 64


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (f"{HASH} {10**15} {{folder}}/results/7/a", r"931322.57 GiB in 1 files, and .* are free"),
        (f"{HASH} -1 {{folder}}/results/7/a", "the cluster sent .* for a file; pull it again"),
        ("no listing", "the cluster sent 'no listing' for a file; pull it again"),
        (f"{HASH} 1 {{folder}}/results/7/../a", "a path outside the job's folder"),
        (f"{HASH} 1 {{folder}}/results/7", "a path outside the job's folder"),
    ],
)
def test_a_hostile_listing_is_refused_before_a_byte_comes(
    tmp_path: Path, entry: str, why: str
) -> None:
    cluster = Hostile(tmp_path / "cluster", entry)
    with pytest.raises(JobsError, match=why):
        pulled(cluster, tmp_path)
    assert cluster.sent_bytes == 0


def test_more_files_than_a_disk_has_inodes_for_are_refused(tmp_path: Path) -> None:
    entries = [f"{HASH} 0 {{folder}}/results/7/{number}" for number in range(100_001)]
    cluster = Hostile(tmp_path / "cluster", *entries)
    with pytest.raises(JobsError, match=r"job 7: 100,001 files, and at most 100,000 come here"):
        pulled(cluster, tmp_path)


@pytest.mark.parametrize("name", ["submission.json", "submission.json/x", "Submission.JSON"])
def test_what_was_asked_for_is_not_taken_from_the_cluster(
    cluster: Cluster, tmp_path: Path, name: str
) -> None:
    """A submission says which job did what: a node could have others counted as done."""
    cluster.write(f"results/7/{name}", b'{"job": "forged"}')
    cluster.write("results/7/new", b"new")
    folder = pulled(cluster, tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["new"]


def test_a_packed_stream_comes_in_pieces_that_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_PIECE_BYTES", 1 << 16)
    packed = gzip.compress(bytes(10 << 20))
    pieces = list(transfer._unpacked(iter([packed])))
    assert sum(map(len, pieces)) == 10 << 20
    assert max(map(len, pieces)) == 1 << 16


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user, which only root may")
def test_what_another_user_put_there_for_a_job_to_come_is_not_the_jobs(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Everybody could write into the places once, and ids count up."""
    for name in ("results/7/run_record.json", "logs/finetune_7.log"):
        cluster.write(name, b"{}")
    for name in ("results/7", "logs/finetune_7.log"):
        os.chown(cluster.folder / name, 5, 60)
    with pytest.raises(NothingThereError):
        pulled(cluster, tmp_path)
    os.chown(cluster.folder / "results/7", 0, 0)
    assert [path.name for path in pulled(cluster, tmp_path).iterdir()] == ["run_record.json"]
