"""A job that the budget has no room for is not queued; everything else is, and is written down."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from cost.resources.estimate import estimate
from cost.runs.forecast import Forecast
from cost.runs.ledger import ActualEntry, ForecastEntry, Ledger, OverrideEntry
from infra.clients.errors import JobsError
from infra.clients.slurm import Accounted
from infra.clients.ssh import Result
from infra.jobs import ledger
from infra.jobs.history import Submission
from infra.jobs.ledger import (
    JobLedger,
    budget_lines,
    expected,
    open_ledger,
    settle,
)
from stacks.spec.cost import BudgetSpec
from tests.unit.cost.run_stacks import CLUSTER, at, forecast_entry, job_of, l40s, trained, use
from tests.unit.jobs.raw import submit_within_budget
from tests.unit.jobs.test_submit import Recorded

pytestmark = pytest.mark.usefixtures("public_key_file")
EMPTY = "--\n"
FOUR = tuple(f"worker-{number}" for number in range(4))
ENDED = (
    "--\n1|1|finetune|anna|red|main|COMPLETED|2026-11-10T08:00:00|2026-11-10T10:00:00|0:0|512|"
    "cpu=512,gres/gpu=8,node=4|1-00:00:00|worker-[0-3]\n"
)
"""Two hours on four nodes of 4.5688 USD: 36.5504 USD."""


def books(state: Path, usd: str | None = "100") -> JobLedger:
    budget = None if usd is None else BudgetSpec(usd_per_month=Decimal(usd))
    return open_ledger(replace(l40s(), budget=budget), state, print)


def submission(job_id: str = "12") -> Submission:
    return Submission(
        stack="l40s-dev",
        job="finetune",
        job_id=job_id,
        code_hash="h",
        sets=(),
        after=None,
        log_path="/l",
        submitted_at="2026-11-10T12:00:00+00:00",
        cluster=CLUSTER,
    )


def ask(
    of: JobLedger,
    shell: Recorded,
    *,
    force: bool = False,
    submit: Callable[[], Submission] = submission,
) -> list[str]:
    """Submits `finetune` (forecast 36.5504 USD) and returns what was said."""
    said: list[str] = []
    run = of.forecast(job_of(of.spec))
    entry = expected(run, CLUSTER, at=at(12))
    submit_within_budget(of, shell, entry, submit, force=force, log=said.append)
    return said


def never() -> Submission:
    pytest.fail("it was submitted")


def test_a_job_that_fits_is_submitted_and_its_forecast_written_down(tmp_path: Path) -> None:
    of = books(tmp_path)
    said = ask(of, Recorded(stdout=EMPTY))
    assert said == ["budget 2026-11: $100.00 left of $100.00 ($0.00 spent, $0.00 reserved)"]
    (entry,) = of.file.read().entries
    assert isinstance(entry, ForecastEntry)
    assert (entry.job_id, entry.nodes_usd, entry.hours) == ("12", Decimal("36.550400"), 2)
    assert of.file.path == tmp_path / "runs" / "l40s-dev" / "ledger.jsonl"


@pytest.mark.feature("S004-31")
def test_a_job_over_the_budget_is_refused_with_the_numbers_and_not_queued(tmp_path: Path) -> None:
    of = books(tmp_path)
    of.file.append(forecast_entry("1", "64", at(9)))
    with pytest.raises(JobsError, match=r"\$36\.55 is more than what is left: .*\$36\.00 left"):
        ask(of, Recorded(stdout=EMPTY), submit=never)
    assert len(of.file.read().entries) == 1


def test_force_submits_it_and_the_ledger_says_who_and_by_how_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "anna")
    of = books(tmp_path)
    of.file.append(forecast_entry("1", "64", at(9)))
    said = ask(of, Recorded(stdout=EMPTY), force=True)
    assert said[-1] == "finetune: submitted over the budget with --force; the ledger says so"
    override = of.file.read().entries[-1]
    assert isinstance(override, OverrideEntry)
    assert (override.user, override.job_id, override.left_usd) == ("anna", "12", 36)


def test_force_on_a_job_that_fits_leaves_no_override(tmp_path: Path) -> None:
    of = books(tmp_path)
    ask(of, Recorded(stdout=EMPTY), force=True)
    assert [type(entry) for entry in of.file.read().entries] == [ForecastEntry]


def test_what_ended_meanwhile_makes_room_before_the_look(tmp_path: Path) -> None:
    """80 USD were reserved; the job cost 36.55."""
    of = books(tmp_path)
    of.file.append(forecast_entry("1", "80", at(8)))
    said = ask(of, Recorded(stdout=ENDED))
    assert "$63.45 left of $100.00 ($36.55 spent" in said[-1]


def tasks(*states: str) -> str:
    """sacct of array 20 whose tasks took an hour each on four nodes: 18.2752 USD.

    The task that was last to start has the id of the array.
    """
    times = "2026-11-10T{:02d}:00:00|2026-11-10T{:02d}:00:00|"
    parts = "0:0|512|cpu=512,gres/gpu=8,node=4|1-00:00:00|worker-[0-3]"
    rows = [
        f"{20 if number + 1 == len(states) else 21 + number}|20_{number}|lr|anna|red|main|{state}|"
        + (
            times.format(6 + number, 7 + number) + parts
            if state == "COMPLETED"
            else "Unknown|Unknown|0:0|512||1-00:00:00|None assigned"
        )
        for number, state in enumerate(states)
    ]
    return "--\n" + "".join(f"{row}\n" for row in rows)


class Listed(Recorded):
    """A shell whose queue has these tasks still when it is asked once more."""

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        result = super().run(command, stdin=stdin)
        return result if "sacct " in command else replace(result, stdout="20\n21\n22\n")


@pytest.mark.parametrize(
    ("states", "spent", "reserved"),
    [
        (("PENDING", "PENDING", "PENDING"), "$0.00", "$120.00"),
        (("COMPLETED", "PENDING", "PENDING"), "$18.28", "$80.00"),
        (("PENDING", "COMPLETED", "COMPLETED"), "$36.55", "$40.00"),
        (("COMPLETED", "COMPLETED", "COMPLETED"), "$54.83", "$0.00"),
    ],
    ids=["none ended", "one", "the last before the first", "all"],
)
def test_the_trials_of_a_search_are_spent_or_reserved_and_never_both(
    states: tuple[str, ...], spent: str, reserved: str, tmp_path: Path
) -> None:
    """An array has one forecast, and each of its tasks an id."""
    of = books(tmp_path, usd="1000")
    of.file.append(forecast_entry("20", "120", at(7), job="lr", num_tasks=3))
    said = ask(of, Listed(stdout=tasks(*states)))
    assert f"({spent} spent, {reserved} reserved" in said[-1]


def test_tasks_that_were_cancelled_before_they_started_free_all_that_they_reserved(
    tmp_path: Path,
) -> None:
    of = books(tmp_path, usd="1000")
    of.file.append(forecast_entry("20", "120", at(7), job="lr", num_tasks=3))
    ended = "CANCELLED by 0|None|2026-11-10T09:00:00|0:0|512||1:00:00|None assigned\n"
    rest = f"20|20_[1-2%1]|lr|anna|red|main|{ended}"
    said = ask(of, Recorded(stdout=tasks("COMPLETED", "PENDING").partition("20|")[0] + rest))
    assert "($18.28 spent, $0.00 reserved" in said[-1]


def test_a_trial_is_held_against_its_part_of_the_forecast(tmp_path: Path) -> None:
    of = books(tmp_path)
    of.file.append(forecast_entry("20", "120", at(7), job="lr", num_tasks=3))
    done = Recorded(stdout=tasks("COMPLETED", "PENDING", "PENDING"))
    note = ledger.note_actual(of, done, CLUSTER, "21")
    assert note.startswith("job 21: $18.28, 4.000 node-hours; forecast $40.00 (-54.3 %)")


@dataclass(kw_only=True)
class Lost:
    """A slurmctld that lost job 1, which accounting keeps open; `queued`: ids that it lists."""

    state: str = "RUNNING"
    start: str = "2026-11-10T08:00:00"
    end: str = "Unknown"
    limit: str = "1-00:00:00"
    queued: str = "9\n"

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        nodes = "None assigned" if self.start == "Unknown" else "worker-[0-3]"
        row = (
            f"--\n1|1|finetune|anna|red|main|{self.state}|{self.start}|{self.end}|0:0|512|"
            f"cpu=512,gres/gpu=8,node=4|{self.limit}|{nodes}\n"
        )
        text = row if "sacct " in command else self.queued
        return Result(command=command, exit_code=0, stdout=text, stderr="")


NODE_USD = Decimal("4.5688")
FORGOTTEN = {
    "never started": (Lost(state="PENDING", start="Unknown"), 0),
    "lost while it ran": (Lost(), 4),
    "no limit": (Lost(limit="UNLIMITED"), 4),
    "over its limit": (Lost(limit="01:30:00"), Decimal("1.5")),
}


@pytest.mark.parametrize(("shell", "hours"), FORGOTTEN.values(), ids=FORGOTTEN)
def test_a_job_that_slurmctld_forgot_costs_what_it_had_at_most_and_reserves_nothing(
    shell: Lost, hours: Decimal, tmp_path: Path
) -> None:
    """It held its forecast all month, and `spend` charged it to the end of time."""
    of = books(tmp_path, "1000")
    of.file.append(forecast_entry("1", "80", at(8)))
    usd = 4 * NODE_USD * hours
    for until in (at(12), at(23), at(12, day=29)):
        report = ledger.report_of_cluster(
            of, shell, cluster=CLUSTER, since=at(0, day=1), until=until, now=until
        )
        assert [row.use.state for row in report.jobs] == ["FORGOTTEN"] * bool(hours)
        assert report.jobs_usd == usd
        assert report.budget is not None
        assert (report.budget.spent_usd, report.budget.reserved_usd) == (usd, 0)
    assert [type(entry) for entry in of.file.read().entries] == [ForecastEntry, ActualEntry]


def test_an_end_in_accounting_counts_instead_of_what_was_not_seen(tmp_path: Path) -> None:
    """`sacctmgr show runawayjobs` gives a lost job one, also of another month."""
    of = books(tmp_path, "1000")
    start = "2026-10-31T23:00:00"
    period = {"cluster": CLUSTER, "since": at(0, day=1), "until": at(12), "now": at(12)}
    ledger.report_of_cluster(of, Lost(start=start), **period)
    ended = Lost(state="COMPLETED", start=start, end="2026-11-01T01:00:00")
    report = ledger.report_of_cluster(of, ended, **period)
    assert report.budget is not None
    assert report.budget.spent_usd == report.jobs_usd == 4 * NODE_USD


def test_a_job_that_the_queue_has_again_goes_on(tmp_path: Path) -> None:
    of = books(tmp_path, "1000")
    of.file.append(forecast_entry("1", "80", at(8)))
    period = {"cluster": CLUSTER, "since": at(0, day=1), "until": at(12), "now": at(12)}
    report = ledger.report_of_cluster(of, Lost(queued="1\n"), **period)
    assert report.budget is not None
    assert (report.budget.spent_usd, report.budget.reserved_usd) == (0, 80)


def test_an_open_forecast_is_asked_for_by_its_id(tmp_path: Path) -> None:
    """A job that was cancelled before it could start is in no period of sacct."""
    of = books(tmp_path)
    of.file.append(forecast_entry("4", "80", at(8)))
    cancelled = (
        "--\n4|4|finetune|anna|red|main|CANCELLED|None|2026-11-10T08:30:17|0:0|2||1:00:00|"
        "None assigned\n"
    )
    shell = Recorded(stdout=cancelled)
    said = ask(of, shell)
    assert shell.asked[0].endswith("--jobs=4")
    assert "$100.00 left" in said[-1]


def test_a_run_of_unknown_hours_is_held_to_its_time_limit(tmp_path: Path) -> None:
    """24 hours on four nodes; before, it was let through."""
    of = books(tmp_path, "438")
    of = replace(of, spec=replace(of.spec, runs=()), rates=replace(of.rates, spec=l40s(runs=())))
    with pytest.raises(JobsError, match=r"finetune: the cost up to the time limit of \$438\.60 is"):
        ask(of, Recorded(stdout=EMPTY), submit=never)


def test_a_cost_that_is_not_known_is_let_through_with_a_note(tmp_path: Path) -> None:
    of = books(tmp_path, "1")
    unpriced = replace(of.rates.book, readings={})
    of = replace(of, spec=replace(of.spec, runs=()), rates=estimate(l40s(runs=()), unpriced))
    said = ask(of, Recorded(stdout=EMPTY))
    assert said[0] == "finetune: its cost is not known, so the budget does not hold it back"
    (entry,) = of.file.read().entries
    assert isinstance(entry, ForecastEntry)
    assert (entry.nodes_usd, entry.hours) == (None, None)


def test_without_a_budget_nothing_is_asked_and_the_forecast_is_written_down(
    tmp_path: Path,
) -> None:
    of, shell = books(tmp_path, None), Recorded()
    assert ask(of, shell) == []
    assert shell.asked == []
    assert len(of.file.read().entries) == 1


def test_an_accounting_that_does_not_answer_leaves_the_ledger_to_decide(tmp_path: Path) -> None:
    of = books(tmp_path)
    of.file.append(forecast_entry("1", "64", at(9)))
    shell = Recorded(stdout=EMPTY, stderr="sacct: error: Connection refused", exit_code=1)
    with pytest.raises(JobsError, match="is more than what is left"):
        ask(of, shell, submit=never)


def test_a_submission_that_sbatch_refuses_reserves_nothing(tmp_path: Path) -> None:
    def refused() -> Submission:
        raise JobsError("finetune: sbatch: exit 1")

    of = books(tmp_path)
    with pytest.raises(JobsError, match="sbatch"):
        ask(of, Recorded(stdout=EMPTY), submit=refused)
    assert of.file.read().entries == ()


def test_a_second_submission_sees_the_first(tmp_path: Path) -> None:
    """Both of 36.55 USD fit alone, not together."""
    of = books(tmp_path, "50")
    ask(of, Recorded(stdout=EMPTY))
    with pytest.raises(JobsError, match="is more than what is left"):
        ask(of, Recorded(stdout=EMPTY), submit=never)
    assert len(of.file.read().entries) == 1


def test_the_ledger_is_locked_while_sbatch_runs(tmp_path: Path) -> None:
    import fcntl

    of = books(tmp_path)
    locked: list[bool] = []

    def submit() -> Submission:
        with of.file.path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                locked.append(True)
        return submission()

    ask(of, Recorded(stdout=EMPTY), submit=submit)
    assert locked == [True]


def test_a_damaged_line_is_said_and_the_rest_still_counts(tmp_path: Path) -> None:
    of = books(tmp_path)
    of.file.append(forecast_entry("1", "64", at(9)), forecast_entry("2", "1", at(9)))
    of.file.path.write_bytes(of.file.path.read_bytes()[:-9])
    with pytest.raises(JobsError, match=r"\$36\.00 left"):
        ask(of, Recorded(stdout=EMPTY), submit=never)


@pytest.mark.parametrize("number", ["12x", "", "-1", "1_2", "\u0663", "9" * 5000, 12])
def test_a_line_whose_job_is_no_number_is_said_and_the_rest_still_counts(
    number: object, tmp_path: Path
) -> None:
    """Edited by hand, it ended every submit and spend in a traceback."""
    of = books(tmp_path)
    of.file.append(forecast_entry("1", "64", at(9)), forecast_entry("2", "1", at(9)))
    first, second = of.file.path.read_text().splitlines()
    second = json.dumps({**json.loads(second), "job_id": number})
    of.file.path.write_text(f"{first}\n{second}\n")
    with pytest.raises(JobsError, match=r"\$36\.00 left"):
        ask(of, Recorded(stdout=EMPTY), submit=never)
    period = {"cluster": CLUSTER, "since": at(0, day=1), "until": at(12), "now": at(12)}
    (note,) = ledger.report_of_cluster(of, Recorded(stdout=EMPTY), **period).notes
    allowed = "job_id: expected a number such as '12', got"
    assert note.startswith(f"{of.file.path}:2: {allowed}")
    assert note.endswith("; this line is left out")


def test_a_dry_run_says_that_the_budget_would_refuse_and_writes_nothing(tmp_path: Path) -> None:
    of = books(tmp_path, "10")
    lines = budget_lines(of, of.forecast(job_of(of.spec)), at(12))
    assert lines[-1].startswith("refused: finetune: the forecast of $36.55")
    assert not of.file.path.exists()


def accounted(*jobs: object) -> Accounted:
    return Accounted(uses=jobs, has_accounting=True)  # type: ignore[arg-type]


def settled(of: JobLedger, *jobs: object) -> tuple[ActualEntry, ...]:
    with of.file.locked() as ledger:
        return settle(ledger, accounted(*jobs), of, since=at(0, day=1), now=at(12))


def test_settling_twice_writes_a_job_down_once(tmp_path: Path) -> None:
    of = books(tmp_path)
    job = use("1", at(8), at(10), FOUR)
    (entry,) = settled(of, job)
    assert (entry.nodes_usd, entry.node_hours) == (Decimal("36.5504"), 8)
    assert settled(of, job) == ()


def test_a_job_that_runs_is_not_settled(tmp_path: Path) -> None:
    assert settled(books(tmp_path), use("1", at(8), None, FOUR)) == ()


def test_a_job_that_began_before_the_period_is_settled_whole(tmp_path: Path) -> None:
    (entry,) = settled(books(tmp_path), use("1", at(22, day=31, month=10), at(2, day=1), FOUR))
    assert entry.node_hours == 16


def test_an_end_after_this_machine_s_now_is_paid_whole(tmp_path: Path) -> None:
    """The cluster's clock may be ahead."""
    (entry,) = settled(books(tmp_path), use("1", at(12), at(12) + timedelta(minutes=9), FOUR))
    assert entry.node_hours == Decimal("0.6")


