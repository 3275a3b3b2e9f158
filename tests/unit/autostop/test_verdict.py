"""When a stack is due: after its idle hours, after its end, and never under a running job."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from infra.clients.errors import JobsError
from infra.clients.ssh import Result
from infra.operate.idle import Activity, Verdict, activity, verdict
from stacks.load import load_stack
from stacks.spec import LifetimeSpec, StackSpec

NOW = datetime(2026, 11, 21, 18, tzinfo=UTC)
BOOT = (
    "Configuration data as of 2026-11-21T18:00:00\nBOOT_TIME               = 2026-11-20T08:00:00\n"
)
SACCT = (
    "{0}|{0}|{1}|{2}|red|{3}|{4}|{5}|{6}|0:0|8|billing=8,cpu=8,gres/gpu=1,node=1|1:00|worker-0\n"
)


@pytest.fixture
def spec(public_key_file: object) -> StackSpec:
    return load_stack("l40s-dev")


class Slurm:
    """Answers with rows of sacct and of squeue, as Slurm prints them in UTC."""

    def __init__(
        self,
        *rows: tuple[str, ...],
        queue: tuple[str, ...] = (),
        boot: str = BOOT,
        stderr: str = "",
    ) -> None:
        self.rows, self.queue, self.boot, self.stderr = rows, queue, boot, stderr

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        table = "".join(SACCT.format(*row) for row in self.rows)
        queued = "".join(f"{row}\n" for row in self.queue)
        text = self.boot if "squeue" not in command else f"{queued}--\n{table}"
        failed = int(bool(self.stderr) and "sacct" in command)
        return Result(command=command, exit_code=failed, stdout=text, stderr=self.stderr)


def done(number: str, end: str, *, user: str = "root", partition: str = "main") -> tuple[str, ...]:
    return (number, "finetune", user, partition, "COMPLETED", "2026-11-21T08:00:00", end)


def queued(number: str, name: str, state: str, *, user: str = "root") -> str:
    return f"{number}|{number}|{user}|red|main|{state}|N/A|N/A|8|N/A||1|1:00|None|{name}"


def seen(
    *rows: tuple[str, ...],
    queue: tuple[str, ...] = (),
    boot: str = BOOT,
    stderr: str = "",
    hours: int | None = 24,
) -> Activity:
    slurm = Slurm(*rows, queue=queue, boot=boot, stderr=stderr)
    return activity(
        slurm, "key", now=NOW, hours=hours, stack="lab", placeholders={"schedule-train"}
    )


def judged(
    spec: StackSpec, lifetime: LifetimeSpec, found: Activity, *, ends_jobs: bool = False
) -> Verdict:
    return verdict(replace(spec, lifetime=lifetime), found, NOW, ends_jobs=ends_jobs)


IDLE_SINCE_9 = Activity(unfinished=(), idle_since=NOW - timedelta(hours=9))
BUSY = Activity(unfinished=("12 finetune",), idle_since=NOW - timedelta(days=9))
OVER = LifetimeSpec(until="2026-11-21T17:00Z")


def test_the_last_end_counts(spec: StackSpec) -> None:
    found = seen(done("1", "2026-11-21T09:00:00"), done("2", "2026-11-21T10:30:00"))
    assert found == Activity(unfinished=(), idle_since=datetime(2026, 11, 21, 10, 30, tzinfo=UTC))


def test_jobs_of_checks_are_no_work() -> None:
    """They run on schedules: the stack would never be idle."""
    found = seen(
        done("1", "2026-11-21T09:00:00"),
        done("2", "2026-11-21T17:00:00", user="soperatorchecks"),
        done("3", "2026-11-21T17:30:00", partition="hidden"),
    )
    assert found.idle_since == datetime(2026, 11, 21, 9, tzinfo=UTC)


def test_a_cluster_that_was_just_made_or_resumed_is_not_idle_since_ever() -> None:
    assert seen().idle_since == datetime(2026, 11, 20, 8, tzinfo=UTC)
    late = BOOT.replace("11-20T08", "11-21T17")
    found = seen(done("1", "2026-11-21T09:00:00"), boot=late)
    assert found.idle_since == datetime(2026, 11, 21, 17, tzinfo=UTC)


def test_a_job_that_runs_or_waits_is_unfinished() -> None:
    """Also one that is held: accounting has it in no period, as it was never eligible."""
    queue = (
        queued("5", "serve", "RUNNING"),
        queued("6", "load", "PENDING"),
        queued("7", "check", "RUNNING", user="soperatorchecks"),
        queued("8", "old", "COMPLETED"),
        queued("9", "probe", "RUNNING").replace("|main|", "|hidden|"),
    )
    assert seen(queue=queue).unfinished == ("5 serve", "6 load", "9 probe")


def test_a_job_that_accounting_lost_the_end_of_keeps_no_stack() -> None:
    runaway = ("5", "serve", "root", "main", "RUNNING", "2026-11-21T08:00:00", "Unknown")
    assert seen(runaway).unfinished == ()


def test_the_next_time_of_a_schedule_is_no_work_but_its_run_is() -> None:
    assert seen(queue=(queued("5", "schedule-train", "PENDING"),)).unfinished == ()
    running = seen(queue=(queued("5", "schedule-train", "RUNNING"),))
    assert running.unfinished == ("5 schedule-train",)


def test_without_accounting_nothing_is_idle() -> None:
    off = "Slurm accounting storage is disabled\n"
    with pytest.raises(JobsError, match="nobody knows when the last job ended"):
        seen(stderr=off)
    assert seen(queue=(queued("5", "serve", "RUNNING"),), stderr=off, hours=None).unfinished


def test_a_controller_that_does_not_say_when_it_started_is_an_error() -> None:
    with pytest.raises(JobsError, match="no BOOT_TIME"):
        seen(boot="nothing\n")


def test_a_stack_is_due_after_its_idle_hours(spec: StackSpec) -> None:
    assert judged(spec, LifetimeSpec(idle_hours=9), IDLE_SINCE_9).is_due
    early = judged(spec, LifetimeSpec(idle_hours=10), IDLE_SINCE_9)
    assert not early.is_due
    assert "due in 60 min" in early.reason


def test_a_running_job_keeps_a_stack(spec: StackSpec) -> None:
    found = judged(spec, LifetimeSpec(idle_hours=1), BUSY, ends_jobs=True)
    assert not found.is_due
    assert "1 jobs run or wait: 12 finetune" in found.reason


def test_an_end_that_passed_waits_for_jobs_unless_told(spec: StackSpec) -> None:
    kept = judged(spec, OVER, BUSY)
    assert not kept.is_due
    assert "--end-jobs" in kept.reason
    assert judged(spec, OVER, BUSY, ends_jobs=True).is_due


def test_an_end_that_passed_needs_no_idle_hours(spec: StackSpec) -> None:
    just = Activity(unfinished=(), idle_since=NOW)
    assert judged(spec, OVER, just) == Verdict(
        is_due=True, reason="its end, 2026-11-21 17:00 UTC, has passed"
    )


def test_an_end_to_come_alone_does_not_pause_an_idle_stack(spec: StackSpec) -> None:
    found = judged(spec, LifetimeSpec(until="2026-12-24T17:00Z"), IDLE_SINCE_9)
    assert not found.is_due
    assert "idle_hours is not declared" in found.reason
