"""Numbers that remember how they were computed."""

from decimal import Decimal

import pytest

from cost.traced import decimal, given, leaf, named, trace_of, traced
from stacks.load import load_stack

NODES = leaf(4, "nodes", "nodes.workers[worker].nodes")
USD = leaf(Decimal("1.350"), "USD per GPU-hour", "a list, 2026-11-21")


def test_a_result_has_the_value_of_plain_numbers_and_their_arithmetic():
    monthly = sum([NODES * (2 * USD + 1)], Decimal(0)) * 730 / 3
    assert monthly == Decimal(4) * (2 * Decimal("1.350") + 1) * 730 / 3
    assert trace_of(monthly).expression == "4 * (2 * 1.35 + 1) * 730 / 3"
    assert trace_of(monthly).formula == "nodes x (2 x USD per GPU-hour + 1) x 730 / 3"
    assert [each.name for each in trace_of(monthly).inputs] == ["nodes", "USD per GPU-hour"]


def test_a_right_side_keeps_its_parentheses_since_each_step_rounds():
    third = 1 / leaf(Decimal(3))
    assert trace_of(NODES * (third * 3)).expression == "4 * (1 / 3 * 3)"
    assert trace_of(10 - (NODES - USD)).expression == "10 - (4 - 1.35)"


def test_a_named_number_is_one_number_in_others_and_keeps_its_own_arithmetic():
    total = named(NODES * USD, "total", "explain total")
    assert trace_of(total).expression == "4 * 1.35"
    assert trace_of(total / 730).expression == "5.4 / 730"
    assert [(each.name, each.source) for each in trace_of(total / 730).inputs] == [
        ("total", "explain total")
    ]


def test_plain_numbers_stay_plain():
    assert type(named(Decimal(2), "two", "here")) is Decimal
    assert type(named(2, "two", "here", beside=USD)) is not int
    assert type(given(NODES, "other", "there", beside=USD)) is type(NODES)
    assert trace_of(given(NODES, "other", "there", beside=USD)).name == "nodes"
    assert trace_of(decimal(NODES) / 8).expression == "4 / 8"


def test_a_whole_number_does_what_a_whole_number_does():
    assert (-(-NODES // 3), list(range(NODES))[-1], f"{NODES:,}", str(NODES)) == (2, 3, "4", "4")


@pytest.mark.usefixtures("public_key_file")
def test_a_traced_stack_is_the_same_stack_with_every_number_by_its_key():
    spec = load_stack("l40s-dev")
    found = traced(spec)
    assert found == spec
    disk = found.nodes.workers[0].boot_disk.size_gib
    assert trace_of(disk).source == "nodes.workers[worker].boot_disk.size_gib"
    assert found.nodes.paused is False
