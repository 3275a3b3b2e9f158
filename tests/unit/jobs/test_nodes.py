"""Nodes are taken out of use by name and with a reason, and waited for until no job holds them."""

from __future__ import annotations

import pytest

from infra.clients.errors import JobsError
from infra.clients.ssh import Result
from infra.jobs.nodes import await_idle, drain, resume
from tests.unit.jobs.test_draining import QUEUE


class Shell:
    """A login node that prints these queues, one after the other, and refuses some nodes."""

    def __init__(self, *queues: str, refuses: str = "") -> None:
        self.queues = [*queues, ""]
        self.refuses = refuses
        self.commands: list[str] = []

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        self.commands.append(command)
        is_queue = command.startswith("squeue")
        failed = bool(self.refuses) and not is_queue
        return Result(
            command=command,
            exit_code=1 if failed else 0,
            stdout=self.queues.pop(0) if is_queue else "",
            stderr=f"slurm_update error: {self.refuses}" if failed else "",
        )


@pytest.mark.feature("S003-70")
def test_a_drain_says_what_still_runs_there():
    shell = Shell(QUEUE)
    assert [job.id for job in drain(shell, ["worker-0", "worker-3"], "fan 2 is dead")] == [
        "12",
        "13",
    ]
    assert shell.commands[0] == (
        "scontrol update NodeName=worker-0,worker-3 State=DRAIN 'Reason=fan 2 is dead'"
    )


def test_each_node_is_resumed_by_itself():
    shell = Shell()
    resume(shell, ["worker-0", "worker-1"])
    assert shell.commands == [
        "scontrol update NodeName=worker-0 State=RESUME",
        "scontrol update NodeName=worker-1 State=RESUME",
    ]


def test_a_node_that_takes_jobs_already_is_resumed_without_a_word():
    """The second `drain --undo` was refused in words that did not say why."""
    resume(Shell(refuses="Invalid node state specified"), ["worker-0"])


def test_a_drain_that_slurm_refuses_by_state_is_told():
    with pytest.raises(JobsError, match="Invalid node state"):
        drain(Shell(refuses="Invalid node state specified"), ["worker-0"], "why")


@pytest.mark.parametrize("name", ["worker-[0-3]", "worker-0;reboot", "", "ALL", "-0"])
def test_what_is_no_name_of_a_node_reaches_no_shell(name: str):
    shell = Shell()
    with pytest.raises(JobsError, match="is no name of a Slurm node"):
        drain(shell, ["worker-0", name], "why")
    assert shell.commands == []


@pytest.mark.parametrize("reason", ["", "  ", "a\nb", "x" * 201])
def test_a_reason_is_one_line_of_text(reason: str):
    shell = Shell()
    with pytest.raises(JobsError, match="--reason"):
        drain(shell, ["worker-0"], reason)
    assert shell.commands == []


def test_a_node_that_slurm_does_not_know_is_refused_with_the_way_to_the_names():
    with pytest.raises(JobsError, match=r"worker-9: exit 1: .*Invalid node name.*sinfo -N.*lists"):
        drain(Shell(refuses="Invalid node name specified"), ["worker-9"], "why")


def test_a_wait_ends_with_the_last_job_and_tells_each_change_once():
    first = QUEUE.splitlines(keepends=True)[0]
    shell = Shell(QUEUE, QUEUE, first, first)
    told: list[list[str]] = []
    pauses: list[float] = []
    await_idle(
        shell,
        ["worker-0", "worker-3"],
        on_change=lambda jobs: told.append([job.id for job in jobs]),
        pause=pauses.append,
    )
    assert told == [["12", "13"], ["12"]]
    assert len(pauses) == 4
