"""A search costs what its trials cost together, and is refused where that is over its limit."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from cost.bill.bill import bill, render
from cost.prices.book import layered
from cost.report.layout import Format
from cost.runs.forecast import Forecast, UnknownRun
from cost.runs.searches import search_cost, search_line
from stacks.spec.slurm import AxisSpec, SearchSpec
from tests.unit.cost.run_stacks import l40s, rates_of

pytestmark = pytest.mark.usefixtures("public_key_file")
NODE_USD = Decimal("4.5688")
RATES = AxisSpec(key="train.learning_rate", values=("1e-5", "2e-5", "4e-5"))
SEARCH = SearchSpec(name="lr", job="finetune", metric="last_loss", grid=(RATES,), at_once=2)
HOURS_OF_NODES = 2 * 4
"""Two hours of forecast on four nodes."""


def test_three_trials_two_at_once_take_two_rounds() -> None:
    found = search_cost(SEARCH, rates_of(l40s()), ())
    assert found.forecast_usd == 3 * HOURS_OF_NODES * NODE_USD
    assert found.most_usd == 3 * 24 * 4 * NODE_USD
    assert found.most_hours == 2 * 24
    assert search_line(found) == (
        "Search lr: 3 trials of finetune, 2 at once: $109.65 by forecast, at most $1,315.81 and "
        "48.00 h by the time limits."
    )


def test_a_trial_that_trains_longer_costs_more() -> None:
    """Settings of the submission hold where the trial has none of the same key."""
    epochs = AxisSpec(key="train.epochs", values=("1", "3"))
    found = search_cost(replace(SEARCH, grid=(epochs,)), rates_of(l40s()), (), ["train.epochs=9"])
    assert found.forecast_usd == (1 + 3) * 4 * NODE_USD


def test_epochs_that_no_number_holds_are_named() -> None:
    """The preview of such a search ended in a traceback of decimal.Overflow."""
    epochs = AxisSpec(key="train.epochs", values=("1", "1e999999"))
    found = search_cost(replace(SEARCH, grid=(epochs,)), rates_of(l40s()), ())
    notes = [note for run in found.runs if isinstance(run, Forecast) for note in run.notes]
    assert notes == ["--set train.epochs=1e999999 is no number of epochs and not in the forecast"]


def test_a_budget_sees_the_search_as_one_run() -> None:
    run = search_cost(SEARCH, rates_of(l40s()), ()).run
    assert isinstance(run, Forecast)
    assert (run.job, run.num_nodes, run.hours) == ("lr", 8, 4)
    assert run.nodes_usd == 3 * HOURS_OF_NODES * NODE_USD


def test_without_a_forecast_only_the_time_limits_are_known() -> None:
    found = search_cost(SEARCH, rates_of(l40s(runs=())), ())
    assert found.forecast_usd is None
    assert isinstance(found.run, UnknownRun)
    assert found.run.at_most_usd == 3 * 24 * 4 * NODE_USD


@pytest.mark.parametrize(
    ("usd", "runs", "words"),
    [
        ("110", True, None),
        ("109", True, "lr: the forecast of 3 trials, $109.65, is over searches.lr.max_usd $109.00"),
        ("110", False, "lr: what the time limits allow of 3 trials, $1,315.81, is over"),
        ("1316", False, None),
    ],
)
def test_a_search_over_its_own_limit_says_so(usd: str, runs: bool, words: str | None) -> None:
    spec = l40s() if runs else l40s(runs=())
    over = search_cost(replace(SEARCH, max_usd=Decimal(usd)), rates_of(spec), ()).over
    assert (over is None) if words is None else (over is not None and over.startswith(words))


def test_the_preview_has_a_row_for_each_search_and_says_which_is_over() -> None:
    spec = l40s(searches=(replace(SEARCH, max_usd=Decimal(1)),))
    text = render(bill(spec, layered(spec)), Format.TABLE)
    assert "lr of finetune" in text
    assert "is over searches.lr.max_usd $1.00" in " ".join(text.split())