def test_padding_comes_from_the_record_of_the_same_job_and_time(tmp_path: Path) -> None:
    inside = {"started_at": "2026-11-10T08:00:05Z", "finished_at": "2026-11-10T09:59:55Z"}
    record = trained(job_id="1", metrics={"padding_percent": 25}, **inside)
    of = replace(books(tmp_path), records=(record,))
    (entry,) = settled(of, use("1", at(8), at(10), FOUR))
    assert entry.padding_percent == 25
    (other,) = settled(of, use("1", at(8, day=12), at(10, day=12), FOUR, cluster="new"))
    assert other.padding_percent is None, "job 1 of another cluster"


def test_a_record_that_is_pulled_later_completes_the_actual(tmp_path: Path) -> None:
    of = books(tmp_path)
    job = use("1", at(8), at(10), FOUR)
    settled(of, job)
    inside = {"started_at": "2026-11-10T08:00:05Z", "finished_at": "2026-11-10T09:59:55Z"}
    record = trained(job_id="1", metrics={"padding_percent": 25}, **inside)
    (entry,) = settled(replace(of, records=(record,)), job)
    assert entry.padding_percent == 25


def test_spend_settles_what_ended_and_prints_it_beside_its_forecast(tmp_path: Path) -> None:
    of = books(tmp_path)
    of.file.append(forecast_entry("1", "30", at(8)))
    report = ledger.report_of_cluster(
        of, Recorded(stdout=ENDED), cluster=CLUSTER, since=at(0, day=1), until=at(12), now=at(12)
    )
    (row,) = report.jobs
    assert (row.nodes_usd, row.forecast_usd) == (Decimal("36.5504"), 30)
    assert isinstance(of.file.read().entries[-1], ActualEntry)
    assert report.notes == ()


