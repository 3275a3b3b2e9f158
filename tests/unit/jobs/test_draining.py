"""Jobs on nodes that a change takes are named, and a preview never fails for not knowing them."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.clients.errors import JobsError
from infra.clients.ssh import Result
from infra.jobs.nodes import describe, describe_jobs, jobs_on
from infra.state import State

QUEUE = """\
12|finetune|RUNNING|1:02:03|2026-11-21T05:00:00|2026-11-21T05:00:01|(null)|worker-[0-1]
13|serve|RUNNING|2-00:00:00|2026-11-19T05:00:00|2026-11-19T05:00:01|(null)|worker-3
14|waits|SUSPENDED|0:10|2026-11-21T05:00:00|2026-11-21T05:00:01|(null)|worker-2
"""


class Shell:
    """A login node whose squeue prints this."""

    def __init__(self, stdout: str, exit_code: int = 0) -> None:
        self.stdout, self.exit_code = stdout, exit_code
        self.commands: list[str] = []

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        self.commands.append(command)
        return Result(
            command=command, exit_code=self.exit_code, stdout=self.stdout, stderr="slurm is away"
        )


def test_only_jobs_that_hold_one_of_the_nodes_are_found():
    found = jobs_on(Shell(QUEUE), ["worker-1", "worker-2"])
    assert [job.id for job in found] == ["12", "14"]


def test_no_name_of_a_node_reaches_the_command():
    """squeue refuses a whole list for one name that it does not know."""
    shell = Shell(QUEUE)
    jobs_on(shell, ["worker-9"])
    assert "worker" not in shell.commands[0]


def test_a_slurm_that_is_away_is_an_error_with_its_last_words():
    with pytest.raises(JobsError, match="slurm is away"):
        jobs_on(Shell("", exit_code=1), ["worker-0"])


def test_jobs_are_told_with_their_time_and_place():
    assert describe(jobs_on(Shell(QUEUE), ["worker-0", "worker-3"])) == (
        "Jobs on these nodes, which the change ends: 2\n"
        " 12 finetune, 1:02:03 so far, on worker-[0-1]\n"
        " 13 serve, 2-00:00:00 so far, on worker-3\n"
    )
    assert describe(()) == "Jobs on these nodes: none runs now\n"


def test_many_jobs_are_counted():
    line = QUEUE.splitlines()[0]
    queue = "\n".join(line.replace("12|", f"{at}|", 1) for at in range(30))
    lines = describe(jobs_on(Shell(queue), ["worker-0"])).splitlines()
    assert lines[-1] == " and 10 more: squeue"


def test_a_stack_without_a_login_node_is_told_and_no_error(tmp_path: Path):
    answer = describe_jobs("s", {"login_ip": ""}, ["worker-0"], tmp_path / "key")
    assert answer.startswith("Jobs on these nodes: not checked: s: outputs login_ip")


def test_a_login_node_that_is_away_is_told_and_no_error(tmp_path: Path):
    outputs = {
        "login_ip": "127.0.0.1",
        "ssh_port": 1,
        "login_host_key": f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'A' * 43}",
        "code_path": "/c",
        "code_hash": "h",
        "places": {"logs": "/l"},
        "jobs": {"a": "b"},
    }
    answer = describe_jobs("s", outputs, ["worker-0"], tmp_path / "key")
    assert answer.startswith("Jobs on these nodes: not checked: ")


def test_the_key_is_the_private_half_of_the_declared_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SOPERATOR_SSH_PUBLIC_KEY_FILE", "/k/id.pub")
    assert State(tmp_path).user_key == Path("/k/id")
    monkeypatch.delenv("SOPERATOR_SSH_PUBLIC_KEY_FILE")
    assert State(tmp_path).user_key == tmp_path / "ssh" / "id_ed25519"
