"""Totals say what they miss, count a GPU's machine once, and follow the declared nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

from cost.bill.bill import Bill, render
from cost.bill.bill import bill as make_bill
from cost.prices.book import PriceBook
from cost.resources.estimate import Estimate, estimate, price_problems
from cost.resources.lines import CostComponent
from stacks.check import check
from stacks.errors import Spare
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing
from stacks.spec.storage import SubmountSpec
from tests.unit.cost.conftest import Priced


def line(bill: Estimate, name: str) -> CostComponent:
    (found,) = [component for component in bill.components if component.name == name]
    return found


def without_price(spec: StackSpec, sku: str) -> Bill:
    book = PriceBook.load(spec.prices)
    readings = {name: found for name, found in book.readings.items() if name != sku}
    return make_bill(spec, replace(book, readings=readings))


def test_the_gpu_price_of_an_sxm_machine_already_holds_its_cpus_and_memory(
    priced: Callable[[str], Priced],
):
    """Nebius bills them as one line since 2025-10-01: 8 x 4.50, and 5.40 for one H200."""
    _, h100 = priced("h100-prod")
    _, h200 = priced("h200-elastic")
    h100_rate = line(h100, "worker (gpu-h100-sxm)").rate
    h200_rate = line(h200, "worker (gpu-h200-sxm)").rate
    assert h100_rate is not None
    assert h100_rate.usd == Decimal("36.00")
    assert h200_rate is not None
    assert h200_rate.usd == Decimal("5.40")


def test_an_unknown_price_makes_the_total_a_lower_bound_that_says_so(
    priced: Callable[[str], Priced],
):
    spec, full = priced("l40s-dev")
    bill = without_price(spec, "disk/network-ssd-non-replicated")
    disk = line(bill.estimate, "worker (non-replicated)")
    assert disk.low_usd is None
    assert bill.estimate.total.is_lower_bound
    assert full.total.low_usd - bill.estimate.total.low_usd == Decimal("147.87")
    text = " ".join(render(bill).split())
    assert "Subtotal, at least" in text
    assert "Total, at least" in text
    assert "Cost per chat, at least" in text
    assert "Not priced: worker (non-replicated): price book 'nebius-2026-09' has no" in text


def test_an_unknown_price_is_never_printed_as_zero(priced: Callable[[str], Priced]):
    spec, _ = priced("l40s-dev")
    bill = without_price(spec, "gpu-l40s-d/vcpu")
    (row,) = [row for row in render(bill).splitlines() if row.startswith("  worker (gpu-l40s-d)")]
    assert row.split()[-3:] == ["UNPRICED", "UNPRICED", "UNPRICED"]


def test_a_chat_on_a_node_without_a_price_has_no_price_either(priced: Callable[[str], Priced]):
    spec, _ = priced("l40s-dev")
    costs = without_price(spec, "gpu-l40s-d/gpu")
    assert isinstance(costs.chats, tuple)
    assert {chat.serving_usd for chat in costs.chats} == {None}


def test_preemptible_nodes_are_not_charged_the_on_demand_price(priced: Callable[[str], Priced]):
    spec, _ = priced("h100-prod")
    worker = replace(spec.nodes.workers[0], billing=Billing.PREEMPTIBLE)
    spec = replace(spec, nodes=replace(spec.nodes, workers=(worker,)))
    bill = estimate(spec, PriceBook.load(spec.prices))
    rate = line(bill, "worker (gpu-h100-sxm, preemptible)").rate
    assert rate is not None
    assert rate.usd == Decimal("17.20")


def test_an_existing_filesystem_has_an_unknown_price(priced: Callable[[str], Priced]):
    spec, _ = priced("l40s-dev")
    mount = SubmountSpec(name="old", mount_path="/mnt/old", existing_id="computefilesystem-1")
    spec = replace(spec, storage=replace(spec.storage, submounts=(mount,)))
    bill = estimate(spec, PriceBook.load(spec.prices))
    assert line(bill, "old (submount)").low_usd is None
    assert bill.total.is_lower_bound


def test_an_unknown_preset_has_an_unknown_price(priced: Callable[[str], Priced]):
    spec, _ = priced("l40s-dev")
    login = replace(spec.nodes.login, preset="1vcpu-1gb")
    spec = replace(spec, nodes=replace(spec.nodes, login=login))
    bill = estimate(spec, PriceBook.load(spec.prices))
    assert "not in stacks/catalog.py" in (line(bill, "login (cpu-d3)").unknown or "")


def test_the_price_date_is_that_of_the_oldest_price_used(priced: Callable[[str], Priced]):
    for name in ("h100-prod", "h200-elastic", "l40s-dev"):
        _, bill = priced(name)
        days = {price.date for component in bill.components for price in component.prices}
        assert bill.price_date == min(days)


def test_reserved_nodes_without_a_contract_are_unpriced_and_say_what_to_declare(
    priced: Callable[[str], Priced],
):
    spec, _ = priced("h100-prod")
    worker = replace(spec.nodes.workers[0], billing=Billing.RESERVED)
    spec = replace(spec, nodes=replace(spec.nodes, workers=(worker,)))
    bill = estimate(spec, PriceBook.load(spec.prices))
    found = line(bill, "worker (gpu-h100-sxm, reserved)")
    assert found.low_usd is None
    assert "'gpu-h100-sxm/gpu/reserved'" in (found.unknown or "")
    assert "contract_prices" in (found.unknown or "")


def test_the_second_controller_node_is_warned_about_with_its_price(
    priced: Callable[[str], Priced],
):
    """0.0992 x 730 + 128 x 0.071: Soperator runs one slurmctld and no backup."""
    spec, _ = priced("l40s-dev")
    problems = price_problems(check(spec), estimate(spec, PriceBook.load(spec.prices)))
    (problem,) = [problem for problem in problems if problem.spare == Spare("controller", 1)]
    assert problem.usd_per_month == Decimal("81.504")
    assert str(problem).endswith("set nodes to 1 ($81.50 per month)")
    assert len(problems) == len(check(spec))


def test_backups_larger_than_the_jail_are_warned_about_with_their_price(
    priced: Callable[[str], Priced],
):
    """7 x (1024 - 256) x 0.0147: what seed 000 pays for and its jail cannot fill."""
    spec, _ = priced("l40s-dev")
    problems = price_problems(check(spec), estimate(spec, PriceBook.load(spec.prices)))
    (problem,) = [problem for problem in problems if problem.rule == "storage.backup-size"]
    assert problem.usd_per_month == Decimal("79.0272")


def test_an_unused_filesystem_is_warned_about_with_its_price(priced: Callable[[str], Priced]):
    """256 x 0.08; without a price in the book the warning has none."""
    spec, _ = priced("l40s-dev")
    idle = replace(spec, slurm=replace(spec.slurm, accounting=False))
    book = PriceBook.load(spec.prices)
    for readings, usd in ((book.readings, Decimal("20.48")), ({}, None)):
        problems = price_problems(check(idle), estimate(idle, replace(book, readings=readings)))
        (problem,) = [each for each in problems if each.rule == "storage.accounting-unused"]
        assert problem.usd_per_month == usd
