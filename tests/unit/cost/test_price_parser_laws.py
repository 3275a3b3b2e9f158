"""Laws of the price file's parser, over files that are made up."""

from __future__ import annotations

import json
import tempfile
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from cost.prices.book import PriceBook, PriceBookError, Unit, read_price_file
from tests.nightly import law

days = st.dates(min_value=date(2024, 1, 1), max_value=date(2026, 1, 1))
GPU = "gpu-l40s-a/gpu"
amounts = st.decimals(min_value=0, max_value=1000, places=6)
rows = st.lists(st.tuples(days, amounts), min_size=1, max_size=5, unique_by=lambda row: row[0])
texts = st.text(max_size=12)
junk = st.one_of(st.none(), st.booleans(), st.integers(), texts, st.lists(texts, max_size=2))
entries = st.dictionaries(
    st.sampled_from(["unit", "usd", "source", "date", "read", "region", "covers_vm", "readings"]),
    junk | st.sampled_from([*Unit, "1.5", "2026-01-02"]),
    max_size=6,
)


def written(prices: dict[str, Any], folder: Path) -> Path:
    """A file with these prices, as YAML that is JSON."""
    path = folder / "b.yaml"
    document = {"name": "b", "currency": "USD", "prices": prices}
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def read(prices: dict[str, Any]) -> PriceBook:
    with tempfile.TemporaryDirectory() as folder:
        return read_price_file(written(prices, Path(folder)))


def refusals(path: Path) -> list[str]:
    """What is wrong with the file, a line each; nothing where its prices can be used."""
    try:
        file = read_price_file(path)
    except PriceBookError as refusal:
        return str(refusal).splitlines()
    found = [price for readings in file.readings.values() for price in readings]
    return [f"used: {price}" for price in found if price.usd < 0 or not price.source]


def entry(readings: list[tuple[date, Decimal]]) -> dict[str, Any]:
    return {
        "unit": "GPU-hour",
        "readings": [{"usd": str(usd), "date": str(day), "source": "s"} for day, usd in readings],
    }


@given(rows)
@law(50)
def test_the_newest_day_is_used_and_every_digit_kept(readings: list[tuple[date, Decimal]]):
    book = read({GPU: entry(readings)})
    day, usd = max(readings)
    assert (book.prices[GPU].date, str(book.prices[GPU].usd)) == (day, str(usd))
    assert {(price.date, price.usd) for price in book.readings[GPU]} == set(readings)


@given(rows)
@law(50)
def test_the_order_of_the_file_changes_no_price(readings: list[tuple[date, Decimal]]):
    there, back = read({GPU: entry(readings)}), read({GPU: entry(readings[::-1])})
    assert there.prices == back.prices


@given(st.dictionaries(st.sampled_from([GPU, "public-ip"]), junk | entries, max_size=2))
@example({GPU: {"unit": "\x1e"}})
@example({GPU: {"a\nb": 1}})
@law(100)
def test_any_file_is_read_or_refused_with_the_file_in_every_line(prices: dict[str, Any]):
    with tempfile.TemporaryDirectory() as folder:
        path = written(prices, Path(folder))
        lines = refusals(path)
    assert all(line.startswith(str(path)) for line in lines)
