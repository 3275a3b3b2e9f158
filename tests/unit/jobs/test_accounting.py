"""Who held which nodes and when. The fixture is output of Debian's Slurm 22.05.8, as it came.

Account, nodes, limit and reason were added by hand as the same Slurm prints them in tests/local.
"""

from __future__ import annotations

import os
import subprocess
import tracemalloc
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.runs.ledger import BY_HAND
from infra.clients import slurm
from infra.clients.errors import JobsError
from infra.clients.slurm import Accounted, expand
from infra.clients.ssh import Result
from tests.unit.jobs.test_submit import Recorded

FIXTURES = Path(__file__).parent / "fixtures"
OUTPUT = (FIXTURES / "accounting_22.05.txt").read_text(encoding="utf-8")
OFF = "Slurm accounting storage is disabled\n"
NOW = datetime(2026, 11, 21, 8, 31, tzinfo=UTC)


def asked(shell: Recorded, *ids: str) -> Accounted:
    return slurm.uses(shell, "key", since=NOW - timedelta(days=20), until=NOW, ids=ids)


JOBS = {use.job_id: use for use in asked(Recorded(stdout=OUTPUT)).uses}


def test_times_are_asked_for_in_utc_whatever_the_cluster_s_zone_is() -> None:
    shell = Recorded(stdout=OUTPUT)
    asked(shell, "4", "6")
    (command,) = shell.asked
    assert command.startswith("export TZ=UTC0 SLURM_BITSTR_LEN=0; ")
    assert "; squeue --all " in command
    assert "--starttime=2026-11-01T08:31:00 --endtime=2026-11-21T08:31:00" in command
    assert command.endswith("--jobs=4,6")


@dataclass(frozen=True)
class LoginNode:
    """A real shell, whose Slurm has jobs of nobody and these two configurations."""

    folder: Path

    def __init__(self, folder: Path, slurmctld: str, slurmdbd: str) -> None:
        object.__setattr__(self, "folder", folder)
        config = "AccountingStorageType   = none\nPrivateData             = {}\nProctrackType = x"
        for name, text in {
            "scontrol": config.format(slurmctld),
            "sacctmgr": config.format(slurmdbd),
            "squeue": "",
            "sacct": "",
        }.items():
            (folder / f"{name}.txt").write_text(text)
            (folder / name).write_text(f"#!/bin/sh\ncat {folder}/{name}.txt\n")
            (folder / name).chmod(0o755)

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        path = f"{self.folder}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", command], input=stdin, capture_output=True, env={"PATH": path}
        )
        out, err = done.stdout.decode(), done.stderr.decode()
        return Result(command=command, exit_code=done.returncode, stdout=out, stderr=err)


@pytest.mark.parametrize(
    ("slurmctld", "slurmdbd", "is_private"),
    [
        ("none", "none", False),
        ("accounts,users,usage", "none", False),
        ("jobs", "none", True),
        ("accounts,jobs,usage", "none", True),
        ("none", "jobs", True),
    ],
)
@pytest.mark.parametrize("account", [None, "phys"])
def test_a_slurm_that_hides_jobs_of_others_is_told_by_its_configuration(
    account: str | None, slurmctld: str, slurmdbd: str, is_private: bool, tmp_path: Path
) -> None:
    node = LoginNode(tmp_path, slurmctld, slurmdbd)
    asked_for = {"since": NOW - timedelta(days=1), "until": NOW}
    assert slurm.uses(node, "key", account=account, **asked_for).is_private == is_private
    assert not slurm.uses(node, "key", mine=True, **asked_for).is_private, "nobody else counts"


def test_the_queue_tells_what_is_not_over_also_what_never_became_eligible() -> None:
    queued = asked(Recorded(stdout=OUTPUT)).queued
    assert [(job.job_id, job.state) for job in queued] == [
        ("1", "PENDING"),
        ("5", "RUNNING"),
        ("6", "PENDING"),
    ]


def test_a_finished_job_has_its_user_partition_nodes_and_times() -> None:
    job = JOBS["3"]
    assert (job.user, job.partition, job.state, job.is_finished) == (
        "root",
        "main",
        "CANCELLED",
        True,
    )
    (run,) = job.runs
    assert (run.nodes, run.started_at) == (
        ("worker-1",),
        datetime(2026, 11, 21, 8, 30, 16, tzinfo=UTC),
    )
    assert run.ended_at == datetime(2026, 11, 21, 8, 30, 22, tzinfo=UTC)
    assert (job.cpus_per_node, job.gpus_per_node) == (8, 2)


def test_a_name_with_a_bar_survives_and_parts_are_counted_by_node() -> None:
    job = JOBS["1"]
    assert (job.job, job.cpus_per_node, job.gpus_per_node) == ("fine|tune x", 4, 1)
    assert job.runs[0].nodes == ("worker-0", "worker-1")


