"""Properties of money: sums hold, more nodes never cost less, no binary float anywhere."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cost
from cost.prices.book import HOURS_PER_MONTH, PriceBook
from cost.resources.estimate import Estimate, estimate
from stacks.catalog import PLATFORMS
from stacks.spec import StackSpec
from stacks.spec.nodes import BootDiskSpec, WorkerSpec
from stacks.spec.storage import DiskType
from tests import SHIPPED
from tests.nightly import law
from tests.unit.cost.conftest import Priced, record, unit_costs

SETTINGS = law(60, shares_fixtures=True)
hardware = st.sampled_from(
    [(platform.name, preset) for platform in PLATFORMS.values() for preset in platform.presets]
)
counts = st.tuples(st.integers(0, 100), st.integers(1, 100)).map(sorted)


@st.composite
def nodesets(draw: st.DrawFn) -> tuple[WorkerSpec, ...]:
    workers: list[WorkerSpec] = []
    for index in range(draw(st.integers(1, 3))):
        platform, preset = draw(hardware)
        low, high = draw(counts)
        disk = BootDiskSpec(
            size_gib=draw(st.integers(64, 4096)), type=draw(st.sampled_from(DiskType))
        )
        workers.append(
            WorkerSpec(
                name=f"worker-{index}",
                platform=platform,
                preset=preset,
                min_nodes=low,
                max_nodes=high,
                boot_disk=disk,
            )
        )
    return tuple(workers)


def bill_of(spec: StackSpec, workers: tuple[WorkerSpec, ...]) -> Estimate:
    spec = replace(spec, nodes=replace(spec.nodes, workers=workers))
    return estimate(spec, PriceBook.load("nebius"))


@SETTINGS
@given(workers=nodesets())
def test_the_total_is_the_sum_of_its_lines(
    priced: Callable[[str], Priced], workers: tuple[WorkerSpec, ...]
):
    bill = bill_of(priced("l40s-dev")[0], workers)
    low = [line.low_usd for line in bill.components if line.unknown is None]
    high = [line.high_usd for line in bill.components if line.unknown is None]
    assert sum(usd for usd in low if usd is not None) == bill.total.low_usd
    assert sum(usd for usd in high if usd is not None) == bill.total.high_usd
    assert bill.total.is_lower_bound == (None in {line.low_usd for line in bill.components})


@SETTINGS
@given(workers=nodesets())
def test_the_low_total_is_never_above_the_high_one(
    priced: Callable[[str], Priced], workers: tuple[WorkerSpec, ...]
):
    bill = bill_of(priced("l40s-dev")[0], workers)
    assert Decimal(0) < bill.total.low_usd <= bill.total.high_usd


@SETTINGS
@given(workers=nodesets())
def test_one_more_node_never_costs_less(
    priced: Callable[[str], Priced], workers: tuple[WorkerSpec, ...]
):
    spec = priced("l40s-dev")[0]
    first = replace(
        workers[0], min_nodes=workers[0].min_nodes + 1, max_nodes=workers[0].max_nodes + 1
    )
    before, after = bill_of(spec, workers), bill_of(spec, (first, *workers[1:]))
    known = {line.name: line.rate for line in before.components if line.nodeset == first.name}
    expected = sum(
        (
            rate.usd_per_month * (1 if "node" in rate.per else first.boot_disk.size_gib)
            for rate in known.values()
            if rate is not None
        ),
        Decimal(0),
    )
    assert after.total.low_usd - before.total.low_usd == expected >= 0


@SETTINGS
@given(speed=st.decimals("0.01", "100000", places=2))
def test_chats_of_a_month_at_full_load_pay_the_whole_bill(
    priced: Callable[[str], Priced], speed: Decimal
):
    spec, bill = priced("l40s-dev")
    row = replace(spec.chat.speeds[0], output_tokens_per_s=speed)
    spec = replace(spec, chat=replace(spec.chat, speeds=(row,)))
    chats = unit_costs(spec, bill, []).chats
    assert isinstance(chats, tuple)
    paid = chats[0].cluster_low_usd * chats[0].chats_per_day * HOURS_PER_MONTH / 24
    assert paid.quantize(Decimal("0.000001")) == bill.total.low_usd.quantize(Decimal("0.000001"))


def assert_no_float(value: object, path: str) -> None:
    assert not isinstance(value, float), path
    if is_dataclass(value):
        for item in fields(value):
            assert_no_float(getattr(value, item.name), f"{path}.{item.name}")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            assert_no_float(item, f"{path}[{key}]")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            assert_no_float(item, f"{path}[{index}]")


@pytest.mark.parametrize("name", SHIPPED)
def test_no_figure_of_a_stack_or_its_bill_is_a_binary_float(
    priced: Callable[[str], Priced], name: str
):
    spec, bill = priced(name)
    assert_no_float(spec, "spec")
    assert_no_float(bill, "bill")
    units = unit_costs(spec, bill, [record()])
    assert_no_float((units.hourly, units.chats, units.run), "unit_costs")
    assert_no_float(record(), "record")


COST = Path(cost.__path__[0])
# Bytes, hours and dropouts, no dollars: sizes of memory leave cost/size as JSON numbers.
WITHOUT_MONEY = frozenset({"plan.py", "shape.py"})
# Of memory.py: a dropout, and the GiB that GPUs show.
NO_DOLLARS = {"memory.py": [0.0, 44.4, 79.19, 139.72, 178.35]}


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in sorted(COST.rglob("*.py"))
        if path.parent.name != "size" or path.name not in WITHOUT_MONEY
    ],
    ids=lambda path: path.name,
)
def test_no_code_that_holds_money_has_a_float_literal_or_a_float_call(path: Path):
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    floats = [each.value for each in nodes if isinstance(each, ast.Constant)]
    assert [each for each in floats if isinstance(each, float)] == NO_DOLLARS.get(path.name, [])
    called = [each.func for each in nodes if isinstance(each, ast.Call)]
    for node in nodes if path.name not in NO_DOLLARS else called:
        assert not (isinstance(node, ast.Name) and node.id == "float"), node.lineno
