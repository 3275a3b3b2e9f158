"""Members of a team submit to one budget: Slurm's queue is the ledger that they share."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.runs.budget import Charge, month_budget, queue_charge
from cost.runs.ledger import ActualEntry, ForecastEntry
from cost.runs.spend import By, JobUse, grouped, spend, total_usd
from infra.clients import slurm
from infra.clients.ssh import Result
from infra.jobs.ledger import JobLedger, OverBudgetError, open_ledger
from stacks.spec.cost import BudgetSpec
from tests.nightly import law
from tests.unit.cost.run_stacks import (
    CLUSTER,
    actual_entry,
    at,
    forecast_entry,
    l40s,
    rates_of,
    use,
)

pytestmark = pytest.mark.usefixtures("public_key_file")
NODE_USD = Decimal("4.5688")
"""Of an hour."""
HOUR = 3600


class Clock(datetime):
    """At noon of 10 November."""

    @classmethod
    def now(cls, tz: object = None) -> datetime:
        return at(12)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.jobs.ledger.datetime", Clock)


@dataclass
class Controller:
    """What stands for slurmctld: numbers jobs, and shows all of them to everybody."""

    rows: dict[int, JobUse] = field(default_factory=dict)
    meanwhile: Callable[[], object] = lambda: None
    """Runs once, after somebody looked at the queue and before they act on it."""

    def submit(self, user: str, **changes: object) -> str:
        number = len(self.rows) + 1
        made = use(str(number), at(12), None, (), user=user, state="PENDING", is_finished=False)
        asked = {"num_nodes": 1, "limit_s": HOUR, "is_held": True, "account": "red"}
        self.rows[number] = replace(made, runs=(), **{**asked, **changes})
        return str(number)

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        text, words = "", command.split()
        if words[0] == "scancel":
            self._set(words[1], state="CANCELLED", is_finished=True, is_held=False)
        elif words[:2] == ["scontrol", "release"]:
            self._set(words[2], is_held=False)
        else:
            assert "squeue" in command
            text = "".join(map(_line, self.rows.values()))
            others, self.meanwhile = self.meanwhile, lambda: None
            others()
        return Result(command=command, exit_code=0, stdout=text, stderr="")

    def _set(self, job_id: str, **changes: object) -> None:
        self.rows[int(job_id)] = replace(self.rows[int(job_id)], **changes)

    def let_go(self) -> list[JobUse]:
        return [each for each in self.rows.values() if not (each.is_held or each.is_finished)]


def _line(each: JobUse) -> str:
    limit = "UNLIMITED" if each.limit_s is None else str(timedelta(seconds=each.limit_s))
    reason = "JobHeldUser" if each.is_held else "Priority"
    who = f"{each.job_id}|{each.user}|{each.account}|{each.partition}|{each.state}"
    return (
        f"{each.job_id}|{who}|N/A|N/A|{each.num_nodes}|N/A||{each.num_nodes}|{limit}|{reason}|a\n"
    )


def books(folder: Path, usd: str, **caps: Decimal) -> JobLedger:
    budget = BudgetSpec(usd_per_month=Decimal(usd), **caps)
    return open_ledger(replace(l40s(), budget=budget), folder, print)


def decided(ledger: JobLedger, slurmctld: Controller, job_id: str, usd: str | None) -> None:
    """What a laptop does of its own job, and writes down where it was let go."""
    entry = forecast_entry("", usd, at(12))
    with ledger.locked(slurmctld, CLUSTER) as opened:
        opened.decide(entry, job_id)
        opened.file.append(replace(entry, job_id=job_id))


@law(60)
@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(1, 3),
            st.one_of(st.none(), st.decimals("0", "4.5", places=2)),
            st.booleans(),
        ),
        min_size=1,
        max_size=24,
    )
)
def test_in_whatever_order_members_look_and_submit_they_stay_within_the_budget(
    steps: list[tuple[int, int, Decimal | None, bool]],
) -> None:
    """Four laptops; each step submits held, or decides of what the laptop has waiting.

    Between a laptop's look and what it does then the others may decide of all of theirs.
    """
    with tempfile.TemporaryDirectory() as name:
        ledgers = [books(Path(name) / str(number), "20") for number in range(4)]
        waiting: dict[int, tuple[str, Decimal | None]] = {}
        slurmctld = Controller()
        forecasts: dict[str, Decimal] = {}

        def decide_of(member: int) -> None:
            job_id, usd = waiting.pop(member)
            with suppress(OverBudgetError):
                decided(ledgers[member], slurmctld, job_id, None if usd is None else str(usd))
                if usd is not None:
                    forecasts[job_id] = usd

        for member, num_nodes, usd, is_overtaken in steps:
            if member in waiting:
                if is_overtaken:
                    slurmctld.meanwhile = lambda: [decide_of(each) for each in list(waiting)]
                decide_of(member)
            else:
                job_id = slurmctld.submit(f"user{member}", num_nodes=num_nodes)
                waiting[member] = job_id, usd
            reserved = [
                min(forecasts.get(each.job_id, most), most)
                for each in slurmctld.let_go()
                for most in (each.num_nodes * NODE_USD,)
            ]
            assert sum(reserved) <= 20
        for member in list(waiting):
            decide_of(member)
        assert not any(each.is_held for each in slurmctld.rows.values()), "none is forgotten"


def test_of_two_held_jobs_the_first_number_wins_whoever_decides_first(tmp_path: Path) -> None:
    ann, bob, slurmctld = books(tmp_path / "a", "5"), books(tmp_path / "b", "5"), Controller()
    first, second = slurmctld.submit("ann"), slurmctld.submit("bob")
    with pytest.raises(OverBudgetError, match=r"\$0\.43 left .*reserved by ann \$4\.57 \(job 1\)"):
        decided(bob, slurmctld, second, None)
    decided(ann, slurmctld, first, None)
    assert [each.user for each in slurmctld.let_go()] == ["ann"]
    assert bob.file.read().entries == ()


@pytest.mark.parametrize("comment", ["$0", "soperator:0123456789abcdef:aaaaaaaaaaaa"])
def test_a_member_s_word_makes_no_room(comment: str, tmp_path: Path) -> None:
    """Whoever submits by hand is counted up to what Slurm enforces, whatever the job says."""
    ann, slurmctld = books(tmp_path, "10"), Controller()
    slurmctld.submit("mallory", job=comment, is_held=False, num_nodes=2)
    own = slurmctld.submit("ann")
    with pytest.raises(OverBudgetError, match=r"reserved by mallory \$9\.14 \(job 1\)"):
        decided(ann, slurmctld, own, "4")


def test_a_member_s_ledger_counts_for_the_own_jobs_alone(tmp_path: Path) -> None:
    """A wrong figure in mallory's own ledger frees nothing for, and takes nothing from, ann."""
    ann, mallory = books(tmp_path / "a", "10"), books(tmp_path / "m", "10")
    slurmctld = Controller()
    mallory.file.append(forecast_entry("1", "0", at(11)), forecast_entry("99", "10", at(11)))
    slurmctld.submit("mallory", is_held=False)
    decided(ann, slurmctld, slurmctld.submit("ann"), "5")
    with pytest.raises(OverBudgetError, match=r"\$0\.43 left"):
        decided(ann, slurmctld, slurmctld.submit("ann"), "1")


