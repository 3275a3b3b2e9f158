"""Reserved against on-demand nodes: from how many hours a month a reservation is cheaper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.bill.bill import Reservation, bill
from cost.chat.unit_costs import BillPart
from cost.prices.book import layered
from stacks.spec import StackSpec
from stacks.spec.cost import ContractPriceSpec
from tests.unit.cost.conftest import Priced


def part_of(spec: StackSpec, *usd_per_gpu_hour: str) -> BillPart | None:
    contract = tuple(
        ContractPriceSpec(
            sku="gpu-h100-sxm/gpu/reserved",
            unit="GPU-hour",
            usd=Decimal(usd),
            source="order 7",
            date=date(2026, 5, 1),
        )
        for usd in usd_per_gpu_hour
    )
    declared = replace(spec, contract_prices=contract)
    parts = bill(declared, layered(declared), ()).parts
    return next((part for part in parts if part.name == "reservations"), None)


@pytest.fixture
def h100(priced: Callable[[str], Priced]) -> StackSpec:
    return priced("h100-prod")[0]


def test_without_a_contract_there_is_nothing_to_compare(h100: StackSpec):
    assert part_of(h100) is None


@pytest.mark.feature("S004-28")
def test_a_reservation_pays_from_its_share_of_the_on_demand_price(h100: StackSpec):
    """8 GPUs: 8 x 4.50 = 36.00 against 8 x 2.70 = 21.60 is 60 % of 730 hours, 438."""
    part = part_of(h100, "2.70")
    assert part is not None
    (row,) = part.tables[0].rows
    assert row == ("worker", "$36.00/h", "$21.60/h", "$15,768.00", "438 h a month (60%)")
    assert part.data()["reservations"] == [
        {
            "workers": "worker",
            "on_demand_usd_per_node_hour": "36.00",
            "reserved_usd_per_node_hour": "21.60",
            "pays_from_hours_per_month": "438",
        }
    ]


def test_a_dearer_reservation_never_pays(h100: StackSpec):
    part = part_of(h100, "4.50")
    assert part is not None
    assert part.tables[0].rows[0][-1] == "never"


@given(
    on_demand=st.decimals("0.01", "1000", places=2),
    reserved=st.decimals("0.01", "1000", places=2),
    hours=st.decimals("0", "730", places=1),
)
def test_over_the_share_a_reservation_is_cheaper_and_under_it_it_is_not(
    on_demand: Decimal, reserved: Decimal, hours: Decimal
):
    made = Reservation(
        worker=None,  # pyright: ignore[reportArgumentType]: prices alone decide
        on_demand_usd_per_hour=on_demand,
        reserved_usd_per_hour=reserved,
    )
    share = made.pays_from
    cheaper = reserved * 730 < on_demand * hours
    assert cheaper == (share is not None and hours > share * 730)
