"""The printed arithmetic of every figure gives that figure, digit for digit."""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal

import pytest

from cost.bill.bill import Bill, bill
from cost.bill.explain import explain, explanations
from cost.prices.book import PriceBook, layered
from cost.report.layout import Figure, Format, render_explanation
from cost.run_record import RunRecord
from stacks.errors import UserError
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.cost import PolicySpec, PreemptionSpec, RunForecastSpec
from stacks.spec.nodes import Billing
from tests import SHIPPED
from tests.unit.cost.conftest import record

pytestmark = pytest.mark.usefixtures("public_key_file")

_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def evaluated(expression: str) -> Decimal:
    """The expression in decimals of 28 digits, as a reader with a calculator would."""

    def value(node: ast.expr) -> Decimal:
        if isinstance(node, ast.BinOp):
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        assert isinstance(node, ast.Constant)
        text = ast.get_source_segment(expression, node)
        assert text is not None
        return Decimal(text)

    return value(ast.parse(expression, mode="eval").body)


def bill_of(spec: StackSpec, records: Sequence[RunRecord] = ()) -> Bill:
    return bill(spec, layered(spec), records)


def figures(found: Bill) -> Iterator[tuple[str, Figure]]:
    for explanation in explanations(found):
        for figure in explanation.figures:
            yield explanation.item, figure