@pytest.mark.parametrize("which", ["usd_per_user", "usd_per_account"])
def test_a_user_or_an_account_at_its_own_limit_is_refused_and_others_are_not(
    which: str, tmp_path: Path
) -> None:
    ledger, slurmctld = books(tmp_path, "100", **{which: Decimal(5)}), Controller()
    slurmctld.submit("ann", is_held=False, account="red")
    over = slurmctld.submit("ann", account="red")
    word, name = ("user", "ann") if which == "usd_per_user" else ("account", "red")
    said = rf"{word} {name} has \$0\.43 left of \$5\.00; budget .*raise budget\.{which}"
    with pytest.raises(OverBudgetError, match=said):
        decided(ledger, slurmctld, over, None)
    decided(ledger, slurmctld, slurmctld.submit("bob", account="blue"), None)
    assert [each.user for each in slurmctld.let_go()] == ["ann", "bob"]


def test_a_job_without_a_limit_is_reserved_to_the_end_of_the_month(tmp_path: Path) -> None:
    ledger, slurmctld = books(tmp_path, "5000"), Controller()
    slurmctld.submit("bob", is_held=False, limit_s=None)
    with pytest.raises(OverBudgetError, match=r"reserved by bob \$2,247\.85"):
        decided(ledger, slurmctld, slurmctld.submit("ann"), "4000")


def charge(job: JobUse) -> Charge:
    return queue_charge(rates_of(l40s()), job, at(12))


