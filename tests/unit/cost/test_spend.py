"""Every dollar of a period is in exactly one place: a job, an idle node, control plane, storage."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.report.layout import WIDTH, Format
from cost.resources.estimate import Estimate
from cost.runs.budget import month_budget, queue_charge
from cost.runs.ledger import Entry, Occupancy
from cost.runs.spend import (
    By,
    JobUse,
    Spend,
    grouped,
    parts,
    render_spend,
    spend,
)
from stacks.spec.cost import BudgetSpec
from tests.nightly import law
from tests.unit.cost.run_stacks import actual_entry, at, forecast_entry, l40s, rates_of, use
from tests.unit.cost.test_ledger import OVERRIDE

NODE = Decimal("4.5688")
FOUR = tuple(f"worker-{number}" for number in range(4))


@pytest.fixture
def rates(public_key_file: object) -> Estimate:
    return rates_of(l40s())


def day(rates: Estimate, *uses: JobUse, **known: Any) -> Spend:
    """Spend of 10 November, from midnight to midnight."""
    return spend(rates, uses, since=at(0), until=at(0, day=11), **known)


def usd(found: Spend) -> list[Decimal | None]:
    return [job.nodes_usd for job in found.jobs]


def test_a_job_alone_pays_its_nodes_for_its_time(rates: Estimate):
    found = day(rates, use("1", at(8), at(10), FOUR))
    assert usd(found) == [2 * 4 * NODE]
    assert found.jobs[0].node_hours == 8


@pytest.mark.feature("S002-72")
def test_what_no_job_was_on_is_idle(rates: Estimate):
    """5 nodes x 24 h - 4 nodes x 2 h = 112 node-hours."""
    found = day(rates, use("1", at(8), at(10), FOUR))
    assert (found.idle_node_hours, found.idle_usd) == (112, 112 * NODE)
    assert found.idle_share == Decimal(112) / 120


def test_a_period_without_jobs_is_all_idle_and_still_has_its_bill(rates: Estimate):
    found = day(rates)
    assert (found.jobs_usd, found.idle_share) == (0, 1)
    assert found.bill_usd == 24 * rates.total.hourly_low_usd


def test_jobs_on_one_node_split_it_by_their_dominant_share(rates: Estimate):
    """One has a GPU of two (1/2), the other 16 of 64 vCPUs (1/4): two thirds and one third."""
    gpu = use("1", at(8), at(9), ["worker-0"], gpus_per_node=1, cpus_per_node=8)
    cpu = use("2", at(8), at(9), ["worker-0"], cpus_per_node=16)
    first, second = usd(day(rates, gpu, cpu))
    assert first is not None
    assert second is not None
    assert abs(first - NODE * 2 / 3) < Decimal("1e-20")
    assert abs(second - NODE / 3) < Decimal("1e-20")


def test_a_node_is_shared_only_while_it_is_shared(rates: Estimate):
    long, late = use("1", at(8), at(10), ["worker-0"]), use("2", at(9), at(11), ["worker-0"])
    found = day(rates, long, late)
    assert usd(found) == [NODE * Decimal("1.5")] * 2
    assert found.idle_node_hours == 5 * 24 - 3


def test_only_the_part_inside_the_period_is_paid(rates: Estimate):
    found = day(rates, use("1", at(22, day=9), at(1), ["worker-0"]))
    assert usd(found) == [NODE]
    assert not found.jobs[0].is_whole


def test_a_running_job_pays_up_to_now(rates: Estimate):
    assert usd(day(rates, use("1", at(20), None, ["worker-0"]))) == [4 * NODE]


def test_a_job_that_was_preempted_and_started_again_pays_both_times(rates: Estimate):
    runs = (
        Occupancy(started_at=at(1), ended_at=at(2), nodes=("worker-0",)),
        Occupancy(started_at=at(3), ended_at=at(4), nodes=("worker-1",)),
    )
    assert usd(day(rates, replace(use("1", at(1), at(4), []), runs=runs))) == [2 * NODE]


def test_a_job_that_never_started_costs_nothing(rates: Estimate):
    assert usd(day(rates, replace(use("1", at(1), at(1), []), runs=()))) == [0]


def test_nodes_that_are_not_declared_have_no_price_and_make_the_bill_a_lower_bound(
    rates: Estimate,
):
    found = day(rates, use("1", at(8), at(9), ["worker-0", "old-7"]))
    assert usd(found) == [None]
    assert (found.foreign_nodes, found.is_lower_bound) == (("old-7",), True)


def test_autoscaled_nodes_are_paid_while_jobs_are_on_them_and_never_idle(public_key_file: object):
    spec = l40s()
    worker = replace(spec.nodes.workers[0], min_nodes=1, max_nodes=5)
    rates = rates_of(replace(spec, nodes=replace(spec.nodes, workers=(worker,))))
    found = day(rates, use("1", at(8), at(10), FOUR))
    assert (found.jobs_usd, found.idle_usd) == (8 * NODE, 22 * NODE)
    extra = 6 * (NODE + rates.disk_usd_per_hour["worker"])
    assert abs(found.bill_usd - 24 * rates.total.hourly_low_usd - extra) < Decimal("1e-20")


NODES = st.lists(st.sampled_from([f"worker-{number}" for number in range(8)]), unique=True)
MINUTES = st.integers(min_value=-600, max_value=2000)


@st.composite
def uses(draw: st.DrawFn) -> JobUse:
    starts, length = draw(MINUTES), draw(st.integers(min_value=0, max_value=900))
    begin = at(0) + timedelta(minutes=starts)
    end = None if draw(st.booleans()) else begin + timedelta(minutes=length)
    return use(
        str(draw(st.integers(min_value=1, max_value=99))),
        begin,
        end,
        draw(NODES),
        gpus_per_node=draw(st.integers(min_value=0, max_value=2)),
        cpus_per_node=draw(st.integers(min_value=0, max_value=64)),
    )


@pytest.mark.feature("S002-72")
@law(shares_fixtures=True)
@given(found=st.lists(uses(), max_size=12), min_nodes=st.integers(min_value=0, max_value=5))
def test_jobs_idle_nodes_control_plane_and_storage_are_the_bill(
    public_key_file: object, found: Sequence[JobUse], min_nodes: int
):
    spec = l40s()
    worker = replace(spec.nodes.workers[0], min_nodes=min_nodes, max_nodes=5)
    rates = rates_of(replace(spec, nodes=replace(spec.nodes, workers=(worker,))))
    total = day(rates, *found)
    of_parts = sum((amount for _, amount in parts(total)), Decimal(0))
    assert abs(of_parts - total.bill_usd) < Decimal("1e-15")
    assert all(amount >= 0 for _, amount in parts(total))


@law(50, shares_fixtures=True)
@given(found=st.lists(uses(), max_size=6), told=st.lists(uses(), max_size=6))
def test_no_member_s_word_changes_what_another_s_job_costs(
    rates: Estimate, found: Sequence[JobUse], told: Sequence[JobUse]
):
    of_bob = [replace(each, told_by="bob") for each in told]
    lies = [replace(each, told_by="mallory") for each in (*found, *told)]
    honest, lied = day(rates, *found, *of_bob), day(rates, *found, *of_bob, *lies)
    for before, total in ((day(rates, *found), honest), (honest, lied)):
        pairs = zip(usd(before), usd(total), strict=False)
        assert all(abs((a or 0) - (b or 0)) < Decimal("1e-15") for a, b in pairs)
        of_parts = sum((amount for _, amount in parts(total)), Decimal(0))
        assert abs(of_parts - total.bill_usd) < Decimal("1e-6")


@law(shares_fixtures=True)
@given(found=st.lists(uses(), max_size=8), cut=st.integers(min_value=1, max_value=1439))
def test_two_periods_cost_what_the_whole_does(rates: Estimate, found: Sequence[JobUse], cut: int):
    """With fixed nodes; jobs that still run are taken to run on."""
    ended = [each for each in found if all(run.ended_at is not None for run in each.runs)]
    middle = at(0) + timedelta(minutes=cut)
    pieces: list[tuple[datetime, datetime]] = [(at(0), middle), (middle, at(0, day=11))]
    costs = [spend(rates, ended, since=a, until=b) for a, b in pieces]
    whole = day(rates, *ended)
    for name in ("jobs_usd", "idle_usd", "bill_usd"):
        of_pieces = sum((getattr(cost, name) for cost in costs), Decimal(0))
        assert abs(of_pieces - getattr(whole, name)) < Decimal("1e-15")


def test_groups_come_dearest_first(rates: Estimate):
    found = day(
        rates,
        use("1", at(1), at(2), ["worker-0"], user="bob"),
        use("2", at(1), at(4), ["worker-1"], user="anna"),
        use("3", at(1), at(2), ["worker-2"], user="bob"),
    )
    groups = grouped(found.jobs, "user")
    assert [(name, len(jobs)) for name, jobs in groups.items()] == [("anna", 1), ("bob", 2)]


def report(rates: Estimate, *entries: Entry) -> Spend:
    """Two hours on four nodes (36.5504 USD), beside what the ledger says of them."""
    return day(
        rates,
        use("1", at(8), at(10), FOUR),
        use("2", at(11), at(12), ["worker-4"], job="=cmd|x", user="bob", partition="long"),
        entries=entries,
        budget=month_budget(BudgetSpec(usd_per_month=Decimal(100)), entries, at(12)),
        notes=["From the ledger alone."],
    )


ENTRIES: tuple[Entry, ...] = (
    forecast_entry("1", "30", at(8)),
    actual_entry("1", "36.5504", at(8), at(10), padding_percent=Decimal(25)),
    OVERRIDE,
)


def test_the_actual_stands_beside_its_forecast_and_its_padding(rates: Estimate):
    """(36.5504 - 30) / 30 = +21.8 %; a quarter of it was padding."""
    first, second = report(rates, *ENTRIES).jobs
    assert first.variance is not None
    assert round(first.variance, 4) == Decimal("0.2183")
    assert first.padding_usd == Decimal("9.1376")
    assert (second.forecast_usd, second.variance, second.padding_usd) == (None, None, None)


def test_a_job_that_is_not_whole_in_the_period_has_no_variance(rates: Estimate):
    (row,) = day(rates, use("1", at(22, day=9), at(1), FOUR), entries=ENTRIES).jobs
    assert row.variance is None


@pytest.mark.parametrize("format", list(Format))
def test_the_report_prints_in_every_format(rates: Estimate, format: Format):
    text = render_spend(report(rates, *ENTRIES), format)
    assert text.isascii()
    assert "finetune" in text
    if format is Format.TABLE:
        assert max(len(line) for line in text.splitlines()) <= WIDTH
        assert "+21.8 %" in text
        assert "anna submitted finetune (job 3) of $36.55 with $-1.50 left of $100.00" in text


@pytest.mark.feature("S004-31")
def test_the_json_adds_up_and_names_users_and_partitions(rates: Estimate):
    found = json.loads(render_spend(report(rates, *ENTRIES), Format.JSON))
    names = ("jobs_usd", "idle_usd", "control_plane_usd", "storage_usd")
    of_parts = sum(Decimal(found[name]) for name in names)
    assert abs(of_parts - Decimal(found["bill_usd"])) < Decimal("0.000003"), "each is rounded"
    assert [each["name"] for each in found["users"]] == ["anna", "bob"]
    assert [each["name"] for each in found["partitions"]] == ["main", "long"]
    assert found["budget"]["left_usd"] == "63.449600"
    assert found["jobs"][0]["variance"] == "0.218347"
    table = render_spend(report(rates, *ENTRIES), Format.TABLE)
    of_users, of_partitions = table.split("\nUsers")[1].split("\nPartitions")
    assert re.findall("anna|bob|main|long", of_users) == ["anna", "bob"]
    assert re.findall("anna|bob|main|long", of_partitions)[:2] == ["main", "long"]


@pytest.mark.parametrize(
    ("by", "names"),
    [
        (By.USER, ["anna", "bob", "carl"]),
        (By.ACCOUNT, ["red", "blue", "grey"]),
        (By.JOB, ["finetune", "=cmd|x", "serve"]),
    ],
)
def test_the_sums_of_jobs_by_each_of_these_hold_what_is_spent_and_reserved(
    by: By, names: list[str], rates: Estimate
) -> None:
    """Two hours on four nodes, one on a node; carl's job waits, for an hour on a node at most."""
    waits = use("3", at(12), None, (), job="serve", user="carl", account="grey", state="PENDING")
    waits = replace(waits, runs=(), num_nodes=1, limit_s=3600)
    month = month_budget(
        BudgetSpec(usd_per_month=Decimal(100)), (), at(12), [queue_charge(rates, waits, at(12))]
    )
    made = day(
        rates,
        use("1", at(8), at(10), FOUR, account="red"),
        use("2", at(11), at(12), ["worker-4"], job="=cmd|x", user="bob", account="blue"),
        budget=month,
    )
    plain = json.loads(render_spend(made, Format.JSON, by))
    assert [(plain["by"], each[by]) for each in plain["groups"]] == [(by, name) for name in names]
    usd = [Decimal(each["nodes_usd"]) for each in plain["groups"]]
    assert usd == [8 * NODE, NODE, 0]
    assert sum(usd) == Decimal(plain["jobs_usd"])
    assert [Decimal(each["reserved_usd"]) for each in plain["groups"]] == [0, 0, NODE]
    for each in (Format.TABLE, Format.MARKDOWN, Format.CSV):
        text = render_spend(made, each, by)
        assert all(name in text for name in names if name.isalpha())
    assert re.search(r"\$36\.55 +88\.9 %", render_spend(made, Format.TABLE, by))


@pytest.mark.feature("S002-72")
def test_the_report_tells_the_idle_share_in_words_and_in_figures(rates: Estimate):
    """5 nodes x 24 h - 4 nodes x 2 h - 1 node x 1 h: 111 of 120 node-hours."""
    made = report(rates, *ENTRIES)
    table = " ".join(render_spend(made, Format.TABLE).split())
    assert "Workers stood idle for 111.00 node-hours, 92.5 % of what they cost." in table
    found = json.loads(render_spend(made, Format.JSON))
    assert [Decimal(found[name]) for name in ("idle_share", "idle_node_hours", "idle_usd")] == [
        Decimal("0.925"),
        111,
        111 * NODE,
    ]


@pytest.mark.feature("S002-72")
def test_the_csv_has_a_row_for_each_job_and_part_and_runs_nothing(rates: Estimate):
    rows = list(csv.DictReader(io.StringIO(render_spend(report(rates, *ENTRIES), Format.CSV))))
    assert [row["kind"] for row in rows] == ["job", "job", "part", "part", "part"]
    assert rows[1]["name"] == "'=cmd|x"
    assert rows[0]["nodes_usd"] == "36.550400"
