"""A snapshot survives the engine's outputs, and one that cannot be read is no baseline."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from cost.bill.bill import Bill
from cost.diff.diff import FORMAT, SnapshotError, cost_outputs, diff, parse, plain, take
from cost.diff.table import FIRST_DEPLOYMENT, NO_CHANGE, change
from tests import SHIPPED

Billed = Callable[[str], Bill]


def as_the_engine_keeps_it(value: object) -> Any:
    """Keys sorted, numbers as floats: what comes back from a state file."""
    return json.loads(json.dumps(value, sort_keys=True), parse_int=float)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_snapshot_comes_back_as_it_was(billed: Billed, name: str):
    snapshot = take(billed(name))
    assert parse(plain(snapshot)) == snapshot
    back = parse(as_the_engine_keeps_it(plain(snapshot)))
    assert diff(snapshot, back).is_empty
    assert diff(back, snapshot).is_empty


def leaves(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def test_the_output_holds_plain_values_only(billed: Billed):
    found = list(leaves(cost_outputs(billed("l40s-dev"))))
    assert {type(value) for value in found} <= {str, int, bool, type(None)}
    assert len(found) < 250


def test_the_same_stack_has_the_same_output_every_time(billed: Billed):
    first, second = (cost_outputs(billed("l40s-dev")) for _ in range(2))
    assert first == second


def test_a_value_that_costs_nothing_is_not_kept(billed: Billed):
    values = take(billed("l40s-dev")).values
    assert "nodes.workers[worker].preset" in values
    assert not [key for key in values if key.startswith(("login", "storage.places"))]


def test_a_stack_that_was_never_deployed_has_no_earlier_bill(billed: Billed):
    found = change(billed("l40s-dev"), {})
    assert found.render() == f"{FIRST_DEPLOYMENT}\n"


def test_an_unchanged_stack_has_no_change(billed: Billed):
    bill = billed("l40s-dev")
    outputs = as_the_engine_keeps_it({"cost": cost_outputs(bill)})
    assert change(bill, outputs).render() == f"{NO_CHANGE}\n"


UNREADABLE: dict[str, tuple[object, str]] = {
    "of a version without snapshots": ({"monthly_low_usd": "1.00"}, "it holds no snapshot"),
    "of an older format": (
        {"snapshot": {"format": 0}},
        f"its format is 0, and this version reads {FORMAT}",
    ),
    "of a newer format": ({"snapshot": {"format": 99}}, "its format is 99"),
    "that is cut": ({"snapshot": {"format": FORMAT, "stack": "x"}}, "it is damaged: book: missing"),
    "with a text for a line": (
        {
            "snapshot": {"format": FORMAT, "stack": "x", "book": "b", "lines": {"a": "b"}}
            | {key: {} for key in ("amounts", "prices", "values")}
        },
        "it is damaged: 'b' is not section, name, size, unit_usd, per, ",
    ),
    "that is no mapping": ("text", "it holds no snapshot"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_an_output_that_cannot_be_read_is_no_baseline_and_says_why(billed: Billed, case: str):
    deployed, reason = UNREADABLE[case]
    found = change(billed("l40s-dev"), {"cost": deployed})
    assert found.difference is None
    assert found.render().startswith("No earlier bill to compare with: that of the deployment ")
    assert reason in found.reason


def test_an_amount_that_is_no_number_is_refused(billed: Billed):
    damaged: Any = plain(take(billed("local")))
    damaged["lines"]["storage.jail"] = damaged["lines"]["storage.jail"].replace("20.48", "cheap")
    with pytest.raises(SnapshotError, match=r"damaged: '.*cheap.*' is not section, name, size, "):
        parse(damaged)
