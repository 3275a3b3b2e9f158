"""A change of the bill adds up, and is never exact where a price is unknown."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

from cost.diff import diff, render_diff
from cost.estimate import estimate
from cost.layout import WIDTH, Format
from cost.price_book import PriceBook
from tests.unit.cost.conftest import Priced


def test_the_changes_add_up_to_the_change_of_the_total(priced: Callable[[str], Priced]):
    _, before = priced("l40s-dev")
    _, after = priced("h100-prod")
    change = diff(before, after)
    lines = [line.change_low_usd or Decimal(0) for line in change.changes]
    assert sum(lines) == after.monthly_low_usd - before.monthly_low_usd
    keys = {(line.section, line.name) for line in (*before.components, *after.components)}
    assert change.num_unchanged + len(change.changes) == len(keys)


def test_the_reviewed_change_from_one_stack_to_another(
    priced: Callable[[str], Priced], golden: Callable[[str, str], None]
):
    text = render_diff(diff(priced("l40s-dev")[1], priced("h100-prod")[1]))
    assert max(len(line) for line in text.splitlines()) <= WIDTH
    golden("cost/l40s-dev-to-h100-prod.txt", text)


def test_a_stack_does_not_change_from_itself(priced: Callable[[str], Priced]):
    _, bill = priced("local")
    assert diff(bill, bill).changes == ()


def test_more_nodes_at_most_show_in_the_last_column_only(priced: Callable[[str], Priced]):
    """3..9 system nodes to 3..10: 0.1984 x 730 + 128 x 0.071 more at max_nodes."""
    spec, before = priced("l40s-dev")
    system = replace(spec.nodes.system, max_nodes=10)
    spec = replace(spec, nodes=replace(spec.nodes, system=system))
    change = diff(before, estimate(spec, PriceBook.load(spec.prices)))
    assert [(line.change_low_usd, line.change_high_usd) for line in change.changes] == [
        (Decimal(0), Decimal("144.832")),
        (Decimal(0), Decimal("9.088")),
    ]


def test_a_change_to_an_unknown_price_is_unknown_and_the_total_says_so(
    priced: Callable[[str], Priced],
):
    spec, before = priced("l40s-dev")
    book = PriceBook.load(spec.prices)
    prices = {sku: price for sku, price in book.prices.items() if sku != "gpu-l40s-d/gpu"}
    change = diff(before, estimate(spec, replace(book, prices=prices)))
    (line,) = change.changes
    assert line.change_low_usd is None
    text = render_diff(change)
    assert "Total, known prices only" in text
    assert "price book 'seed000' has no 'gpu-l40s-d/gpu'" in text


def test_json_and_csv_hold_the_same_changes(priced: Callable[[str], Priced]):
    change = diff(priced("l40s-dev")[1], priced("h100-prod")[1])
    document = json.loads(render_diff(change, Format.JSON))
    rows = list(csv.reader(io.StringIO(render_diff(change, Format.CSV))))
    assert document["change_low_usd"] == rows[-1][3] == "17881.42"
    assert [line["resource"] for line in document["changes"]] == [row[0] for row in rows[1:-1]]
