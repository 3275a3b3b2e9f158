"""A stack that breaks its own policy is refused with the cheapest way out; nothing is guessed."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from cost.bill.bill import bill
from cost.choose.limits import limits, policy_part, policy_problems
from cost.prices.book import PriceBook
from cost.report.layout import WIDTH, Format, Report, render_report, usd_text
from stacks.errors import Level
from stacks.load import load_stack
from stacks.spec.cost import PolicyLevel, PolicySpec
from tests.unit.cost.policies import inputs_of, with_policy

pytestmark = pytest.mark.usefixtures("public_key_file")


def high_usd(name: str) -> Decimal:
    """What the shipped stack costs a month at max_nodes."""
    return inputs_of(load_stack(name)).estimate.total.high_usd


def test_a_stack_without_a_policy_has_no_problem_and_no_part():
    inputs = with_policy("l40s-dev")
    assert limits(inputs) == ()
    assert policy_problems(inputs) == ()
    assert tuple(policy_part(inputs)) == ()


@pytest.mark.feature("S004-31")
def test_a_limit_holds_for_what_autoscaling_may_add():
    """18,500 lies between 18,116 at min_nodes and 19,040 at max_nodes (seed 000)."""
    (problem,) = policy_problems(with_policy("l40s-dev", max_usd_per_month=Decimal(18500)))
    assert problem.level is Level.ERROR
    assert problem.path == "l40s-dev.policy.max_usd_per_month"
    assert problem.message.startswith(f"{usd_text(high_usd('l40s-dev'))}, but allowed is")
    assert "allowed is $18,500.00 a month" in problem.message


def test_a_limit_that_is_met_to_the_cent_is_kept():
    high = high_usd("l40s-dev")
    assert policy_problems(with_policy("l40s-dev", max_usd_per_month=high)) == ()
    over = policy_problems(with_policy("l40s-dev", max_usd_per_month=high - Decimal("0.0001")))
    assert len(over) == 1


def test_an_hour_is_limited_like_a_month():
    high = high_usd("l40s-dev") / 730
    assert policy_problems(with_policy("l40s-dev", max_usd_per_hour=high)) == ()
    (problem,) = policy_problems(with_policy("l40s-dev", max_usd_per_hour=Decimal(26)))
    assert "$26.08" in problem.message


def test_a_broken_limit_names_the_cheapest_change_that_keeps_every_limit():
    """The second controller and its disk cost 81.50 a month, and Soperator never uses it."""
    (problem,) = policy_problems(with_policy("l40s-dev", max_usd_per_month=Decimal(19000)))
    assert "every limit: nodes.controller.nodes: 2 -> 1 (" in problem.message
    assert "a month, -$81.50); others" in problem.message
    assert "soperator cost --stack l40s-dev --alternatives" in problem.message


def test_where_nothing_keeps_every_limit_the_message_says_so():
    (problem,) = policy_problems(with_policy("l40s-dev", max_usd_per_month=Decimal(1)))
    assert "no change of one nodeset keeps every limit" in problem.message


def test_a_policy_of_warnings_refuses_nothing():
    (problem,) = policy_problems(
        with_policy("l40s-dev", max_usd_per_month=Decimal(1), level=PolicyLevel.WARNING)
    )
    assert problem.level is Level.WARNING


def test_a_chat_may_cost_no_more_than_declared():
    """The first scenario, 3.8 tokens/s: 26.08 x 2,000 / (3.8 x 3,600) = 3.81 at max_nodes."""
    assert policy_problems(with_policy("l40s-dev", max_usd_per_chat=Decimal("3.82"))) == ()
    (problem,) = policy_problems(with_policy("l40s-dev", max_usd_per_chat=Decimal("3.81")))
    assert "$3.81 (Single Batch Finetuned, whole cluster)" in problem.message


def test_a_chat_of_unknown_cost_warns_and_is_not_taken_for_free():
    (problem,) = policy_problems(with_policy("h100-prod", max_usd_per_chat=Decimal(1)))
    assert problem.level is Level.WARNING
    assert "cannot be told" in problem.message
    assert "soperator submit evaluate --stack h100-prod" in problem.message


@pytest.mark.feature("S004-31")
def test_gpus_on_demand_are_refused_where_the_stack_says_so():
    (problem,) = policy_problems(with_policy("h100-prod", on_demand_gpus=False))
    assert problem.level is Level.ERROR
    assert "on demand: worker" in problem.message
    assert "nodes.workers[worker].billing: on-demand -> preemptible" in problem.message


def test_the_idle_share_follows_from_the_chats_that_are_asked_for():
    """One node at 3.8 tokens/s has room for 164.16 chats a day; 82 leave 50.05 % idle."""
    inputs = with_policy("l40s-dev", max_idle_share=Decimal("0.5"))
    (untold,) = policy_problems(inputs)
    assert "declares no chat.chats_per_day" in untold.message
    chat = replace(inputs.spec.chat, chats_per_day=82)
    (problem,) = policy_problems(inputs_of(replace(inputs.spec, chat=chat)))
    assert "50.05 % idle (82 chats a day, Single Batch Finetuned)" in problem.message
    busy = replace(inputs.spec.chat, chats_per_day=83)
    assert policy_problems(inputs_of(replace(inputs.spec, chat=busy))) == ()


def test_a_declared_line_without_a_price_leaves_a_limit_untold():
    spec = replace(load_stack("l40s-dev"), policy=PolicySpec(max_usd_per_month=Decimal(19000)))
    book = PriceBook.load(spec.prices)
    readings = {sku: found for sku, found in book.readings.items() if sku != "gpu-l40s-d/gpu"}
    (problem,) = policy_problems(inputs_of(spec, book=replace(book, readings=readings)))
    assert problem.level is Level.WARNING
    assert "not priced: worker (gpu-l40s-d)" in problem.message
    broke = replace(spec, policy=PolicySpec(max_usd_per_month=Decimal(100)))
    (error,) = policy_problems(inputs_of(broke, book=replace(book, readings=readings)))
    assert error.level is Level.ERROR


def test_the_table_marks_broken_rules_and_fits_the_page():
    inputs = with_policy(
        "l40s-dev",
        max_usd_per_hour=Decimal(27),
        max_usd_per_month=Decimal(19000),
        max_usd_per_chat=Decimal(5),
        on_demand_gpus=False,
        max_idle_share=Decimal("0.1"),
    )
    (part,) = policy_part(inputs)
    (table,) = part.tables
    assert [row[3] for row in table.rows] == ["yes", "BROKEN", "yes", "BROKEN", "not known"]
    assert table.bad_rows == {1, 3}
    text = render_report(Report(heading=None, tables=part.tables, notes=part.notes), Format.TABLE)
    assert max(len(line) for line in text.splitlines()) <= WIDTH
    assert [item["is_kept"] for item in part.data()["limits"]] == [True, False, True, False, None]


def test_the_bill_carries_the_policy_beside_the_other_checks():
    spec = replace(load_stack("l40s-dev"), policy=PolicySpec(max_usd_per_month=Decimal(19000)))
    found = bill(spec, PriceBook.load(spec.prices))
    assert [problem.path for problem in found.errors] == ["l40s-dev.policy.max_usd_per_month"]
    assert "policy" in [part.name for part in found.parts]


def test_amounts_that_look_the_same_in_cents_are_told_with_every_digit():
    limit = Decimal("19039.6142")
    spec = replace(load_stack("l40s-dev"), policy=PolicySpec(max_usd_per_month=limit))
    (found,) = limits(bill(spec, PriceBook.load(spec.prices)))
    assert found.is_kept is False
    assert (found.got, found.allowed) == ("$19039.6143", "$19039.6142 a month")