def test_a_running_job_counts_up_to_its_limit_and_what_it_ran_before() -> None:
    """Requeued: an hour on one node before; since 11:30 on two, for an hour at most."""
    earlier = use("1", at(8), at(9), ["worker-0"]).runs
    running = use("1", at(11, 30), None, ["worker-0", "worker-1"], limit_s=HOUR, num_nodes=2)
    found = charge(replace(running, runs=(*earlier, *running.runs)))
    assert (found.usd, found.so_far_usd) == (3 * NODE_USD, 2 * NODE_USD)
    ended = charge(use("2", at(8), at(9), ["worker-0"]))
    assert (ended.usd, ended.is_spent) == (NODE_USD, True)
    foreign = charge(use("3", at(8), None, ["elsewhere-0"], limit_s=HOUR))
    assert foreign.usd is None


def test_an_own_job_counts_by_its_forecast_until_it_cost_more() -> None:
    budget = BudgetSpec(usd_per_month=Decimal(100))
    entry, cheap = forecast_entry("1", "9", at(8)), forecast_entry("1", "1", at(8))
    running = charge(use("1", at(11), None, ["worker-0"], limit_s=HOUR * 9, account="red"))
    (found,) = month_budget(budget, [entry], at(12), [running]).charges
    assert (found.usd, found.user, found.account) == (9, "anna", "red")
    assert month_budget(budget, [cheap], at(12), [running]).reserved_usd == NODE_USD


NAMES = st.sampled_from(["ann", "bob", "carl"])
JOBS = st.lists(
    st.tuples(NAMES, NAMES, st.integers(0, 20), st.integers(1, 30), st.sets(st.integers(0, 4))),
    max_size=12,
)


def made(rows: list[tuple[str, str, int, int, set[int]]]) -> Iterator[JobUse]:
    for number, (user, account, start, length, nodes) in enumerate(rows, 1):
        yield use(
            str(number),
            at(start),
            at(start) + length * (at(1) - at(0, 50)),
            [f"worker-{node}" for node in sorted(nodes)],
            user=user,
            account=account,
            job=f"job-{length % 3}",
        )


@law(60)
@given(rows=JOBS)
def test_no_dollar_is_lost_or_doubled_by_whatever_it_is_summed(
    rows: list[tuple[str, str, int, int, set[int]]],
) -> None:
    """Each minute of a node with a job is paid once; users, accounts and jobs add up to that."""
    uses = list(made(rows))
    found = spend(rates_of(l40s()), uses, since=at(0), until=at(0, day=12))
    busy: set[tuple[str, int]] = set()
    for each in uses:
        (run,) = each.runs
        assert run.ended_at is not None
        began = int((run.started_at - at(0)).total_seconds()) // 600
        ended = int((run.ended_at - at(0)).total_seconds()) // 600
        busy |= {(node, slot) for node in run.nodes for slot in range(began, ended)}
    whole = len(busy) * NODE_USD / 6
    assert abs(found.jobs_usd - whole) < Decimal("1e-18")
    for by in By:
        total = sum(map(total_usd, grouped(found.jobs, by).values()), Decimal(0))
        assert abs(total - whole) < Decimal("1e-18")


@law(60)
@given(rows=JOBS, own=st.sets(st.integers(1, 12)), ended=st.sets(st.integers(1, 12)))
def test_each_job_is_in_the_month_once_whoever_knows_of_it(
    rows: list[tuple[str, str, int, int, set[int]]], own: set[int], ended: set[int]
) -> None:
    """In this ledger, in the queue, in both, with its end or without."""
    uses = list(made(rows))
    entries: list[ForecastEntry | ActualEntry] = []
    for each in uses:
        number = int(each.job_id)
        if number in own:
            entries.append(forecast_entry(each.job_id, "3", at(0)))
        if number in ended:
            entries.append(actual_entry(each.job_id, "2", at(1), at(2)))
    queue = [charge(each) for each in uses]
    month = month_budget(BudgetSpec(usd_per_month=Decimal(1)), entries, at(12), queue)
    keys = [each.key for each in month.charges]
    assert sorted(keys) == sorted((CLUSTER, each.job_id) for each in uses)
    again = month_budget(BudgetSpec(usd_per_month=Decimal(1)), entries, at(12), queue[::-1])
    assert abs(again.left_usd - month.left_usd) < Decimal("1e-18")


def test_times_of_the_queue_are_those_of_slurm() -> None:
    (found,) = slurm.queue(Controller({1: use("1", at(12), None, (), limit_s=90)}), CLUSTER)
    assert (found.limit_s, found.user, found.num_nodes) == (90, "anna", 0)
    assert datetime.now(UTC) > at(12, month=1), "the clock of this test is not the machine's"
