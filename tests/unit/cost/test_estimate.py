"""Totals say what they miss, count a GPU's machine once, and follow the declared nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

from cost.components import CostComponent
from cost.estimate import Estimate, estimate, price_problems
from cost.price_book import PriceBook
from cost.table import render
from cost.unit_costs import unit_costs
from stacks.check import check
from stacks.spec import Billing, StackSpec, SubmountSpec
from tests.unit.cost.conftest import Priced


def line(bill: Estimate, name: str) -> CostComponent:
    (found,) = [component for component in bill.components if component.name == name]
    return found


def without_price(spec: StackSpec, sku: str) -> Estimate:
    book = PriceBook.load(spec.prices)
    prices = {name: price for name, price in book.prices.items() if name != sku}
    return estimate(spec, replace(book, prices=prices))


def test_the_gpu_price_of_an_sxm_machine_already_holds_its_cpus_and_memory(
    priced: Callable[[str], Priced],
):
    """Nebius bills them as one line since 2025-10-01: 8 x 2.95, and 3.50 for one H200."""
    _, h100 = priced("h100-prod")
    _, h200 = priced("h200-elastic")
    h100_rate = line(h100, "worker (gpu-h100-sxm)").rate
    h200_rate = line(h200, "worker (gpu-h200-sxm)").rate
    assert h100_rate is not None
    assert h100_rate.usd == Decimal("23.60")
    assert h200_rate is not None
    assert h200_rate.usd == Decimal("3.50")


def test_an_unknown_price_makes_the_total_a_lower_bound_that_says_so(
    priced: Callable[[str], Priced],
):
    spec, full = priced("l40s-dev")
    bill = without_price(spec, "disk/network-ssd-non-replicated")
    disk = line(bill, "worker (ssd-non-replicated)")
    assert disk.monthly_low_usd is None
    assert bill.is_lower_bound
    assert full.monthly_low_usd - bill.monthly_low_usd == Decimal("147.87")
    text = render(bill, unit_costs(spec, bill, []))
    assert "Total, at least" in text
    assert "Cost per chat, at least" in text
    assert "Not priced: worker (ssd-non-replicated): price book 'seed000' has no" in text


def test_an_unknown_price_is_never_printed_as_zero(priced: Callable[[str], Priced]):
    spec, _ = priced("l40s-dev")
    bill = without_price(spec, "gpu-l40s-d/vcpu")
    (row,) = [
        row
        for row in render(bill, unit_costs(spec, bill, [])).splitlines()
        if row.startswith("  worker (gpu-l40s-d)")
    ]
    assert row.split()[-2:] == ["unknown", "unknown"]


def test_a_chat_on_a_node_without_a_price_has_no_price_either(priced: Callable[[str], Priced]):
    spec, _ = priced("l40s-dev")
    costs = unit_costs(spec, without_price(spec, "gpu-l40s-d/gpu"), [])
    assert isinstance(costs.chats, tuple)
    assert {chat.serving_usd for chat in costs.chats} == {None}


def test_preemptible_nodes_are_not_charged_the_on_demand_price(priced: Callable[[str], Priced]):
    spec, _ = priced("h100-prod")
    worker = replace(spec.nodes.workers[0], billing=Billing.PREEMPTIBLE)
    spec = replace(spec, nodes=replace(spec.nodes, workers=(worker,)))
    rate = line(estimate(spec, PriceBook.load(spec.prices)), "worker (gpu-h100-sxm)").rate
    assert rate is not None
    assert rate.usd == Decimal("10.00")


def test_an_existing_filesystem_has_an_unknown_price(priced: Callable[[str], Priced]):
    spec, _ = priced("l40s-dev")
    mount = SubmountSpec(name="old", mount_path="/mnt/old", existing_id="computefilesystem-1")
    spec = replace(spec, storage=replace(spec.storage, submounts=(mount,)))
    bill = estimate(spec, PriceBook.load(spec.prices))
    assert line(bill, "old (submount)").monthly_low_usd is None
    assert bill.is_lower_bound


def test_an_unknown_preset_has_an_unknown_price(priced: Callable[[str], Priced]):
    spec, _ = priced("l40s-dev")
    login = replace(spec.nodes.login, preset="1vcpu-1gb")
    spec = replace(spec, nodes=replace(spec.nodes, login=login))
    bill = estimate(spec, PriceBook.load(spec.prices))
    assert "not in stacks/catalog.py" in (line(bill, "login (cpu-d3)").unknown or "")


def test_the_price_date_is_that_of_the_oldest_price_used(priced: Callable[[str], Priced]):
    _, h100 = priced("h100-prod")
    _, h200 = priced("h200-elastic")
    assert str(h100.price_date) == "2026-05-18"
    assert str(h200.price_date) == "2025-10-01"


def test_the_second_controller_node_is_warned_about_with_its_price(
    priced: Callable[[str], Priced],
):
    """0.0992 x 730 + 128 x 0.071: Soperator runs one slurmctld and no backup."""
    spec, _ = priced("l40s-dev")
    problems = price_problems(check(spec), spec, PriceBook.load(spec.prices))
    (problem,) = [problem for problem in problems if problem.spare_nodes is not None]
    assert problem.usd_per_month == Decimal("81.504")
    assert str(problem).endswith("set nodes to 1 ($81.50 per month)")
    assert len(problems) == len(check(spec))
