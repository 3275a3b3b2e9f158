"""A session asks for its share of a node, is priced by it, and refused where it cannot start."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from cost.resources.estimate import Estimate
from infra.clients.errors import JobsError
from infra.operate.sessions import Ask, ask, num_waiting
from tests.unit.cost.run_stacks import l40s, rates_of
from tests.unit.jobs.test_submit import Recorded

PLAN = "srun: Job 12 to start at 2026-11-21T08:0{minute}:00 using 2 processors on nodes worker-0\n"


@pytest.fixture
def rates(public_key_file: Path) -> Estimate:
    return rates_of(l40s())


def a_gpu(rates: Estimate) -> Ask:
    return ask(rates, gpus=1, cpus=None, partition=None, hours=2)


def test_one_gpu_of_two_is_half_a_node_in_cpus_memory_and_dollars(rates: Estimate) -> None:
    made = a_gpu(rates)
    words = made.srun("bash", options=["--pty"]).split()
    assert words[1].startswith("--job-name=shell-")
    for option in ("--partition=train", "--cpus-per-task=32", "--gpus-per-node=1", "--time=120"):
        assert option in words
    assert words[-2:] == ["--pty", "bash"]
    assert made.usd_per_hour == Decimal("4.5688") / 2
    assert made.most_usd == Decimal("4.5688")


def test_two_sessions_never_share_a_name(rates: Estimate) -> None:
    assert a_gpu(rates).name != a_gpu(rates).name


def test_without_a_number_it_is_one_gpu_where_there_are_any(rates: Estimate) -> None:
    assert ask(rates, gpus=None, cpus=None, partition=None, hours=2).gpus == 1


def test_cpus_alone_ask_for_no_gpu_and_pay_for_their_share(rates: Estimate) -> None:
    made = ask(rates, gpus=0, cpus=16, partition=None, hours=0.5)
    assert "gpus" not in made.srun("bash")
    assert (made.memory_mib, made.minutes) == (16 * 2048, 30)
    assert made.usd_per_hour == Decimal("4.5688") * 16 / 64


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpus": 3}, "no node of partition train has 3 GPUs"),
        ({"gpus": 1, "cpus": 65}, "has 1 GPUs and 65 vCPUs"),
        ({"partition": "mian"}, "slurm.partitions: 'mian' is not declared"),
        ({"hours": 0.0}, "--hours 0: not a time"),
    ],
)
def test_what_no_node_could_give_is_refused(
    rates: Estimate, changes: dict[str, object], words: str
) -> None:
    asked = {"gpus": 1, "cpus": None, "partition": None, "hours": 2.0, **changes}
    with pytest.raises(JobsError, match=words):
        ask(rates, **asked)  # type: ignore[arg-type]


def test_a_free_partition_is_room_and_one_round_trip(rates: Estimate) -> None:
    shell = Recorded(stdout="2026-11-21T08:00:00\n0\n", stderr=PLAN.format(minute=0))
    assert num_waiting(shell, a_gpu(rates), waits=False) == 0
    (command,) = shell.asked
    assert "srun --job-name=" in command
    assert command.endswith("--test-only true")


def test_a_full_partition_is_refused_with_the_queue_and_the_start(rates: Estimate) -> None:
    shell = Recorded(stdout="2026-11-21T08:00:00\n4\n", stderr=PLAN.format(minute=9))
    with pytest.raises(
        JobsError,
        match="no 1 GPUs are free in partition train: 4 jobs wait there, and Slurm would start "
        r"this at 2026-11-21T08:09:00 \(in 0:09:00\)",
    ):
        num_waiting(shell, a_gpu(rates), waits=False)
    assert num_waiting(shell, a_gpu(rates), waits=True) == 4


def test_a_line_of_a_profile_is_no_number_of_jobs(rates: Estimate) -> None:
    shell = Recorded(stdout="2026-11-21T08:00:00\nwelcome\n", stderr=PLAN.format(minute=0))
    with pytest.raises(JobsError, match="Slurm printed 'welcome' for a number"):
        num_waiting(shell, a_gpu(rates), waits=True)


def test_what_slurm_would_never_start_is_told_in_its_words(rates: Estimate) -> None:
    said = "srun: error: Unable to allocate resources: Requested time limit is invalid\n"
    shell = Recorded(stdout="2026-11-21T08:00:00\n0\n", stderr=said, exit_code=1)
    with pytest.raises(JobsError, match="Requested time limit is invalid"):
        num_waiting(shell, a_gpu(rates), waits=True)
