"""`soperator status` prints each job's figures under the heading that names them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from infra.cli.main import app
from infra.clients.errors import UnknownJobError
from infra.clients.slurm import Job
from infra.jobs import history
from infra.jobs.follow import in_words
from tests.unit.jobs.login_node import planned
from tests.unit.jobs.test_parse import FIXTURES
from tests.unit.jobs.test_submit import OUTPUTS, Forgetful, Recorded

HEADINGS = ["ID", "JOB", "STATE", "EXIT", "TIME", "STARTED", "WHERE", "EXPECTED"]


class Cluster(Recorded):
    """A recorded shell as a connection."""

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, public_key_file: Path) -> Cluster:
    made = Cluster()
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path))
    monkeypatch.setattr("infra.cli.context.caller", lambda *_: OUTPUTS)
    monkeypatch.setattr("infra.cli.context.connect", lambda *_: made)
    return made


def rows(*words: str) -> list[list[str]]:
    """The cells of what is printed."""
    done = CliRunner().invoke(app, ["status", *words, "--stack", "local"])
    assert done.exit_code == 0, done.output
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.feature("S001-94", "S002-45")
def test_one_job_is_shown_with_its_end_its_times_and_its_nodes(cluster: Cluster) -> None:
    cluster.stdout = (FIXTURES / "scontrol_22.05.txt").read_text(encoding="utf-8")
    started = "2026-11-21T05:44:38"
    assert rows("1") == [
        HEADINGS,
        ["1", "probe", "FAILED", "3", "00:00:01", started, "worker-0", "-"],
    ]
    (limited,) = rows("5")[1:]
    assert limited[2:4] == ["RUNNING", "-"]
    assert " ".join(limited[6:]) == "worker-[0-1] ends 2026-11-21T06:44:40 at the latest"
    told = CliRunner().invoke(app, ["status", "1", "--stack", "local"]).stderr
    assert "FAILED: it ended with exit code 3; " in told
    assert "soperator logs 1 -s local" in told


@pytest.mark.feature("S000-61", "S002-44", "S003-80")
def test_the_queue_is_shown_with_what_runs_where_and_why_the_rest_waits(cluster: Cluster) -> None:
    cluster.stdout = (FIXTURES / "squeue_22.05.txt").read_text(encoding="utf-8") + "--\n"
    head, *jobs = rows()
    assert head == HEADINGS
    assert [job[0] for job in jobs] == ["1", "2", "3", "4", "5", "6"]
    plain = CliRunner().invoke(app, ["status", "--stack", "local", "--format", "json"]).stdout
    found = {job["id"]: job for job in json.loads(plain)}
    assert (found["5"]["state"], found["5"]["where"]) == ("RUNNING", "worker-[0-1]")
    assert (found["6"]["state"], found["6"]["where"]) == ("PENDING", "JobHeldUser")
    assert found["6"]["reason"] == in_words("JobHeldUser") != "JobHeldUser"


class Lost(Forgetful):
    """The connection to a cluster whose slurmctld lost job 12."""

    def __enter__(self) -> Lost:
        return self

    def __exit__(self, *_: object) -> None: ...

    def stream(self, command: str, *, poll_s: float) -> Iterator[bytes]:
        yield b"first\nlast\n"[int(command.split("+")[1].split()[0]) - 1 :]


@pytest.fixture
def lost(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.cli.context.connect", lambda *_: Lost())


def test_a_job_that_slurmctld_lost_has_its_name_and_is_explained_once(
    lost: None, tmp_path: Path
) -> None:
    """Accounting calls it `allocation`, and PENDING for ever."""
    history.remember(tmp_path, replace(planned(), job_id="12"))
    done = CliRunner().invoke(app, ["status", "--stack", "local"])
    assert [line.split()[:4] for line in done.stdout.splitlines()[1:]] == [
        ["12", "finetune", "FORGOTTEN", "-"],
        ["13", "tune", "RUNNING", "-"],
    ]
    assert done.stderr.count("job 12: slurmctld has forgotten it") == 1
    plain = CliRunner().invoke(app, ["status", "--stack", "local", "--format", "json"]).stdout
    found = json.loads(plain)[0]
    assert (found["name"], found["outcome"]["kind"]) == ("finetune", "FORGOTTEN")
    assert found["outcome"]["next_step"].startswith("soperator submit finetune -s local ")


ENDS = {
    "its record tells how": (Job(id="12", name="finetune", state="COMPLETED", exit_code=0), 0),
    "nobody knows how": (UnknownJobError("job 12: Slurm has forgotten it"), 1),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_log_of_a_job_that_slurmctld_loses_meanwhile_ends_with_what_is_known(
    lost: None, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    def follow(*_: object, write: Callable[[bytes], None], **__: object) -> Job:
        write(b"first\n")
        raise UnknownJobError("job 12: Slurm knows no such job")

    (last, code) = ENDS[end]
    find = Mock(side_effect=[Job(id="12", name="finetune", state="RUNNING"), last])
    monkeypatch.setattr("infra.jobs.follow.find", find)
    monkeypatch.setattr("infra.jobs.follow.follow", follow)
    done = CliRunner().invoke(app, ["logs", "12", "--stack", "local"])
    assert (done.exit_code, done.stdout) == (code, "first\n" if code else "first\nlast\n")
    assert "job 12: None" not in done.stderr
    assert ("Slurm has forgotten it" if code else "job 12: COMPLETED") in done.stderr
