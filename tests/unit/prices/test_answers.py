"""A cost is recognised by its quantity, or left to the book."""

from __future__ import annotations

from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from infra.operate.prices import NotRecognisedError, Wanted, unit_prices

L40S = {"gpu-l40s-d/gpu": 2, "gpu-l40s-d/vcpu": 64, "gpu-l40s-d/ram": 384}
H100 = {"gpu-h100-sxm/gpu": 8, "gpu-h100-sxm/vcpu": 128, "gpu-h100-sxm/ram": 1600}


def wanted(counts: dict[str, int]) -> Wanted:
    return Wanted(message="m", fields={}, counts=counts)


def breakdown(cost: str, *items: tuple[str, str]) -> Any:
    costs = [SimpleNamespace(quantity=quantity, cost=usd) for quantity, usd in items]
    return SimpleNamespace(cost=cost, sku_costs=costs)


def test_the_parts_of_a_node_are_told_by_their_quantities():
    answer = breakdown("4.5688", ("384", "1.2288"), ("2.000", "2.7"), ("64", "0.64"))
    assert unit_prices(wanted(L40S), answer) == {
        "gpu-l40s-d/gpu": Decimal("1.35"),
        "gpu-l40s-d/vcpu": Decimal("0.01"),
        "gpu-l40s-d/ram": Decimal("0.0032"),
    }


@pytest.mark.parametrize("items", [[("8", "36")], [("8", "21"), ("128", "8"), ("1600", "7")]])
def test_an_nvlink_node_has_one_price_a_gpu_however_the_answer_splits_it(
    items: list[tuple[str, str]],
):
    found = unit_prices(wanted(H100), breakdown("36", *items))
    assert found == {"gpu-h100-sxm/gpu": Decimal("4.5")}


def test_a_disk_is_priced_by_the_month_of_730_hours():
    found = unit_prices(wanted({"disk/network-ssd": 1000}), breakdown("0.0972602739726"))
    assert found == {"disk/network-ssd": Decimal("0.071")}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (breakdown("0"), "the answer is 0, which is taken for no price"),
        (breakdown(""), "'' is not a number"),
        (breakdown("-1"), "'-1' is not an amount"),
        (breakdown("NaN"), "'NaN' is not an amount"),
        (breakdown("4.6", ("1", "4.6")), "no single item of quantity 2 for gpu-l40s-d/gpu"),
        (breakdown("4.6", ("2", "1"), ("2", "2"), ("64", "1")), "no single item of quantity 2"),
    ],
)
def test_an_answer_that_does_not_fit_is_no_price(answer: Any, reason: str):
    with pytest.raises(NotRecognisedError, match=reason):
        unit_prices(wanted(L40S), answer)
