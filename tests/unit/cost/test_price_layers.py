"""Contract over live estimate over book, whatever their dates and whatever the order of reading."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.prices.book import (
    PRICES_DIR,
    UNITS,
    Layer,
    Price,
    PriceBook,
    PriceBookError,
    Unit,
    contract_prices,
    covers_vm,
    layered,
    newest,
    node_sku,
)
from cost.resources.estimate import estimate
from stacks.spec import StackSpec
from stacks.spec.cost import ContractPriceSpec
from stacks.spec.nodes import Billing
from stacks.spec.storage import FilesystemSpec, FilesystemType
from tests.nightly import law
from tests.unit.cost.conftest import Priced

H100 = "gpu-h100-sxm/gpu"
REGIONS = (None, "eu-north1", "us-central1")
prices_of_one_sku = st.builds(
    Price,
    sku=st.just(H100),
    unit=st.just(Unit.GPU_HOUR),
    usd=st.decimals(min_value=0, max_value=100, places=4),
    source=st.just("s"),
    date=st.dates(min_value=date(2024, 1, 1), max_value=date(2026, 1, 1)),
    is_undated=st.booleans(),
    region=st.sampled_from(REGIONS),
    layer=st.sampled_from(Layer),
)
readings = st.lists(
    prices_of_one_sku,
    min_size=1,
    max_size=6,
    unique_by=lambda price: (price.layer, price.is_undated, price.date, price.region),
)


@pytest.fixture
def h100(priced: Callable[[str], Priced]) -> StackSpec:
    return priced("h100-prod")[0]


def contract(**fields: Any) -> ContractPriceSpec:
    known = {
        "sku": H100,
        "unit": "GPU-hour",
        "usd": Decimal("1.99"),
        "source": "order 7",
        "date": date(2024, 5, 1),
    }
    return ContractPriceSpec(**(known | fields))


def live(usd: str = "4.10", region: str = "eu-north1") -> Price:
    day = date(2026, 11, 1)
    return Price(
        sku=H100,
        unit=Unit.GPU_HOUR,
        usd=Decimal(usd),
        source="calculator",
        date=day,
        region=region,
        covers_vm=True,
        layer=Layer.LIVE,
    )


def used(spec: StackSpec, *estimates: Price) -> tuple[Layer, str]:
    price = layered(spec, estimates).prices[H100]
    return price.layer, str(price.usd)


def test_without_a_layer_the_book_is_used(h100: StackSpec):
    assert used(h100) == (Layer.BOOK, "4.50")


def test_a_live_estimate_is_used_only_where_the_stack_asks_for_it(h100: StackSpec):
    assert used(h100, live()) == (Layer.BOOK, "4.50")
    assert used(replace(h100, live_prices=True), live()) == (Layer.LIVE, "4.10")


def test_a_live_estimate_of_another_region_is_not_used(h100: StackSpec):
    spec = replace(h100, live_prices=True)
    assert used(spec, live(region="us-central1")) == (Layer.BOOK, "4.50")


def test_a_contract_wins_over_newer_readings_and_estimates(h100: StackSpec):
    spec = replace(h100, live_prices=True, contract_prices=(contract(),))
    assert used(spec, live()) == (Layer.CONTRACT, "1.99")
    others = layered(spec, [live()]).unused(H100)
    assert [price.layer for price in others] == [Layer.LIVE, *[Layer.BOOK] * 3]


def test_a_reserved_gpu_of_a_contract_includes_its_vm(h100: StackSpec):
    sku = node_sku("gpu-h100-sxm", "gpu", Billing.RESERVED)
    spec = replace(h100, contract_prices=(contract(sku=sku),))
    assert layered(spec).prices[sku].covers_vm


def test_a_contract_still_wins_in_another_region(h100: StackSpec):
    spec = replace(h100, contract_prices=(contract(),))
    assert layered(spec).in_region("us-central1").prices[H100].layer is Layer.CONTRACT


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"sku": "gpu-h100-sxm/gpus"}, ".sku: 'gpu-h100-sxm/gpus' is not sold; did you mean"),
        ({"unit": "GiB-month"}, ".unit: 'GiB-month', but 'gpu-h100-sxm/gpu' is sold by GPU-hour"),
        ({"unit": "GPU"}, ".unit: 'GPU', but 'gpu-h100-sxm/gpu' is sold by GPU-hour"),
    ],
)
def test_a_bad_contract_price_is_refused_with_its_key(
    h100: StackSpec, fields: dict[str, Any], problem: str
):
    spec = replace(h100, contract_prices=(contract(**fields),))
    with pytest.raises(PriceBookError) as refusal:
        layered(spec)
    (line,) = str(refusal.value).splitlines()
    assert line.startswith(f"h100-prod.contract_prices[0]{problem}")


def test_every_bad_contract_price_is_told_at_once(h100: StackSpec):
    spec = replace(h100, contract_prices=(contract(unit="x"), contract(), contract(sku="y")))
    with pytest.raises(PriceBookError) as refusal:
        contract_prices(spec)
    assert len(str(refusal.value).splitlines()) == 3


def test_every_shipped_sku_has_a_known_name_its_unit_and_what_it_covers():
    for path in PRICES_DIR.glob("*.yaml"):
        for sku, price in PriceBook.load(path.stem).readings.items():
            assert UNITS[sku] is price[0].unit, sku
            assert covers_vm(sku) is price[0].covers_vm, sku
    assert "cpu-d3/gpu" not in UNITS
    assert "disk/network-ssd-io-m3" in UNITS


def test_every_filesystem_that_a_stack_declares_can_have_a_price(h100: StackSpec):
    """`weka` was refused in contract_prices, and a refresh of live prices ended in a KeyError."""
    for kind in FilesystemType:
        fields = {"sku": f"filesystem/{kind}", "unit": "GiB-month", "usd": Decimal("0.1")}
        storage = replace(h100.storage, jail=FilesystemSpec(size_gib=2048, type=kind))
        spec = replace(h100, contract_prices=(contract(**fields),), storage=storage)
        lines = {line.id: line for line in estimate(spec, layered(spec)).components}
        assert lines["storage.jail"].low_usd == Decimal("204.8")


@given(readings, st.sampled_from(REGIONS), st.randoms(use_true_random=False))
@law()
def test_the_reading_in_use_does_not_depend_on_the_order(
    found: list[Price], region: str | None, order: random.Random
):
    shuffled = found.copy()
    order.shuffle(shuffled)
    assert newest(shuffled, region) == newest(found, region)


@given(readings, st.sampled_from(REGIONS))
@law()
def test_no_reading_of_the_region_is_newer_in_the_layer_in_use(
    found: list[Price], region: str | None
):
    here = [price for price in found if price.region in (None, region)]
    price = newest(found, region)
    if price is None:
        assert not here
        return
    same = [one for one in here if one.layer is price.layer and not one.is_undated]
    assert all(one.date <= price.date for one in same)
    assert price.layer is max((one.layer for one in here), key=list(Layer).index)
    assert not (price.is_undated and same)


@given(readings, st.sampled_from(REGIONS))
@law()
def test_layering_twice_changes_nothing(found: list[Price], region: str | None):
    empty = PriceBook(name="b", caveat="", readings={}, region=region)
    once = empty.with_prices(found)
    assert once.with_prices(found) == once


@given(readings, st.decimals(min_value=0, max_value=100, places=2))
@law()
def test_a_contract_always_wins(found: list[Price], usd: Decimal):
    others = [price for price in found if price.layer is not Layer.CONTRACT]
    agreed = Price(
        sku=H100,
        unit=Unit.GPU_HOUR,
        usd=usd,
        source="contract",
        date=date(2020, 1, 1),
        layer=Layer.CONTRACT,
    )
    for prices in ([*others, agreed], [agreed, *others]):
        empty = PriceBook(name="b", caveat="", readings={}, region="eu-north1")
        book = empty.with_prices(prices)
        assert book.prices[H100] == agreed
