"""What preemptions cost, against the papers' formulas, their limits and a simulation."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.runs.forecast import (
    Disturbance,
    Stall,
    daly_interval_s,
    disturbance,
    learned,
    slowdown,
    young_interval_s,
)
from cost.runs.ledger import BY_HAND, ActualEntry, Occupancy
from stacks.spec import StackSpec
from stacks.spec.cost import PreemptionSpec
from stacks.spec.nodes import Billing
from tests.unit.cost.run_stacks import job_of, l40s, trained

SPEC = PreemptionSpec(
    preemptions_per_node_day=Decimal(1),
    checkpoint_stall_s=Decimal(60),
    restart_s=Decimal(600),
    source="assumed",
)
MINUTES = st.decimals(min_value=1, max_value=600, places=1)
MTBFS = st.decimals(min_value=600, max_value=10_000_000, places=0)


def losses(**changes: object) -> Disturbance:
    made = Disturbance(
        stall=Stall(seconds=Decimal(60), source="assumed", measured_on=None),
        restart_s=Decimal(600),
        num_nodes=2,
        preemptions_per_node_day=Decimal(1),
        source="assumed",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_two_nodes_preempted_once_a_day_each_stop_the_job_every_twelve_hours():
    assert losses().mtbf_s == 43200


def test_young_s_interval_is_the_root_of_twice_the_stall_times_the_mean():
    """sqrt(2 x 60 s x 43,200 s) = sqrt(5,184,000) s."""
    assert young_interval_s(Decimal(60), Decimal(43200)).quantize(Decimal("0.001")) == Decimal(
        "2276.840"
    )


def test_daly_s_interval_is_that_of_equation_37():
    """By hand: 2276.840 x (1 + 1/3 sqrt(60/86400) + 1/9 (60/86400)) - 60 = 2237.016 s."""
    assert daly_interval_s(Decimal(60), Decimal(43200)).quantize(Decimal("0.001")) == Decimal(
        "2237.016"
    )


@pytest.mark.parametrize(("mean_minutes", "tau_minutes"), [(1440, 117), (360, 57), (15, 9.1)])
def test_the_intervals_are_those_that_daly_prints(mean_minutes: int, tau_minutes: float):
    """Figures 3 to 5 of the paper: stall 5 min; mean 24 h, 6 h and 15 min."""
    found = daly_interval_s(Decimal(300), Decimal(60 * mean_minutes))
    assert float(found) / 60 == pytest.approx(tau_minutes, abs=0.5 if tau_minutes > 10 else 0.05)


def test_where_a_checkpoint_takes_as_long_as_two_means_daly_s_interval_is_the_mean():
    assert daly_interval_s(Decimal(1200), Decimal(600)) == 600


@given(stall_s=MINUTES, mean_s=MTBFS, away=st.sampled_from(["0.5", "0.8", "1.25", "2"]))
def test_no_other_interval_is_better_than_daly_s_by_more_than_a_percent_of_the_time(
    stall_s: Decimal, mean_s: Decimal, away: str
):
    interval_s = daly_interval_s(stall_s, mean_s)
    best = slowdown(interval_s, stall_s, Decimal(0), mean_s)
    other = slowdown(interval_s * Decimal(away), stall_s, Decimal(0), mean_s)
    if stall_s < mean_s / 2 and best is not None and other is not None:
        assert best.factor <= other.factor * Decimal("1.01")


@given(stall_s=MINUTES, restart_s=MINUTES, mean_s=MTBFS)
def test_more_preemptions_never_make_a_run_faster(
    stall_s: Decimal, restart_s: Decimal, mean_s: Decimal
):
    stall = Stall(seconds=stall_s, source="assumed", measured_on=None)
    rare, often = (
        losses(stall=stall, restart_s=restart_s, preemptions_per_node_day=43200 / each).slowdown
        for each in (mean_s * Decimal("1.1"), mean_s)
    )
    assert often is None or (rare is not None and 1 <= rare.factor <= often.factor)


def test_the_formula_is_what_a_simulation_of_a_thousand_runs_measures():
    """Poisson preemptions, also during checkpoints and restarts; seeded, so always the same."""
    chance = random.Random(20261121)
    interval_s, stall_s, restart_s, mean_s, num_segments = 1800.0, 60.0, 600.0, 7200.0, 20
    walls = [
        _simulated(chance, interval_s, stall_s, restart_s, mean_s, num_segments)
        for _ in range(1000)
    ]
    measured = sum(walls) / len(walls) / (num_segments * interval_s)
    found = slowdown(*(Decimal(str(each)) for each in (interval_s, stall_s, restart_s, mean_s)))
    assert found is not None
    assert measured == pytest.approx(float(found.factor), rel=0.01)


def _simulated(
    chance: random.Random,
    interval_s: float,
    stall_s: float,
    restart_s: float,
    mean_s: float,
    num_segments: int,
) -> float:
    """Wall seconds of one run, event by event."""
    wall_s, done = 0.0, 0
    while done < num_segments:
        fails_after_s = chance.expovariate(1 / mean_s)
        if fails_after_s > interval_s + stall_s:
            wall_s, done = wall_s + interval_s + stall_s, done + 1
            continue
        wall_s += fails_after_s
        while (fails_after_s := chance.expovariate(1 / mean_s)) < restart_s:
            wall_s += fails_after_s
        wall_s += restart_s
    return wall_s


def test_without_preemptions_nothing_is_lost_and_no_checkpoint_is_due():
    calm = losses(preemptions_per_node_day=Decimal(0))
    assert calm.slowdown is not None
    assert (calm.slowdown.factor, calm.interval_s, calm.young_s) == (1, None, None)


def test_free_checkpoints_lose_no_work_and_cost_only_restarts():
    """e^(600/43200) - 1 of the time."""
    found = slowdown(Decimal(0), Decimal(0), Decimal(600), Decimal(43200))
    assert found is not None
    assert (found.checkpoint, found.lost_work) == (0, 0)
    assert float(found.restart) == pytest.approx(0.0139858, rel=1e-4)


def test_a_run_that_is_preempted_before_any_checkpoint_never_ends():
    assert losses(preemptions_per_node_day=Decimal(100_000)).slowdown is None


def test_the_losses_of_a_rare_preemption_do_not_cancel_to_nothing():
    """At one preemption in 2,700 years half a segment is lost per mean time: t / 2M."""
    found = slowdown(Decimal(1000), Decimal(0), Decimal(0), Decimal(10) ** 11)
    assert found is not None
    assert float(found.lost_work) == pytest.approx(5e-9, rel=1e-6)


def test_preemptible_stops_paying_where_the_slowdown_eats_the_discount():
    """At 2.95 against 1.25 USD the run may take 2.36 times as long."""
    ratio = Decimal("2.95") / Decimal("1.25")
    limit = losses().pays_up_to(ratio)
    assert limit is not None
    below = losses(preemptions_per_node_day=limit * Decimal("0.999")).slowdown
    above = losses(preemptions_per_node_day=limit * Decimal("1.001")).slowdown
    assert below is not None
    assert above is not None
    assert below.factor < ratio < above.factor


def test_preemptible_that_costs_as_much_never_pays():
    assert losses().pays_up_to(Decimal(1)) == 0


def test_without_stall_and_restart_preemptible_pays_at_every_rate():
    free = losses(
        stall=Stall(seconds=Decimal(0), source="", measured_on=None), restart_s=Decimal(0)
    )
    assert free.pays_up_to(Decimal(2)) is None


def test_a_measured_stall_of_the_same_run_replaces_the_assumed_one(public_key_file: Path):
    spec = l40s()
    job, worker = job_of(spec), spec.nodes.workers[0]
    assert disturbance(SPEC, job, worker, []).stall == Stall(
        seconds=Decimal(60), source="assumed", measured_on=None
    )
    measured = disturbance(SPEC, job, worker, [trained()]).stall
    assert (measured.seconds, str(measured.measured_on)) == (5, "2026-11-21")
    assert measured.source == "job 12 of stack l40s-dev"


@pytest.mark.parametrize(
    "changes",
    [
        {"recipe": "other"},
        {"outcome": "FAIL"},
        {"kind": "evaluate"},
        {"hardware": None},
        {"hardware": {"platform": "gpu-h100-sxm", "preset": "8gpu-128vcpu-1600gb", "device": "H",
                      "num_nodes": 4, "num_gpus_declared": 32}},
    ],
)  # fmt: skip
def test_the_stall_of_another_run_is_no_measurement(
    public_key_file: Path, changes: dict[str, object]
):
    spec = l40s()
    found = disturbance(SPEC, job_of(spec), spec.nodes.workers[0], [trained(**changes)])
    assert found.stall.measured_on is None


DAY = datetime(2026, 11, 1, tzinfo=UTC)


def ended(
    job_id: str,
    *days: tuple[float, float],
    state: str = "COMPLETED",
    node: str = "worker",
    first: str = "REQUEUED",
    num_first: int = 2,
):
    """A job of two nodes that ran from day to day, started again for each further pair.

    Its first stretch ended as `first`, on `num_first` nodes.
    """
    return ActualEntry(
        at=DAY,
        job="finetune",
        job_id=job_id,
        cluster="key",
        user="ada",
        partition="main",
        state=state,
        runs=tuple(
            Occupancy(
                started_at=DAY + timedelta(days=start),
                ended_at=DAY + timedelta(days=end),
                nodes=(f"{node}-0", f"{node}-1")[: num_first if index == 0 else 2],
                state=first if index == 0 else state,
            )
            for index, (start, end) in enumerate(days)
        ),
        node_hours=Decimal(0),
        nodes_usd=None,
        padding_percent=None,
    )


def preemptible(rate: str) -> StackSpec:
    spec = l40s()
    workers = tuple(replace(each, billing=Billing.PREEMPTIBLE) for each in spec.nodes.workers)
    return replace(
        spec,
        nodes=replace(spec.nodes, workers=workers),
        preemption=replace(SPEC, preemptions_per_node_day=Decimal(rate)),
    )


@pytest.mark.parametrize(
    ("declared", "entries", "rate", "told"),
    [
        # Two nodes for three days, then three more: (1 + 1) / (12 + 1/1).
        ("1", [ended("7", (0, 3), (3, 6))], "0.1538", "1 preemptions in 12.00 node-days"),
        # The node took the job's end with it; a lucky day beside it.
        ("0.5", [ended("7", (0, 1), state="NODE_FAIL"), ended("8", (0, 1))], "0.3333", "1 preemp"),
        ("1", [ended("7", (0, 3.5))], "0.125", "0 preemptions in 7.00 node-days"),
        ("0", [ended("7", (0, 1), (1, 2))], "0.25", "until 2026-11-03"),
        # The first node failed; of a ledger of before nobody knows; another job went before.
        ("1", [ended("7", (0, 3), (3, 6), first="NODE_FAIL")], "0.1538", "1 preemptions in 12"),
        ("1", [ended("7", (0, 3), (3, 6), first="")], "0.1538", "1 preemptions in 12"),
        ("1", [ended("7", (0, 3), (3, 6), first="PREEMPTED")], "0.0769", "0 preemptions in 12"),
        # Its user queued it again.
        ("1", [ended("7", (0, 3), (3, 6), first=BY_HAND)], "0.0769", "0 preemptions in 12"),
        # It was queued again to have its second node back.
        ("1", [ended("7", (0, 3), (3, 6), num_first=1)], "0.1", "0 preemptions in 9.00"),
        # The newest word of a job counts, once.
        ("1", [ended("7", (0, 3)), ended("7", (0, 3), (3, 6))], "0.1538", "1 preemptions"),
    ],
)
def test_the_rate_is_learned_from_the_stack_s_own_jobs(
    public_key_file: Path, declared: str, entries: list[ActualEntry], rate: str, told: str
):
    found = learned(preemptible(declared), entries).preemption
    assert found is not None
    assert found.preemptions_per_node_day == Decimal(rate)
    assert told in found.source
    assert found.source.startswith("assumed; ")


@pytest.mark.parametrize("entries", [[], [ended("7", (0, 1), (1, 2), node="other")]])
def test_jobs_on_no_preemptible_node_teach_nothing(
    public_key_file: Path, entries: list[ActualEntry]
):
    spec = preemptible("1")
    assert learned(spec, entries) is spec
    assert learned(l40s(), [ended("7", (0, 1), (1, 2))]).preemption == l40s().preemption
