"""A price has a source and a date, and an unknown one is never zero."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from cost.price_book import PRICES_DIR, Price, PriceBook, PriceBookError, Unit, UnknownPrice

BOOKS = sorted(path.stem for path in PRICES_DIR.glob("*.yaml"))
ENTRY = '{unit: GPU-hour, usd: "1.35", source: s, date: "2026-01-02"}'


def book(tmp_path: Path, prices: str, head: str = "name: b\ncurrency: USD") -> PriceBook:
    (tmp_path / "b.yaml").write_text(f"{head}\nprices:\n  {prices}\n")
    return PriceBook.load("b", tmp_path)


@pytest.mark.parametrize("name", BOOKS)
def test_every_shipped_price_is_a_decimal_with_source_and_date(name: str):
    for price in PriceBook.load(name).prices.values():
        assert isinstance(price.usd, Decimal)
        assert len(price.source) > 8
        assert price.date.year >= 2025


@pytest.mark.parametrize("name", BOOKS)
def test_only_the_public_address_is_free(name: str):
    free = [price.sku for price in PriceBook.load(name).prices.values() if price.usd == 0]
    assert free == ["public-ip"]


def test_a_missing_price_is_a_state_with_its_reason():
    found = PriceBook.load("seed000").find("gpu-h100-sxm/gpu", Unit.GPU_HOUR)
    assert found == UnknownPrice(
        sku="gpu-h100-sxm/gpu", reason="price book 'seed000' has no 'gpu-h100-sxm/gpu'"
    )


def test_a_price_keeps_every_digit(tmp_path: Path):
    price = book(tmp_path, "a: " + ENTRY.replace("1.35", "0.10")).find("a", Unit.GPU_HOUR)
    assert isinstance(price, Price)
    assert str(price.usd) == "0.10"


def test_a_price_by_another_unit_is_refused_rather_than_multiplied(tmp_path: Path):
    with pytest.raises(PriceBookError, match=r"b\.a\.unit: sold by GPU-hour, but needed by GiB"):
        book(tmp_path, f"a: {ENTRY}").find("a", Unit.GIB_MONTH)


@pytest.mark.parametrize(
    ("prices", "problem"),
    [
        ("a: " + ENTRY.replace("1.35", "cheap"), "usd must be a decimal"),
        ("a: " + ENTRY.replace("1.35", "-1"), "not an amount of money"),
        ("a: " + ENTRY.replace("1.35", "NaN"), "not an amount of money"),
        ("a: " + ENTRY.replace("GPU-hour", "GPU"), "'GPU' is not one of GPU-hour"),
        ("a: " + ENTRY.replace("2026-01-02", "January"), "date YYYY-MM-DD"),
        ("a: " + ENTRY.replace("source: s", 'source: ""'), "prices.a.source: missing"),
        ("a: " + ENTRY.replace("source", "sauce"), "prices.a.sauce: unknown key"),
        ("a: 1.35", "expected a mapping"),
    ],
)
def test_a_bad_price_is_refused_with_its_path(tmp_path: Path, prices: str, problem: str):
    with pytest.raises(PriceBookError, match=problem):
        book(tmp_path, prices)


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        ("name: c\ncurrency: USD", "is not the file's name"),
        ("name: b\ncurrency: EUR", "only USD"),
        ("name: b\ncurrency: USD\nfx: 1", "fx: unknown key"),
    ],
)
def test_a_bad_head_is_refused(tmp_path: Path, head: str, problem: str):
    with pytest.raises(PriceBookError, match=problem):
        book(tmp_path, f"a: {ENTRY}", head)


def test_a_book_that_does_not_exist_is_answered_with_those_that_do():
    with pytest.raises(PriceBookError, match=r"have: nebius-2025-10, seed000"):
        PriceBook.load("nebius")


def test_text_that_is_not_yaml_names_the_file(tmp_path: Path):
    (tmp_path / "b.yaml").write_text("prices: [")
    with pytest.raises(PriceBookError, match=r"b\.yaml: not valid YAML"):
        PriceBook.load("b", tmp_path)
