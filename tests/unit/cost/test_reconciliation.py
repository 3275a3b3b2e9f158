"""Every number of docs/reconciliation.md follows from the bill of l40s-dev."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

from cost.bill.bill import Bill
from cost.resources.estimate import estimate
from cost.resources.lines import Scope

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reconciliation.md"
ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|([^|]*)\|$", re.MULTILINE)
CENT = Decimal("0.01")
Billed = Callable[[str], Bill]


def ends(cell: str) -> tuple[Decimal, Decimal]:
    """Low and high of a cell; one figure stands for both."""
    low, _, high = cell.strip().partition(" to ")
    return tuple(Decimal(text.replace(",", "")) for text in (low, high or low))  # pyright: ignore[reportReturnType]


def rows() -> dict[str, tuple[str, ...]]:
    """Cells of the first table by line."""
    first = PAGE.read_text(encoding="utf-8").split("\n## ")[0]
    return {name: tuple(cells) for name, *cells in ROW.findall(first)}


def cents(usd: Decimal | None) -> Decimal:
    assert usd is not None
    return usd.quantize(CENT, ROUND_HALF_UP)


def test_every_line_of_the_seed_has_a_row_with_its_exact_amount(billed: Billed):
    lines = [line for line in billed("l40s-dev").estimate.components if line.scope is Scope.MAIN]
    assert list(rows()) == [line.id for line in lines]
    for line in lines:
        seed, exact, more, why = rows()[line.id]
        amounts = (line.low_usd, line.high_usd)
        assert ends(exact) == tuple(map(cents, amounts)), line.id
        differences = tuple(
            cents(printed - (usd or 0)) for printed, usd in zip(ends(seed), amounts, strict=True)
        )
        assert ends(more) == differences, line.id
        assert bool(why.strip()) == any(differences), line.id


def test_the_rows_of_the_seed_add_up_to_what_it_prints(billed: Billed):
    seed = [ends(cells[0]) for cells in rows().values()]
    assert (sum(low for low, _ in seed), sum(high for _, high in seed)) == (18_124, 19_054)
    listed = billed("l40s-dev").estimate.subtotal(Scope.MAIN)
    total = next(
        line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| **T")
    )
    _, _, seed_total, exact, more, *_ = (cell.strip() for cell in total.split("|"))
    assert ends(seed_total) == (18_124, 19_054)
    assert ends(exact) == (cents(listed.low_usd), cents(listed.high_usd))
    assert ends(more) == (cents(18_124 - listed.low_usd), cents(19_054 - listed.high_usd))


def test_the_rounded_rates_are_those_that_the_page_names(billed: Billed):
    """730 hours of the rounded rate make the seed's row, to the dollar."""
    for line in billed("l40s-dev").estimate.components[:6]:
        seed, _, _, why = rows()[line.id]
        found = re.fullmatch(r"([\d.]+) for ([\d.]+) an hour", why.strip())
        assert found is not None, line.id
        assert line.rate is not None
        rounded, exact = map(Decimal, found.groups())
        assert (exact, rounded) == (line.rate.usd, cents(line.rate.usd))
        for printed, nodes in zip(ends(seed), (line.quantity_low, line.quantity_high), strict=True):
            assert abs(rounded * 730 * (nodes or 0) - printed) <= Decimal("0.5")


def test_what_the_seed_could_leave_out_has_the_page_s_amounts(billed: Billed):
    bill = billed("l40s-dev")
    text = PAGE.read_text(encoding="utf-8")
    spec = bill.spec
    assert spec.storage.backup is not None
    small = replace(spec.storage, backup=replace(spec.storage.backup, size_gib=256))
    saved = bill.estimate.total.low_usd - (
        estimate(replace(spec, storage=small), bill.estimate.book).total.low_usd
    )
    assert f"{cents(saved)} less" in text
    assert f"7 x 256 GiB: {cents(7 * 256 * Decimal('0.0147'))}" in text
    controller = bill.estimate.node_month_usd("nodes.controller")
    assert f"{cents(controller)} with its disk" in text


def test_every_line_beyond_the_seed_is_on_the_page(billed: Billed):
    beyond = PAGE.read_text(encoding="utf-8").split("\n## ")[2]
    lines = [line.id for line in billed("l40s-dev").estimate.components if line.scope is Scope.ALSO]
    assert re.findall(r"^\| `([^`]+)`", beyond, re.MULTILINE) == lines