def test_without_accounting_the_ledger_fills_in_and_the_report_says_so(tmp_path: Path) -> None:
    of = books(tmp_path)
    settled(of, use("1", at(8), at(10), FOUR))
    shell = Recorded(stdout="--\n", stderr="Slurm accounting storage is disabled\n", exit_code=1)
    report = ledger.report_of_cluster(
        of, shell, cluster=CLUSTER, since=at(0, day=1), until=at(12), now=at(12)
    )
    assert [row.use.job_id for row in report.jobs] == ["1"]
    assert report.notes[0].startswith("Accounting is off on this cluster")


def test_jobs_of_a_former_cluster_are_still_this_stack_s_spend(tmp_path: Path) -> None:
    of = books(tmp_path)
    settled(of, use("1", at(1), at(2), FOUR, cluster="ssh-ed25519 OLD"))
    report = ledger.report_of_cluster(
        of, Recorded(stdout=ENDED), cluster=CLUSTER, since=at(0, day=1), until=at(12), now=at(12)
    )
    assert sorted(row.use.cluster for row in report.jobs) == [CLUSTER, "ssh-ed25519 OLD"]


def test_the_ledger_alone_says_what_it_has_no_end_of(tmp_path: Path) -> None:
    of = books(tmp_path)
    of.file.append(forecast_entry("7", "30", at(8)))
    report = ledger.report_of_ledger(of, since=at(0, day=1), until=at(12), now=at(12))
    assert report.jobs == ()
    assert report.notes[1] == "Without an end: jobs 7."


