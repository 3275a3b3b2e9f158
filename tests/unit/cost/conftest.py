"""Shipped stacks with their price books, and run records to place beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cost.bill.bill import Bill, bill
from cost.chat.unit_costs import UnitCosts
from cost.prices.book import PriceBook, layered
from cost.resources.estimate import Estimate, estimate
from cost.run_record import RunRecord, parse_run_record
from stacks.load import load_stack
from stacks.spec import StackSpec

Priced = tuple[StackSpec, Estimate]

RECORD: dict[str, Any] = json.loads(Path(__file__).with_name("run_record.json").read_text())


@pytest.fixture
def priced(public_key_file: Path) -> Callable[[str], Priced]:
    """`priced("l40s-dev")`: the shipped stack and its estimate."""

    def load(name: str) -> Priced:
        spec = load_stack(name)
        return spec, estimate(spec, PriceBook.load(spec.prices))

    return load


def unit_costs(spec: StackSpec, estimate: Estimate, records: Sequence[RunRecord] = ()) -> UnitCosts:
    """What the units of the stack cost by the lines of the estimate."""
    return UnitCosts(estimate=replace(estimate, spec=spec), records=records)


@pytest.fixture
def billed(public_key_file: Path) -> Callable[[str], Bill]:
    """`billed("l40s-dev")`: the bill of the shipped stack without any run record."""

    def load(name: str) -> Bill:
        spec = load_stack(name)
        return bill(spec, layered(spec))

    return load


def record_text(**changes: Any) -> str:
    """The text of a valid run record after the changes."""
    return json.dumps({**RECORD, **changes})


def record(**changes: Any) -> RunRecord:
    """A valid run record after the changes."""
    return parse_run_record(record_text(**changes), "run_record.json")
