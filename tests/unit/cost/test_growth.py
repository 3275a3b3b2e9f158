"""The work of a bill grows with its lines, and no faster."""

from __future__ import annotations

import cProfile
import pstats

import pytest

from cost.bill.bill import Bill, render
from cost.prices.book import layered
from cost.resources.estimate import estimate
from stacks.spec import StackSpec
from tests.bench.scale import with_worker_sets


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """What the first bill of a process reads and keeps is no growth."""
    _calls(with_worker_sets(2))


def _calls(spec: StackSpec) -> int:
    """Function calls from a declaration to its printed bill: no clock, so no other work counts."""
    book = layered(spec)
    profile = cProfile.Profile()
    profile.enable()
    total = estimate(spec, book)
    render(Bill(estimate=total, problems=()))
    profile.disable()
    return pstats.Stats(profile).prim_calls  # pyright: ignore[reportAttributeAccessIssue]


def test_the_work_of_a_bill_is_linear_in_its_worker_sets() -> None:
    few, some, many = (_calls(with_worker_sets(number)) for number in (50, 100, 200))
    assert many - some == pytest.approx(2 * (some - few), rel=0.05)


def test_a_thousand_workers_of_one_set_are_hardly_more_work_than_one() -> None:
    """Wider numbers, and no more lines."""
    one, thousand = (_calls(with_worker_sets(1, nodes)) for nodes in (1, 1000))
    assert thousand < 2 * one
