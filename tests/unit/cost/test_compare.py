"""Stacks side by side show the figures of their own bills; a comment always has room."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal

import pytest

from cost.bill.bill import Bill, bill
from cost.diff.table import MARK, MAX_CHARACTERS, StackChange, comment, compare, render_compare
from cost.prices.book import layered
from cost.report.layout import WIDTH, Format
from cost.resources.lines import Section
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.cost import PolicyLevel, PolicySpec
from stacks.spec.storage import SubmountSpec
from tests import SHIPPED

pytestmark = pytest.mark.usefixtures("public_key_file")


def bill_of(spec: StackSpec) -> Bill:
    return bill(spec, layered(spec))


def with_nodes(name: str, num_nodes: int) -> StackSpec:
    spec = load_stack(name)
    worker = replace(spec.nodes.workers[0], min_nodes=num_nodes, max_nodes=num_nodes)
    workers = (worker, *spec.nodes.workers[1:])
    return replace(spec, nodes=replace(spec.nodes, workers=workers))


def test_every_column_is_the_stack_s_own_bill():
    bills = [bill_of(load_stack(name)) for name in SHIPPED]
    rows = {row.name: row for row in compare(bills)}
    for column, each in enumerate(bills):
        total = each.estimate.total
        assert rows["Total $/month"].low_usd[column] == total.low_usd
        assert rows["Total $/month"].high_usd[column] == total.high_usd
        assert rows["Total $/h"].high_usd[column] == total.hourly_high_usd
        sections = [rows[section].low_usd[column] for section in Section if section in rows]
        assert sum(usd for usd in sections if usd is not None) == total.low_usd


def test_the_difference_of_two_is_first_less_second():
    text = render_compare([bill_of(with_nodes("l40s-dev", 5)), bill_of(load_stack("l40s-dev"))])
    (total,) = [line for line in text.splitlines() if line.startswith("Total $/month")]
    assert total.endswith("+$3,364.80")
    assert max(len(line) for line in text.splitlines()) <= WIDTH


def test_what_is_not_known_has_no_difference():
    text = render_compare([bill_of(load_stack("l40s-dev")), bill_of(load_stack("h100-prod"))])
    (chat,) = [line for line in text.splitlines() if line.startswith("$/chat")]
    assert chat.split()[-2:] == ["NOT", "KNOWN"]


def test_a_lower_bound_says_so():
    spec = load_stack("l40s-dev")
    book = layered(spec)
    readings = {sku: found for sku, found in book.readings.items() if sku != "gpu-l40s-d/gpu"}
    text = render_compare([bill(spec, replace(book, readings=readings)), bill_of(spec)])
    assert "at least $" in text
    words = " ".join(text.split())
    assert (
        "l40s-dev: at least; not priced: worker (gpu-l40s-d), worker-serve (gpu-l40s-d)." in words
    )
    # The difference of an amount and of a part of one is neither.
    assert "$/chat at least $0.288 $3.63 NOT KNOWN" in words
    assert "at least $1,439.96..$2,363.49 $18,116.08..$19,039.61 NOT KNOWN" in words


def test_a_comment_gives_no_change_of_a_total_that_misses_a_line():
    spec = load_stack("l40s-dev")
    book = layered(spec)
    readings = {sku: found for sku, found in book.readings.items() if sku != "gpu-l40s-d/gpu"}
    after = bill(spec, replace(book, readings=readings))
    text = comment([StackChange(name="l40s-dev", before=bill_of(spec), after=after)])
    assert "| $18,116.08 | at least $1,439.96 | unknown | unknown |" in text


def test_the_json_has_text_and_amounts_of_each_stack():
    found = json.loads(render_compare([bill_of(load_stack("local"))] * 2, Format.JSON))
    assert found["schema_version"] == 1
    assert found["stacks"] == ["local", "local"]
    for row in found["rows"]:
        assert len(row["text"]) == 2


def test_a_comment_tells_each_change_with_its_cause_and_hides_the_full_bill():
    changes = [
        StackChange(
            name="l40s-dev",
            before=bill_of(load_stack("l40s-dev")),
            after=bill_of(with_nodes("l40s-dev", 5)),
        ),
        StackChange(
            name="local", before=bill_of(load_stack("local")), after=bill_of(load_stack("local"))
        ),
    ]
    text = comment(changes)
    assert text.startswith(f"{MARK}\n")
    assert "| `l40s-dev` | $18,116.08 | $21,480.88 | +$3,364.80 | +$3,364.80 | none set |" in text
    assert "nodes.workers[worker].nodes: 4 -> 5" in text
    assert "No change in cost: local." in text
    assert text.count("<details><summary>Full bill of l40s-dev</summary>") == 1
    assert "Full bill of local" not in text


def test_a_comment_names_the_policy_that_a_change_breaks():
    spec = replace(with_nodes("l40s-dev", 5), policy=PolicySpec(max_usd_per_month=Decimal(20000)))
    change = StackChange(
        name="l40s-dev", before=bill_of(load_stack("l40s-dev")), after=bill_of(spec)
    )
    text = comment([change])
    assert "**1 refused**" in text
    assert "> **error: l40s-dev.policy.max_usd_per_month: " in text


@pytest.mark.parametrize(("most", "verdict"), [(20_000, "**1 broken**"), (30_000, "kept")])
def test_a_comment_calls_no_policy_kept_that_is_not(most: int, verdict: str):
    policy = PolicySpec(max_usd_per_month=Decimal(most), level=PolicyLevel.WARNING)
    spec = replace(with_nodes("l40s-dev", 5), policy=policy)
    before = bill_of(load_stack("l40s-dev"))
    text = comment([StackChange(name="l40s-dev", before=before, after=bill_of(spec))])
    assert f"| {verdict} |" in text
    prices = layered(spec)
    read = {sku: each for sku, each in prices.readings.items() if sku != "gpu-l40s-d/gpu"}
    after = bill(spec, replace(prices, readings=read))
    text = comment([StackChange(name="l40s-dev", before=before, after=after)])
    assert "| not known |" in text


def test_a_comment_tells_new_removed_and_unreadable_stacks_apart():
    found = bill_of(load_stack("local"))
    text = comment(
        [
            StackChange(name="new", before=None, after=found),
            StackChange(name="gone", before=found, after=None),
            StackChange(name="odd", before=None, after=found, problem="x: <b>unknown</b> key"),
        ]
    )
    assert "| `new` | first deployment |" in text
    assert "| `gone` | $7,332.41 | removed | -$7,332.41 |" in text
    assert "| `odd` | cannot be read |" in text
    assert "&lt;b>unknown" in text


def test_a_comment_without_changes_still_says_so():
    found = bill_of(load_stack("local"))
    text = comment([StackChange(name="local", before=found, after=found)])
    assert "No change in cost: local." in text
    assert "###" not in text


def wide(num_mounts: int) -> StackSpec:
    """A stack with so many filesystems that its bill is long."""
    spec = load_stack("l40s-dev")
    mounts = tuple(
        SubmountSpec(name=f"mount-{number}", mount_path=f"/mnt/{number}", size_gib=number + 1)
        for number in range(num_mounts)
    )
    storage = replace(spec.storage, submounts=(*spec.storage.submounts, *mounts))
    return replace(spec, storage=storage)


@pytest.mark.parametrize("num_mounts", [10, 150, 800])
def test_a_comment_never_grows_over_its_limit(num_mounts: int):
    """Full bills give way first, then differences; the table of stacks always stays."""
    change = StackChange(
        name="l40s-dev", before=bill_of(load_stack("l40s-dev")), after=bill_of(wide(num_mounts))
    )
    text = comment([change, replace(change, name="other")])
    assert len(text) <= MAX_CHARACTERS
    assert text.startswith(MARK)
    assert "| `l40s-dev` | $18,116.08 |" in text
    assert "| `other` |" in text
    assert ("Left out, for want of room" in text) == (num_mounts > 10)
    assert text.count("<details>") == text.count("</details>")


def test_nodesets_of_one_preset_are_one_row_and_of_more_presets_a_row_each():
    """Side by side in one cell they would take the room of the names."""
    spec = load_stack("l40s-dev")
    first, *rest = spec.nodes.workers
    larger = replace(first, name="larger", preset="2gpu-96vcpu-576gb")
    workers = (first, replace(first, name="same"), larger, *rest)
    wide = replace(spec, nodes=replace(spec.nodes, workers=workers))
    text = render_compare([bill_of(wide), bill_of(load_stack("h100-prod"))])
    rows = [line.split("  ") for line in text.splitlines() if line.startswith("Workers")]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    num_nodes = sum(worker.max_nodes for worker in (first, first, *rest))
    assert cells == [
        ["Workers", f"{num_nodes} x 2gpu-64vcpu-384gb", "2 x 8gpu-128vcpu-1600gb", "differs"],
        ["Workers (2)", f"{first.max_nodes} x 2gpu-96vcpu-576gb", "differs"],
    ]
    assert max(len(line) for line in text.splitlines()) <= WIDTH