def test_a_requeued_job_paid_its_first_run_and_is_not_over() -> None:
    """sacct lists no second run before it is eligible; the queue has it as pending."""
    assert not JOBS["1"].is_finished
    assert JOBS["1"].runs[0].ended_at is not None


@pytest.mark.parametrize(
    ("state", "worst_step", "end"),
    [
        ("REQUEUED", "0:0", BY_HAND),
        ("REQUEUED", "75:0", "REQUEUED"),
        ("REQUEUED", "0:15", "REQUEUED"),
        ("NODE_FAIL", "0:0", "NODE_FAIL"),
        ("COMPLETED", "0:0", "COMPLETED"),
    ],
)
def test_a_requeue_of_a_job_without_steps_is_told_by_the_worst_code(
    state: str, worst_step: str, end: str
) -> None:
    """It had none, or Slurm keeps none (AccountingStorageEnforce=nosteps)."""
    times = "2026-11-21T08:30:13|2026-11-21T08:30:22"
    row = f"1|1|a|ann|red|main|{state}|{times}|{worst_step}|8|cpu=8|1:00|worker-0\n"
    (job,) = asked(Recorded(stdout=f"--\n{row}")).uses
    assert [run.state for run in job.runs] == [end]


@pytest.mark.parametrize("version", ["22.05", "25.11", "26.05"])
def test_a_requeue_by_hand_has_a_step_that_ends_after_it(version: str) -> None:
    """Steps of both kinds end with 75 or well; a job's own comes once all of them have ended.

    25.11 and 26.05 give the code of a requeue's steps to the job, 22.05 that of those before it.
    """
    text = (FIXTURES / f"requeues_{version}.txt").read_text(encoding="utf-8")
    found = {use.job: use.runs[0].state for use in asked(Recorded(stdout=text)).uses}
    assert found == {
        "own": "REQUEUED", "own-server": "REQUEUED", "hand": BY_HAND, "hand-server": BY_HAND
    }  # fmt: skip


def test_a_step_that_still_saves_ends_after_the_requeue() -> None:
    """The batch script's own, `.batch`, always does."""
    times = "2026-11-21T08:30:13|2026-11-21T08:30:22"
    row = f"1|1|a|ann|red|main|REQUEUED|{times}|75:0|8||1:00|worker-0\n"
    step = "1.{}|1.{}|a||red||{}|2026-11-21T08:30:14|{}||8|||worker-0\n"
    batch = step.format("batch", "batch", "CANCELLED", "2026-11-21T08:30:23")
    for end, told in (("Unknown", BY_HAND), ("2026-11-21T08:30:22", "REQUEUED")):
        text = f"--\n{row}{row}{batch}{step.format(0, 0, 'FAILED', end)}"
        (job,) = asked(Recorded(stdout=text)).uses
        assert [run.state for run in job.runs] == [told]


def test_a_running_job_has_no_end_and_a_waiting_one_held_nothing() -> None:
    assert JOBS["5"].runs[0].ended_at is None
    assert (JOBS["6"].runs, JOBS["6"].is_finished) == ((), False)


def test_a_job_that_was_cancelled_before_its_start_is_over_and_held_nothing() -> None:
    assert (JOBS["4"].runs, JOBS["4"].is_finished) == ((), True)


def test_the_runs_of_a_preempted_job_are_one_job() -> None:
    times = "2026-11-21T0{}:00:00|{}"
    line = f"8|8|train|anna|red|main|{{}}|{times}|0:0|2|cpu=2,gres/gpu=1|1:00|worker-{{}}\n"
    rows = line.format("PREEMPTED", 1, "2026-11-21T02:00:00", 0) + line.format(
        "COMPLETED", 3, "2026-11-21T04:00:00", 1
    )
    (job,) = asked(Recorded(stdout=f"--\n{rows}{rows}")).uses
    assert [run.nodes for run in job.runs] == [("worker-0",), ("worker-1",)]
    assert [run.state for run in job.runs] == ["PREEMPTED", "COMPLETED"]
    assert (job.state, job.is_finished) == ("COMPLETED", True)


LOST = "9|9|old|anna|red|main|{}|{}|Unknown|0:0|2|cpu=2|1:00:00|{}\n"
NEXT = (
    "9|9|new|bob|red|main|COMPLETED|2026-11-21T0{}:00|2026-11-21T08:00:00|0:0|2|cpu=2|1:00:00|w-1\n"
)


