"""The ledger loses no whole line to a damaged one, to a full disk or to two writers at once."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.runs.budget import Charge, month_budget
from cost.runs.ledger import Entry, Ledger, LedgerError, LineError, OverrideEntry, decode, encode
from stacks.errors import visible
from stacks.spec.cost import BudgetSpec
from tests.unit.cost.run_stacks import CLUSTER, actual_entry, at, forecast_entry

BUDGET = BudgetSpec(usd_per_month=Decimal(100))
OVERRIDE = OverrideEntry(
    at=at(8),
    job="finetune",
    job_id="3",
    cluster=CLUSTER,
    user="anna",
    forecast_usd=Decimal("36.55"),
    left_usd=Decimal("-1.50"),
    budget_usd=Decimal(100),
)
ENTRIES: tuple[Entry, ...] = (
    forecast_entry("1", "36.55", at(8)),
    forecast_entry("2", None, at(9)),
    actual_entry("1", "30.25", at(8), at(10), padding_percent=Decimal("12.5")),
    forecast_entry("3", "90", at(9), num_tasks=3),
    actual_entry("4", "30.25", at(8), at(10), array_id="3", num_tasks=2),
    OVERRIDE,
)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "runs" / "l40s-dev" / "ledger.jsonl")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_an_entry_comes_back_as_it_was_written(entry: Entry):
    assert decode(encode(entry)) == entry


@given(usd=st.decimals(min_value=0, max_value=10**9, places=6), job=st.text(), basis=st.text())
def test_any_amount_stays_exact_and_any_name_may_be_shown(usd: Decimal, job: str, basis: str):
    entry = forecast_entry("1", str(usd), at(8), job=job, basis=basis)
    line = encode(entry)
    assert decode(line) == replace(entry, job=visible(job), basis=visible(basis))
    assert line.isascii()
    assert len(line.splitlines()) == 1


@pytest.mark.parametrize("entry", ENTRIES[:3], ids=lambda entry: type(entry).__name__)
def test_a_line_of_before_arrays_were_counted_is_of_a_job_that_is_none(entry: Entry):
    values = json.loads(encode(entry))
    former = {name: values[name] for name in values if name not in ("num_tasks", "array_id")}
    assert len(former) < len(values)
    assert decode(json.dumps(former)) == entry
    with pytest.raises(LineError, match="num_tasks: expected a whole number of 1 or more, got 0"):
        decode(json.dumps({**values, "num_tasks": 0}))


def test_a_ledger_that_is_not_there_is_empty_and_reading_does_not_make_it(ledger: Ledger):
    assert ledger.read().entries == ()
    assert not ledger.path.exists()


def test_a_ledger_that_cannot_be_opened_is_refused_before_anything_is_done(ledger: Ledger):
    ledger.path.mkdir(parents=True)
    with pytest.raises(LedgerError, match=r"ledger\.jsonl: cannot be read: Is a directory"):
        ledger.read()
    with pytest.raises(LedgerError, match=r"cannot be opened to write: Is a directory; nothing"):
        ledger.append(ENTRIES[0])


def test_entries_come_back_in_their_order(ledger: Ledger):
    ledger.append(*ENTRIES[:2])
    ledger.append(*ENTRIES[2:])
    assert ledger.read().entries == ENTRIES
    first = json.loads(ledger.path.read_text().splitlines()[0])
    assert (first["schema_version"], first["kind"], first["nodes_usd"]) == (1, "forecast", "36.55")


def test_a_line_that_was_cut_is_reported_with_its_number_and_costs_no_other(ledger: Ledger):
    ledger.append(*ENTRIES)
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole[:-20])
    found = ledger.read()
    assert found.entries == ENTRIES[:-1]
    (problem,) = found.problems
    assert problem.startswith(f"{ledger.path}:6: not a JSON object")


def test_after_a_cut_line_the_next_entry_has_a_line_of_its_own(ledger: Ledger):
    ledger.append(*ENTRIES[:2])
    ledger.path.write_bytes(ledger.path.read_bytes()[:-20])
    ledger.append(OVERRIDE)
    found = ledger.read()
    assert found.entries == (ENTRIES[0], OVERRIDE)
    assert len(found.problems) == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[]", "not a JSON object"),
        ('{"schema_version": 1, "kind": "guess"}', "kind: got text 'guess'"),
        ('{"schema_version": 1, "kind": []}', "kind: got a list"),
        (f'{{"schema_version": {"9" * 5000}}}', "not a JSON object: nested too deep, or a number"),
        ('{"schema_version": 1, "kind": "forecast"}', "at: missing; give a time"),
        ("\\xff", "not a JSON object"),
    ],
)
def test_a_line_that_is_no_entry_is_a_problem_and_not_the_end(ledger: Ledger, line: str, said: str):
    ledger.append(ENTRIES[0])
    with ledger.path.open("a") as file:
        file.write(f"{line}\n")
    ledger.append(OVERRIDE)
    found = ledger.read()
    assert found.entries == (ENTRIES[0], OVERRIDE)
    assert said in found.problems[0]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("nodes_usd", "NaN", "nodes_usd: expected a number, got text 'NaN'"),
        ("nodes_usd", True, "nodes_usd: expected a number, got true"),
        ("nodes_usd", "-5", "nodes_usd: expected a number from 0 to"),
        ("hours", "1e400", "hours: expected a number from 0 to"),
        ("num_nodes", -1, "num_nodes: expected a whole number of 0 or more, got -1"),
        ("at", "yesterday", "at: expected a time"),
    ],
)
def test_a_wrong_value_is_named_with_its_key(ledger: Ledger, key: str, value: object, said: str):
    ledger.append(ENTRIES[0])
    values = {**json.loads(ledger.path.read_text()), key: value}
    ledger.path.write_text(json.dumps(values) + "\n")
    assert said in ledger.read().problems[0]


def test_a_line_of_another_schema_version_is_refused_with_file_and_line(ledger: Ledger):
    ledger.append(*ENTRIES[:2])
    with ledger.path.open("a") as file:
        file.write('{"schema_version": 2, "kind": "forecast"}\n')
    with pytest.raises(LedgerError, match=r"ledger\.jsonl:3: schema_version: got number 2,"):
        ledger.read()


def test_what_the_disk_does_not_take_whole_is_taken_back(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
):
    ledger.append(ENTRIES[0])
    before = ledger.path.read_bytes()
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:10]))
    with pytest.raises(LedgerError, match=r"10 of .* bytes were written: is the disk full"):
        ledger.append(ENTRIES[1])
    assert ledger.path.read_bytes() == before


def test_entries_are_on_the_disk_when_append_returns(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
):
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size))
    ledger.append(ENTRIES[0])
    assert synced[-1] == ledger.path.stat().st_size
    assert len(synced) == 2, "the new file's folder, then its content"


def test_many_threads_lose_no_line_and_mix_none(ledger: Ledger):
    def add(number: int) -> None:
        for step in range(10):
            ledger.append(forecast_entry(f"{number}{step}", "1", at(8)))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = ledger.read()
    assert (len(found.entries), found.problems) == (80, ())


def test_of_two_at_once_only_one_gets_the_rest_of_the_budget(ledger: Ledger):
    """60 of 100 USD each. Without the lock both meet between their look and their line."""
    both_looked = threading.Barrier(2)

    def take(number: str) -> None:
        with ledger.locked() as opened:
            month = month_budget(BUDGET, opened.read().entries, at(9))
            with contextlib.suppress(threading.BrokenBarrierError):
                both_looked.wait(timeout=0.5)
            if month.refusal("finetune", Decimal(60)) is None:
                opened.append(forecast_entry(number, "60", at(9)))

    threads = [threading.Thread(target=take, args=(number,)) for number in ("1", "2")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ledger.read().entries) == 1


def left(*entries: Entry) -> Decimal:
    return month_budget(BUDGET, entries, at(12)).left_usd


def test_without_jobs_the_whole_budget_is_left():
    assert left() == 100


def test_a_forecast_is_reserved_until_the_actual_takes_its_place():
    forecast = forecast_entry("1", "36.55", at(8))
    assert left(forecast) == Decimal("63.45")
    assert left(forecast, actual_entry("1", "30", at(8), at(10))) == 70


def test_the_newest_actual_of_a_job_counts_and_only_once():
    entries = (actual_entry("1", "30", at(8), at(10)), actual_entry("1", "20", at(8), at(10)))
    assert left(*entries) == 80


def test_a_job_that_is_in_the_queue_again_after_its_end_counts_as_the_queue_has_it():
    """Requeued by hand, or taken for lost while slurmctld came back."""
    key = (CLUSTER, "1")
    runs = Charge(
        key=key,
        array_key=key,
        usd=Decimal(50),
        so_far_usd=Decimal(20),
        is_spent=False,
        job="finetune",
    )
    month = month_budget(BUDGET, [actual_entry("1", "20", at(8), at(10))], at(12), [runs])
    assert (month.spent_usd, month.reserved_usd) == (0, 50)


def test_the_same_number_on_another_cluster_is_another_job():
    """Job ids start again at 1 on a cluster that was made anew."""
    entries = (
        actual_entry("1", "30", at(8), at(10)),
        forecast_entry("1", "20", at(8), cluster="ssh-ed25519 BBBB"),
    )
    assert left(*entries) == 50


def test_a_job_across_the_turn_of_the_month_pays_each_month_its_part():
    """Two of its eight hours are November's."""
    crossing = actual_entry("1", "40", at(18, day=31, month=10), at(2, day=1))
    assert left(crossing) == 90


def test_what_last_month_spent_or_reserved_is_not_this_month_s():
    entries = (
        actual_entry("1", "40", at(1, day=5, month=10), at(2, day=5, month=10)),
        forecast_entry("2", "40", at(1, day=5, month=10)),
    )
    assert left(*entries) == 100


def test_a_forecast_of_last_month_that_reaches_into_this_one_is_reserved():
    assert left(forecast_entry("2", "40", at(23, day=31, month=10))) == 60


def test_jobs_that_nothing_is_known_about_are_counted_as_such():
    month = month_budget(BUDGET, [forecast_entry("1", None, at(8))], at(12))
    assert (month.left_usd, month.num_unknown) == (100, 1)
    assert "1 jobs not counted" in str(month)


def test_a_forecast_that_fits_exactly_is_not_refused_and_one_cent_more_is():
    month = month_budget(BUDGET, [forecast_entry("1", "60", at(8))], at(12))
    assert month.refusal("finetune", Decimal(40)) is None
    refusal = month.refusal("finetune", Decimal("40.01"))
    assert refusal is not None
    assert "finetune: the forecast of $40.01 is more than what is left" in refusal
    assert "$40.00 left of $100.00 ($0.00 spent, $60.00 reserved)" in refusal
    assert "--force" in refusal
