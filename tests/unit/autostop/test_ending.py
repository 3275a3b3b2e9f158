"""Jobs of a stack that is over save before their nodes go."""

from __future__ import annotations

import pytest

from infra.clients.errors import JobsError
from infra.clients.ssh import Result
from infra.operate.idle import POLL_S, end_jobs


class Slurm:
    """Job 12, which saves within two looks, and 13, which only scancel ends."""

    def __init__(self, *jobs: str, deaf: bool = False) -> None:
        self.jobs, self.deaf = list(jobs), deaf
        self.commands: list[str] = []

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        self.commands.append(command)
        if command.startswith("scancel 1") and not self.deaf:
            self.jobs.clear()
        return Result(command=command, exit_code=0, stdout="", stderr="")

    def wait(self, seconds: float) -> None:
        self.commands.append(f"wait {seconds:g}")
        if "12" in self.jobs and self.commands.count("wait 5") == 2:
            self.jobs.remove("12")


def ended(slurm: Slurm, save_s: float = 60) -> list[str]:
    end_jobs(
        slurm, lambda: tuple(slurm.jobs), stack="lab", save_s=save_s, say=print, pause=slurm.wait
    )
    return slurm.commands


def test_a_job_that_saves_is_not_cancelled() -> None:
    assert ended(Slurm("12")) == [
        "scontrol update JobId=12 Requeue=0",
        "scancel --state=RUNNING --batch --signal=USR1 12",
        *["wait 5"] * 2,
    ]


def test_what_does_not_end_by_itself_is_cancelled_after_its_time() -> None:
    commands = ended(Slurm("12", "13"), save_s=60)
    assert commands[-1] == "scancel 13"
    assert commands.count("wait 5") == 60 / POLL_S + 1


def test_what_takes_no_sigterm_is_waited_for_until_slurm_kills_it() -> None:
    """Soperator's slurm.conf has KillWait=180."""
    slurm = Slurm("13", deaf=True)

    def wait(seconds: float) -> None:
        slurm.wait(seconds)
        _, told, since = "\n".join(slurm.commands).partition("\nscancel 13\n")
        if told and since.count("wait 5") * POLL_S > 190:
            slurm.jobs.clear()

    end_jobs(slurm, lambda: tuple(slurm.jobs), stack="lab", save_s=0, say=print, pause=wait)
    assert slurm.jobs == []


def test_what_never_ends_is_an_error_and_nothing_is_paused() -> None:
    with pytest.raises(JobsError, match="jobs 13 do not end, so nothing was paused"):
        ended(Slurm("13", deaf=True))


def test_without_jobs_nothing_is_done() -> None:
    assert ended(Slurm()) == []