def test_a_pulled_job_says_its_cost_beside_the_forecast(tmp_path: Path) -> None:
    of = books(tmp_path)
    of.file.append(forecast_entry("1", "30", at(8)))
    text = ledger.note_actual(of, Recorded(stdout=ENDED), CLUSTER, "1")
    assert text == "job 1: $36.55, 8.000 node-hours; forecast $30.00 (+21.8 %)"


def test_a_forecast_of_a_stack_with_contract_prices_uses_them(tmp_path: Path) -> None:
    """The book of seed 000 says 4.5688 USD a node-hour."""
    from stacks.spec.cost import ContractPriceSpec

    ours = ContractPriceSpec(
        sku="gpu-l40s-d/gpu",
        unit="GPU-hour",
        usd=Decimal(0),
        source="contract",
        date=date(2026, 11, 1),
    )
    spec = l40s(contract_prices=(ours,))
    run = open_ledger(spec, tmp_path, print).forecast(job_of(spec))
    assert isinstance(run, Forecast)
    assert run.nodes_usd is not None
    assert run.nodes_usd < Decimal("36.5504")
    assert Ledger(tmp_path / "none").read().entries == ()


def test_a_job_whose_name_no_terminal_shows_is_settled_once(tmp_path: Path) -> None:
    of = books(tmp_path)
    job = use("1", at(8), at(10), FOUR, job="\x1b[2J\udc80")
    (entry,) = settled(of, job)
    assert settled(of, job) == ()
    assert of.file.read().entries == (replace(entry, job="\\x1b[2J\\udc80"),)
