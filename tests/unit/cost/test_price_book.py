"""A price has a source and a date, the newest reading is used, an unknown price is never zero."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from cost.prices.book import PRICES_DIR, Price, PriceBook, PriceBookError, UnknownPrice

BOOKS = sorted(path.stem for path in PRICES_DIR.glob("*.yaml"))
GPU = "gpu-l40s-a/gpu"
ENTRY = '{unit: GPU-hour, usd: "1.35", source: s, date: "2026-01-02"}'
H100 = "gpu-h100-sxm/gpu"


def book(tmp_path: Path, prices: str, head: str = "name: b\ncurrency: USD") -> PriceBook:
    (tmp_path / "b.yaml").write_text(f"{head}\nprices:\n  {prices}\n")
    return PriceBook.load("b", tmp_path)


def price(found: Price | UnknownPrice) -> Price:
    assert isinstance(found, Price)
    return found


@pytest.mark.feature("S000-90")
@pytest.mark.parametrize("name", BOOKS)
def test_every_shipped_reading_is_a_decimal_with_source_and_date(name: str):
    for readings in PriceBook.load(name).readings.values():
        for reading in readings:
            assert isinstance(reading.usd, Decimal)
            assert len(reading.source) > 8
            assert reading.date.year >= 2024


@pytest.mark.parametrize("name", BOOKS)
def test_what_is_free_is_free_because_its_source_says_so(name: str):
    free = [price for price in PriceBook.load(name).prices.values() if price.usd == 0]
    assert {price.sku for price in free} == {
        "public-ip",
        "public-ip/kubernetes-endpoint",
        "mk8s/control-plane",
        "container-registry/storage",
    }
    assert all("free" in price.source for price in free)


def test_the_newest_of_conflicting_readings_is_used_and_the_others_are_kept():
    shipped = PriceBook.load("nebius")
    assert price(shipped.find(H100)).usd == Decimal("4.50")
    assert [(str(old.date), str(old.usd)) for old in shipped.unused(H100)] == [
        ("2026-09-25", "3.85"),
        ("2026-05-18", "2.95"),
    ]


def test_a_pinned_book_has_its_own_prices():
    pinned = price(PriceBook.load("nebius-2026-09").find("cpu-d3/vcpu"))
    assert (pinned.usd, pinned.dated) == (Decimal("0.012"), "undated, read on 2026-11-21")
    newest = price(PriceBook.load("nebius").find("cpu-d3/vcpu"))
    assert (newest.usd, newest.dated) == (Decimal("0.015"), "2026-10-09")


def test_a_region_has_its_own_price_and_another_region_has_none_of_it():
    shipped = PriceBook.load("nebius")
    sku = "gpu-b300-sxm/gpu"
    assert price(shipped.in_region("uk-south1").find(sku)).usd == Decimal("9.50")
    unknown = shipped.in_region("eu-north1").find(sku)
    assert isinstance(unknown, UnknownPrice)
    assert unknown.reason == f"price book 'nebius' has '{sku}' for uk-south1, not for eu-north1"


def test_a_reading_of_a_region_wins_over_an_older_one_of_all_regions():
    shipped = PriceBook.load("nebius")
    sku = "disk/network-ssd-io-m3"
    everywhere = price(shipped.in_region("eu-north1").find(sku))
    assert (everywhere.region, everywhere.usd) == (None, Decimal("0.000161111") * 730)
    here = price(shipped.in_region("me-west1").find(sku))
    assert (here.region, here.usd) == ("me-west1", Decimal("0.000161643") * 730)


def test_an_nvlink_gpu_is_one_price_and_an_l40s_is_a_part():
    prices = PriceBook.load("nebius").prices
    assert prices[H100].covers_vm
    assert prices["gpu-h200-sxm/gpu"].covers_vm
    assert not prices["gpu-l40s-d/gpu"].covers_vm


def test_a_missing_price_is_a_state_with_its_reason():
    found = PriceBook.load("nebius-2026-09").find(H100)
    assert found == UnknownPrice(reason=f"price book 'nebius-2026-09' has no '{H100}'")


def test_a_missing_reserved_price_says_where_such_prices_come_from():
    found = PriceBook.load("nebius").find(f"{H100}/reserved")
    assert isinstance(found, UnknownPrice)
    assert "declare it under contract_prices" in found.reason


def test_a_price_keeps_every_digit(tmp_path: Path):
    found = book(tmp_path, f"{GPU}: " + ENTRY.replace("1.35", "0.10")).find(GPU)
    assert str(price(found).usd) == "0.10"


def test_a_book_that_does_not_exist_is_answered_with_those_that_do():
    with pytest.raises(PriceBookError, match=r"have: nebius, nebius-2026-09"):
        PriceBook.load("nebulous")
