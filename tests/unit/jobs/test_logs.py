"""A log goes on at its byte after a lost connection; nothing is doubled and nothing is missing."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from typer.testing import CliRunner

from infra.cli import context
from infra.cli.main import app
from infra.clients.errors import JobsError
from infra.clients.slurm import Job
from infra.clients.ssh import Connection, ConnectionLostError, Result
from infra.jobs import follow
from infra.jobs.history import IS_OWN
from tests.another_user import UID, Neighbour
from tests.unit.jobs.test_submit import OUTPUTS

LOG = b"step 1\nstep 2\nstep 3\n"
ENDED = (
    "JobId=12 JobName=finetune JobState=COMPLETED ExitCode=0:0 RunTime=00:00:09 "
    "SubmitTime=2026-11-21T05:00:00 StartTime=2026-11-21T05:00:01 "
    "EndTime=2026-11-21T05:00:10 NodeList=worker-0"
)


class Cluster:
    """A login node that loses the connection after so many bytes, and is away so many times."""

    def __init__(self, *cuts: int, away: int = 0, log: bytes = LOG, ended: str = ENDED) -> None:
        self.log = log
        self.ended = ended
        self.cuts = list(cuts)
        self.away = away
        self.opened = 0

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        stdout = f"{len(self.log)}\n" if command.startswith("wc") else self.ended
        # Nothing lies where jobs wrote before users had folders of their own.
        code = int("is_own" in command)
        return Result(command=command, exit_code=code, stdout=stdout, stderr="")

    def stream(self, command: str, *, poll_s: float, stdin: bytes = b"") -> Iterator[bytes]:
        start = int(re.findall(r"--bytes=\+(\d+)", command)[0]) - 1
        if self.cuts:
            yield self.log[start : start + self.cuts.pop(0)]
            raise ConnectionLostError("cut")
        yield self.log[start:]

    def reopen(self) -> None:
        if self.away:
            self.away -= 1
            raise ConnectionLostError("nobody answers")
        self.opened += 1


def followed(cluster: Cluster, patience_s: float = 60) -> tuple[bytes, list[str]]:
    received = bytearray()
    lost: list[str] = []
    job = follow.follow(
        cast("Connection", cluster),
        "/logs/finetune_12.log",
        "12",
        write=received.extend,
        on_lost=lambda error: lost.append(str(error)),
        patience_s=patience_s,
    )
    assert job.status == 0
    return bytes(received), lost


@pytest.mark.feature("S001-95")
@pytest.mark.parametrize(
    ("there", "name"),
    [
        ([], "logs/users/ann/finetune_12.log"),
        (["logs/users/ann/finetune_12.log"], "logs/users/ann/finetune_12.log"),
        (["logs/finetune_12.log"], "logs/finetune_12.log"),
        (["logs/users/ann/finetune_12.log", "logs/finetune_12.log"], None),
    ],
)
def test_the_log_of_a_job_is_its_own_and_before_users_had_folders_the_place_s(
    tmp_path: Path, there: list[str], name: str | None
) -> None:
    """Both streams of a job are in it (job.sh.j2: --output)."""
    (tmp_path / "logs" / "users" / "ann").mkdir(parents=True)
    for each in there:
        (tmp_path / each).touch()

    class Here:
        def run(self, command: str, *, stdin: bytes = b"") -> Result:
            code = subprocess.run(["bash", "-c", command]).returncode
            return Result(command=command, exit_code=code, stdout="", stderr="")

    places = {"logs": f"{tmp_path}/logs", "results": f"{tmp_path}/results"}
    outputs = replace(OUTPUTS, places=places).as_user("ann")
    job = Job(id="12", name="finetune", state="FAILED")
    assert follow.path_of(Here(), outputs, job) == str(tmp_path / (name or there[0]))


def test_what_is_no_size_of_a_log_is_an_error_in_one_line(tmp_path: Path) -> None:
    """A folder in its place, or a line that ~/.bashrc prints to every command."""

    class Here:
        def run(self, command: str, *, stdin: bytes = b"") -> Result:
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
            return Result(command=command, exit_code=0, stdout=done.stdout, stderr="")

    with pytest.raises(JobsError, match=rf"{tmp_path}: the login node printed '0.n0' for a number"):
        follow._size(cast("Connection", Here()), str(tmp_path))


def test_a_log_that_is_not_disturbed_comes_once() -> None:
    assert followed(Cluster()) == (LOG, [])


@pytest.mark.feature("S001-34")
@pytest.mark.parametrize("cut", range(1, len(LOG)))
def test_a_connection_lost_at_any_byte_costs_none(cut: int) -> None:
    assert followed(Cluster(cut)) == (LOG, ["cut"])


def test_two_losses_and_a_login_node_that_is_away_for_a_while() -> None:
    cluster = Cluster(3, 5, away=1)
    assert followed(cluster) == (LOG, ["cut", "cut"])
    assert cluster.opened == 2


@pytest.mark.feature("S001-34")
def test_a_log_that_was_emptied_meanwhile_is_read_from_its_start() -> None:
    cluster = Cluster(7)
    cluster.reopen = lambda: setattr(cluster, "log", b"new\n")  # type: ignore[method-assign]
    assert followed(cluster)[0] == b"step 1\nnew\n"


@pytest.mark.feature("S001-34", "S001-95")
@pytest.mark.parametrize(
    ("words", "is_followed"), [([], True), (["-f"], True), (["--no-follow"], False)]
)
def test_the_verb_follows_to_the_end_unless_it_is_told_not_to(
    words: list[str], is_followed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tail -f` of seed 001, without its end by Ctrl-C."""
    cluster = Cluster(ended=ENDED.replace("COMPLETED ExitCode=0:0", "FAILED ExitCode=3:0"))
    asked: list[str] = []

    def read(command: str, *, poll_s: float) -> Iterator[bytes]:
        asked.append(command)
        return Cluster.stream(cluster, command, poll_s=poll_s)

    cluster.stream = read  # type: ignore[method-assign]
    paths = [lambda name, number, at=at: f"/{at}/{name}_{number}.log" for at in ("logs", "before")]
    outputs = SimpleNamespace(log_path=paths[0], before=SimpleNamespace(log_path=paths[1]))
    monkeypatch.setattr(context, "caller", lambda stack, identity: outputs)
    monkeypatch.setattr(context, "connect", lambda outputs, identity: nullcontext(cluster))
    monkeypatch.setattr(context, "node_watch", lambda stack: lambda job: None)
    shown = CliRunner().invoke(app, ["logs", "12", *words])
    assert (shown.stdout, shown.exit_code) == (LOG.decode(), 3 if is_followed else 0)
    assert [" -F " in command for command in asked] == [is_followed]


def test_after_the_patience_the_last_refusal_is_told() -> None:
    with pytest.raises(JobsError, match="nobody answers"):
        followed(Cluster(3, away=99), patience_s=0)


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_in_a_place_of_root_the_callers_own_files_of_before_are_found_and_no_neighbours(
    neighbour: Neighbour, shell: str
) -> None:
    """Who typed `sbatch jobs/NAME` there has results beside those of root's jobs."""
    place = neighbour.folder / "place"
    for name in ("of-root", "of-caller", "of-another"):
        (place / name).mkdir(parents=True)
    os.chown(place / "of-caller", UID, UID)
    (place / "link").symlink_to("of-caller")
    for name in ("of-another", "link"):
        os.chown(place / name, 5, 60, follow_symlinks=False)
    names = "of-root of-caller of-another link nothing"
    asked = f"{IS_OWN}for name in {names}; do ! is_own place/$name || echo $name; done"
    assert neighbour.run(f"{shell} -euc {shlex.quote(asked)}").split() == ["of-root", "of-caller"]