@pytest.mark.parametrize(
    ("lost", "begins", "ends"),
    [
        (("RUNNING", "2026-11-21T02:00:00", "w-0"), "7:00", ["03:00", "08:00"]),  # its limit
        (("RUNNING", "2026-11-21T02:00:00", "w-0"), "2:30", ["02:30", "08:00"]),
        (("PENDING", "Unknown", "None assigned"), "7:00", ["08:00"]),
    ],
)
def test_a_job_that_slurm_lost_has_ended_where_the_next_one_has_its_id(
    lost: tuple[str, str, str], begins: str, ends: list[str]
) -> None:
    """A slurmctld that is killed before it saves loses the number too; both are one id there."""
    (job,) = asked(Recorded(stdout=f"--\n{LOST.format(*lost)}{NEXT.format(begins)}")).uses
    assert (job.user, job.job, job.is_finished) == ("bob", "new", True)
    assert [f"{run.ended_at:%H:%M}" for run in job.runs if run.ended_at] == ends
    assert all(run.ended_at for run in job.runs)


@pytest.mark.parametrize(
    ("task", "array_id", "num_tasks"),
    [
        ("13", None, 1),
        ("12_0", "12", 1),
        ("12_[4]", "12", 1),
        ("12_[0-3,5,7-9%2]", "12", 8),
        ("12_[0-10:2]", "12", 6),
        ("13+0", None, 1),
    ],
)
def test_a_task_names_its_array_and_those_that_never_started_are_counted(
    task: str, array_id: str | None, num_tasks: int
) -> None:
    times = "2026-11-21T01:00:00|2026-11-21T02:00:00"
    rows = f"13|{task}|lr|anna|red|main|CANCELLED by 0|{times}|0:0|2|cpu=2,node=1|1:00|worker-0\n"
    times = times.replace("02", "03")
    queue = f"13|{task}|anna|red|main|CANCELLED|{times}|2|N/A|worker-0|1|1:00|None|lr\n"
    for output in (f"--\n{rows}", f"{queue}--\n"):
        off = {} if output.startswith("--") else {"stderr": OFF, "exit_code": 1}
        (job,) = asked(Recorded(stdout=output, **off)).uses
        assert (job.job_id, job.array_id, job.num_tasks) == ("13", array_id, num_tasks)


def test_without_accounting_the_queue_is_all_there_is_and_it_says_so() -> None:
    queue = OUTPUT.partition("--\n")[0]
    found = asked(Recorded(stdout=f"{queue}--\n", stderr=OFF, exit_code=1))
    assert not found.has_accounting
    jobs = {use.job_id: use for use in found.uses}
    assert jobs["3"].gpus_per_node == 2
    assert jobs["3"].runs == JOBS["3"].runs
    assert jobs["5"].runs[0].ended_at is None
    assert jobs["4"].runs == ()


def test_an_accounting_that_does_not_answer_is_an_error_with_its_words() -> None:
    error = "sacct: error: Problem talking to the database: Connection refused\n"
    with pytest.raises(JobsError, match=r"sacct: exit 1: .*Connection refused"):
        asked(Recorded(stdout="--\n", stderr=error, exit_code=1))


def test_a_queue_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(JobsError, match="squeue: exit 1"):
        asked(Recorded(stdout="", stderr="Unable to contact slurm controller", exit_code=1))


@pytest.mark.parametrize("output", ["--\n1|a|b\n", "1|a|b\n--\n"])
def test_output_of_another_form_is_refused_with_the_line(output: str) -> None:
    with pytest.raises(JobsError, match=r"printed '1\|a\|b', which is not"):
        asked(Recorded(stdout=output))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("worker-0", ("worker-0",)),
        ("worker-[0-2,5],login-0", ("worker-0", "worker-1", "worker-2", "worker-5", "login-0")),
        ("gpu[008-010]", ("gpu008", "gpu009", "gpu010")),
        ("None assigned", ()),
        ("", ()),
    ],
)
def test_slurm_s_short_form_names_every_node(text: str, names: tuple[str, ...]) -> None:
    assert expand(text) == names


@given(st.sets(st.integers(min_value=0, max_value=50), min_size=1))
def test_any_set_of_numbers_comes_back(numbers: set[int]) -> None:
    text = f"worker-[{','.join(str(number) for number in sorted(numbers))}]"
    assert expand(text) == tuple(f"worker-{number}" for number in sorted(numbers))


@pytest.mark.parametrize(
    "text", ["worker-[0-", "worker-[a-b]", "[0]", "w-[1-]", "n[9-1]", "n[1,010-9]"]
)
def test_what_is_no_list_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(JobsError, match="not a list of names"):
        expand(text)


@pytest.mark.parametrize(
    "text", [f"n[{','.join(['0-65535'] * 12)}]", f"{'n' * 1000}[0-65535]"], ids=["parts", "prefix"]
)
def test_a_line_of_more_than_a_cluster_is_refused_before_it_fills_the_memory(text: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(JobsError, match=r"more names than a cluster|not a list of names"):
            expand(text)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