def figure(found: Bill, item: str, unit: str, name: str) -> Figure:
    return next(
        each for each in explain(found, item).figures if each.unit == unit and name in each.name
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_every_expression_gives_its_figure(name: str):
    found = list(figures(bill_of(load_stack(name))))
    assert len(found) > 20
    for item, each in found:
        assert evaluated(each.expression) == each.value, (item, each)


def test_the_formula_of_a_line_computes_its_amount_from_its_inputs():
    """nodes x (GPUs x USD per GPU-hour + vCPUs x ... + GiB of memory x ...) x 730 h."""
    found = bill_of(load_stack("l40s-dev"))
    for line in found.estimate.components:
        explanation = explain(found, line.id)
        if len(explanation.figures) != 1:
            continue
        text = explanation.formula.removesuffix(" h").replace(" x ", " * ")
        for each in sorted(explanation.inputs, key=lambda each: -len(each.name)):
            text = text.replace(each.name, each.value)
        assert evaluated(text) == line.low_usd, explanation.formula


def test_every_line_and_total_of_the_bill_is_explained():
    found = bill_of(load_stack("l40s-dev"))
    for line in found.estimate.components:
        explanation = explain(found, line.id)
        assert [each.value for each in explanation.figures] == list(
            dict.fromkeys(usd for usd in (line.low_usd, line.high_usd) if usd is not None)
        )
        assert explain(found, line.name.upper()) == explanation
    total = found.estimate.total
    assert figure(found, "total", "USD a month", "min").value == total.low_usd
    assert figure(found, "total", "USD a month", "max").value == total.high_usd
    assert figure(found, "total", "USD an hour", "max").value == total.hourly_high_usd


def test_the_seed_s_subtotal_is_the_golden_one():
    """18,116.0796 to 19,039.5996 USD a month: the lines that seed 000 lists, on 730 hours."""
    found = bill_of(load_stack("l40s-dev"))
    assert figure(found, "total.main", "USD a month", "min").value == Decimal("18116.0796")
    assert figure(found, "total.main", "USD a month", "max").value == Decimal("19039.5996")


def test_a_node_line_shows_the_parts_of_its_price_with_source_and_date():
    explanation = explain(bill_of(load_stack("l40s-dev")), "worker (gpu-l40s-d)")
    (only,) = explanation.figures
    assert only.expression == "4 * (2 * 1.35 + 64 * 0.01 + 384 * 0.0032) * 730"
    assert only.value == Decimal("13340.896")
    gpu = next(each for each in explanation.inputs if each.name == "USD per GPU-hour")
    assert gpu.value == "1.35"
    assert "github.com/sar/nebius" in gpu.source
    assert "2026-11-21" in gpu.source
    nodes = next(each for each in explanation.inputs if each.name == "nodes")
    assert nodes.source == "nodes.workers[worker].nodes"


def test_a_chat_with_prefill_turns_cache_and_demand_is_explained_exactly():
    spec = load_stack("l40s-dev")
    speeds = tuple(
        replace(speed, prefill_tokens_per_s=Decimal("1234.5")) for speed in spec.chat.speeds
    )
    for demand in (None, 7, 100_000):
        chat = replace(
            spec.chat,
            speeds=speeds,
            turns=3,
            cached_share=Decimal("0.35"),
            chats_per_day=demand,
            serving_nodes=2,
            max_answer_s=Decimal(60),
        )
        policy = PolicySpec(max_usd_per_chat=Decimal(1), max_idle_share=Decimal("0.1"))
        found = bill_of(replace(spec, chat=chat, policy=policy))
        for item, each in figures(found):
            assert evaluated(each.expression) == each.value, (demand, item, each)
        rows = found.chats
        assert isinstance(rows, tuple)
        assert figure(found, "chat", "USD a chat", "min").value == rows[0].cluster_low_usd


def test_a_measured_row_names_the_batch_size_that_its_stack_declares() -> None:
    spec = load_stack("l40s-dev")
    found = bill_of(spec, [record(stack="l40s-dev", model=spec.chat.model)])
    (row,) = [each for each in found.known_chats if each.speed.date is not None]
    sources = [each.source for each in explain(found, f"chat[{row.speed.scenario}]").inputs]
    assert f"chat.speeds[{row.speed.scenario}].batch_size" in sources


def test_every_rule_of_the_policy_is_explained_with_what_it_compares():
    policy = PolicySpec(
        max_usd_per_hour=Decimal(1),
        max_usd_per_month=Decimal(1),
        max_usd_per_chat=Decimal(1),
        on_demand_gpus=False,
        max_idle_share=Decimal(1),
    )
    found = bill_of(replace(load_stack("l40s-dev"), policy=policy))
    high = found.estimate.total.high_usd
    (only,) = explain(found, "policy.max_usd_per_month").figures
    assert only.value == high == evaluated(only.expression)
    assert "BROKEN" in explain(found, "policy.max_usd_per_month").title
    assert explain(found, "policy.on_demand_gpus").figures == ()
    assert "not known" in explain(found, "policy.max_idle_share").title


def test_runs_are_explained_forecast_and_measured_with_and_without_preemption():
    spec = load_stack("h100-prod")
    run = RunForecastSpec(
        job="finetune",
        tokens_per_epoch=123_456_789,
        epochs=Decimal("2.5"),
        train_tokens_per_s=Decimal("98765.4"),
        source="a test",
    )
    preemption = PreemptionSpec(
        preemptions_per_node_day=Decimal("0.7"),
        checkpoint_stall_s=Decimal(30),
        restart_s=Decimal(240),
        source="a test",
    )
    measured = record(
        kind="train",
        stack="h100-prod",
        hardware={
            "platform": "gpu-h100-sxm",
            "preset": "8gpu-128vcpu-1600gb",
            "device": "NVIDIA H100",
            "num_nodes": 2,
            "num_gpus_declared": 16,
        },
    )
    for billing in (Billing.ON_DEMAND, Billing.PREEMPTIBLE):
        worker = replace(spec.nodes.workers[0], billing=billing)
        nodes = replace(spec.nodes, workers=(worker,))
        changed = replace(spec, nodes=nodes, runs=(run,), preemption=preemption)
        found = bill_of(changed, [measured])
        for item, each in figures(found):
            assert evaluated(each.expression) == each.value, (billing, item, each)
        assert len(explain(found, "run[finetune]").figures) == 3
        assert explain(found, "per_run_usd").figures[0].value == (
            found.estimate.total.hourly_low_usd * (Decimal(100) / 3600)
        )


def test_what_has_no_price_says_so_and_the_total_is_a_lower_bound():
    spec = load_stack("l40s-dev")
    book = PriceBook.load(spec.prices)
    readings = {sku: found for sku, found in book.readings.items() if sku != "gpu-l40s-d/gpu"}
    found = bill(spec, replace(book, readings=readings))
    line = explain(found, "nodes.workers[worker]")
    assert line.figures == ()
    assert "UNPRICED" in line.formula
    assert any("lower bound: worker" in note for note in explain(found, "total").notes)


def test_what_is_not_known_is_explained_by_how_to_know_it():
    found = bill_of(load_stack("h100-prod"))
    assert "soperator submit evaluate" in " ".join(explain(found, "chat").notes)
    assert "NOT KNOWN" in " ".join(explain(found, "run[finetune]").notes)


def test_an_unknown_item_is_refused_with_the_nearest_names():
    found = bill_of(load_stack("l40s-dev"))
    with pytest.raises(UserError, match="did you mean 'total'"):
        explain(found, "totl")
    with pytest.raises(UserError, match=r"'nodes.workers\[worker\]' or 'nodes.work"):
        explain(found, "worker")
    with pytest.raises(UserError, match=r"known: nodes\.workers\[worker\]"):
        explain(found, "zzz")


@pytest.mark.parametrize("format", list(Format))
def test_an_explanation_prints_in_every_format(format: Format):
    found = explain(bill_of(load_stack("l40s-dev")), "total")
    text = render_explanation(found, format)
    assert text.endswith("\n")
    if format is Format.JSON:
        document = json.loads(text)
        assert [each["value"] for each in document["figures"]] == [
            f"{each.value:f}".rstrip("0") for each in found.figures
        ]


def test_break_even_rests_on_the_prices_of_the_api_and_on_the_room():
    found = explain(
        bill_of(load_stack("l40s-dev")),
        "break-even[Optimized Target][anthropic/claude-haiku-4.5]",
    )
    figures = {figure.name: figure for figure in found.figures}
    assert figures["the API"].value == Decimal("0.018")
    assert figures["the API"].expression == "((8000 * 1 - 8000 * 1 * 0) * 1 + 2000 * 5) / 1000000"
    # One node of 4.5688 USD an hour, 24 hours, 0.018 USD a chat.
    assert figures["serving nodes, on-demand"].value == Decimal("4.5688") * 24 / Decimal("0.018")
    assert any(each.name == "room, chats a day" and each.value == "8640" for each in found.inputs)


def test_preemption_shows_its_interval_with_the_paper_and_the_slowdown():
    found = explain(bill_of(load_stack("h100-prod")), "preemption[finetune]")
    names = {each.name: each for each in found.inputs}
    assert names["M: seconds between preemptions"].value == "43200"
    assert "equation 37" in names["t: seconds between checkpoints"].source
    on_demand, preemptible = found.figures
    assert on_demand.value == 72
    assert preemptible.expression.endswith(f" * 2 * {names['slowdown'].value}")


@pytest.mark.parametrize(
    ("name", "item"),
    [
        ("Subtotal", "total.main"),
        ("Subtotal, also billed", "total.also"),
        ("subtotal_high_usd", "total.main"),
        ("$/chat", "chat"),
        ("$/run of finetune", "run[finetune]"),
        ("per_run_usd[finetune]", "run[finetune]"),
    ],
)
def test_a_figure_answers_to_the_name_that_it_is_printed_under(name: str, item: str):
    assert explain(bill_of(load_stack("l40s-dev")), name).item == item
