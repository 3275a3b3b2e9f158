"""Every JSON bill is a document of the published schema, and the schema refuses what is none."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import cost
from cost.bill.bill import SCHEMA_VERSION, bill, render
from cost.prices.book import PriceBook, layered
from cost.report.layout import Format
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.cost import PolicySpec, PreemptionSpec, RunForecastSpec
from tests import SHIPPED

pytestmark = pytest.mark.usefixtures("public_key_file")

SCHEMA: dict[str, Any] = json.loads(
    (Path(cost.__file__).parent / "bill" / "cost.schema.json").read_text(encoding="ascii")
)


def document(spec: StackSpec, book: PriceBook | None = None) -> dict[str, Any]:
    return json.loads(render(bill(spec, book or layered(spec)), Format.JSON))


def refusals(found: dict[str, Any]) -> list[str]:
    validator = Draft202012Validator(SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER)
    return [error.json_path for error in validator.iter_errors(found)]


def test_the_schema_is_one_of_draft_2020_12_and_of_this_version():
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMA["properties"]["schema_version"] == {"const": SCHEMA_VERSION}
    assert SCHEMA["$id"].endswith(f":{SCHEMA_VERSION}")


@pytest.mark.parametrize("name", SHIPPED)
def test_the_bill_of_every_stack_is_valid(name: str):
    assert refusals(document(load_stack(name))) == []


def test_a_bill_with_every_part_and_a_missing_price_is_valid():
    spec = load_stack("l40s-dev")
    run = RunForecastSpec(
        job="finetune",
        tokens_per_epoch=1000,
        train_tokens_per_s=Decimal(10),
        source="a test",
    )
    preemption = PreemptionSpec(
        preemptions_per_node_day=Decimal(1),
        checkpoint_stall_s=Decimal(1),
        restart_s=Decimal(1),
        source="a test",
    )
    policy = PolicySpec(
        max_usd_per_month=Decimal(1), on_demand_gpus=False, max_idle_share=Decimal("0.5")
    )
    chat = replace(spec.chat, max_answer_s=Decimal(10), chats_per_day=3)
    spec = replace(spec, runs=(run,), preemption=preemption, policy=policy, chat=chat)
    found = document(spec)
    assert refusals(found) == []
    assert found["parts"]["policy"]["level"] == "error"
    book = layered(spec)
    readings = {sku: found for sku, found in book.readings.items() if sku != "gpu-l40s-d/gpu"}
    assert refusals(document(spec, replace(book, readings=readings))) == []


def test_a_document_keeps_its_keys_and_their_order():
    """Whoever reads or diffs a bill must find it in the same order tomorrow."""
    found = document(load_stack("local"))
    assert list(found) == list(SCHEMA["properties"])
    assert list(found["cost"]) == list(SCHEMA["$defs"]["figures"]["properties"])
    assert list(found["components"][0]) == list(SCHEMA["$defs"]["component"]["properties"])
    assert document(load_stack("local")) == found


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("$.schema_version", lambda it: it.update(schema_version=1)),
        ("$", lambda it: it.pop("cost")),
        ("$", lambda it: it.update(extra=1)),
        ("$.cost.hourly_usd", lambda it: it["cost"].update(hourly_usd=24.8)),
        ("$.cost.price_date", lambda it: it["cost"].update(price_date="yesterday")),
        ("$.components[0].size", lambda it: it["components"][0].update(size=5)),
        ("$.components[0].scope", lambda it: it["components"][0].update(scope="other")),
    ],
)  # fmt: skip
def test_what_is_no_bill_is_refused_where_it_is_wrong(path: str, change: Any):
    found = document(load_stack("local"))
    change(found)
    assert path in refusals(found)
