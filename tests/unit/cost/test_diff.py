"""Every change of the bill names the config key, the price or the measurement that caused it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from cost.bill.bill import Bill, bill
from cost.diff.diff import Difference, LineChange, diff, parse, plain, take
from cost.diff.table import NO_CHANGE, plain_diff, render_diff
from cost.prices.book import PriceBook, layered
from cost.report.layout import WIDTH, Format
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.cost import ContractPriceSpec, PreemptionSpec
from stacks.spec.nodes import Billing
from stacks.spec.slurm import PartitionSpec
from stacks.spec.storage import DiskType, SubmountSpec
from tests.unit.cost.conftest import record
from tests.unit.cost.run_stacks import RUN

Billed = Callable[[str], Bill]


def changed(before: Bill, spec: StackSpec, records: Any = ()) -> Difference:
    """The difference when the stack's declaration becomes the given one."""
    return diff(take(before), take(bill(spec, layered(spec), records)))


def with_worker(spec: StackSpec, **changes: Any) -> StackSpec:
    first, *rest = spec.nodes.workers
    return replace(spec, nodes=replace(spec.nodes, workers=(replace(first, **changes), *rest)))


def with_storage(spec: StackSpec, **changes: Any) -> StackSpec:
    return replace(spec, storage=replace(spec.storage, **changes))


def causes(change: Difference) -> dict[str, list[str]]:
    return {line.line.id: list(line.causes) for line in change.changes}


def one(change: Difference) -> LineChange:
    (line,) = change.changes
    return line


def test_the_changes_add_up_to_the_change_of_the_total(billed: Billed):
    before, after = take(billed("l40s-dev")), take(billed("h100-prod"))
    change = diff(before, after)
    lines = [line.change_low_usd or Decimal(0) for line in change.changes]
    assert sum(lines) == after.total.low_usd - before.total.low_usd == change.change_low_usd
    names = {line.id for line in (*before.lines, *after.lines)}
    assert change.num_unchanged + len(change.changes) == len(names)


def test_the_reviewed_change_from_one_stack_to_another(
    billed: Billed, golden: Callable[[str, str], None]
):
    text = render_diff(diff(take(billed("l40s-dev")), take(billed("h100-prod"))))
    assert max(len(line) for line in text.splitlines()) <= WIDTH
    golden("cost/l40s-dev-to-h100-prod.txt", text)


def test_a_bill_that_did_not_change_says_so_in_one_line(billed: Billed):
    snapshot = take(billed("local"))
    assert diff(snapshot, snapshot).is_empty
    assert render_diff(diff(snapshot, snapshot)) == f"{NO_CHANGE}\n"


def test_a_changed_number_of_nodes_names_its_key_on_nodes_and_disks(billed: Billed):
    before = billed("l40s-dev")
    change = changed(before, with_worker(before.spec, min_nodes=5, max_nodes=5))
    key = "nodes.workers[worker].nodes: 4 -> 5"
    assert causes(change) == {
        "nodes.workers[worker]": [key],
        "nodes.workers[worker].boot_disk": [key],
    }
    # 4.5688 x 730 + 558 x 0.053
    assert change.change_low_usd == Decimal("3364.798")


def test_a_fixed_group_that_may_grow_names_the_end_that_moved(billed: Billed):
    before = billed("l40s-dev")
    change = changed(before, with_worker(before.spec, min_nodes=4, max_nodes=7))
    assert causes(change)["nodes.workers[worker]"] == ["nodes.workers[worker].max_nodes: 4 -> 7"]
    assert one_line(change, "nodes.workers[worker]").change_low_usd == 0


def test_an_elastic_group_that_is_fixed_names_the_end_that_moved(billed: Billed):
    """`min_nodes: 0` becoming 4 of at most 4 was told as three keys, two of them never written."""
    before = billed("l40s-dev")
    elastic = with_worker(before.spec, min_nodes=0, max_nodes=4)
    fixed = with_worker(before.spec, min_nodes=4, max_nodes=4)
    for was, now, told in ((elastic, fixed, "0 -> 4"), (fixed, elastic, "4 -> 0")):
        change = changed(bill(was, layered(was), ()), now)
        assert causes(change)["nodes.workers[worker]"] == [
            f"nodes.workers[worker].min_nodes: {told}"
        ]


def preempted() -> StackSpec:
    """A preemptible nodeset with a declared run on it, and the same one on demand beside it."""
    spec = load_stack("h200-elastic")
    (worker,) = spec.nodes.workers
    workers = (replace(worker, billing=Billing.PREEMPTIBLE), replace(worker, name="safe"))
    side = PartitionSpec(name="side", nodesets=("safe",))
    slurm = replace(spec.slurm, partitions=(*spec.slurm.partitions, side))
    whole = replace(
        spec,
        nodes=replace(spec.nodes, workers=workers),
        slurm=slurm,
        runs=(RUN,),
        preemption=PreemptionSpec(**PREEMPTION),
    )
    return with_main(whole, nodesets=("worker",))


def with_preemption(spec: StackSpec, **values: Any) -> StackSpec:
    return replace(spec, preemption=PreemptionSpec(**{**PREEMPTION, **values}))


def with_finetune(spec: StackSpec, **values: Any) -> StackSpec:
    jobs = [replace(job, **values) if job.name == "finetune" else job for job in spec.jobs]
    return replace(spec, jobs=tuple(jobs))


def with_main(spec: StackSpec, **values: Any) -> StackSpec:
    parts = [replace(p, **values) if p.name == "main" else p for p in spec.slurm.partitions]
    return replace(spec, slurm=replace(spec.slurm, partitions=tuple(parts)))


PREEMPTION: dict[str, Any] = {
    "preemptions_per_node_day": Decimal(1),
    "checkpoint_stall_s": Decimal(60),
    "restart_s": Decimal(600),
    "source": "assumed",
}


@pytest.mark.parametrize(
    ("edit", "cause"),
    [
        (
            lambda spec: with_preemption(spec, preemptions_per_node_day=Decimal(2)),
            "preemption.preemptions_per_node_day: 1 -> 2",
        ),
        (
            lambda spec: with_preemption(spec, checkpoint_stall_s=Decimal(90)),
            "preemption.checkpoint_stall_s: 60 -> 90",
        ),
        (
            lambda spec: with_preemption(spec, restart_s=Decimal(900)),
            "preemption.restart_s: 600 -> 900",
        ),
        (lambda spec: replace(spec, preemption=None), "preemption: removed"),
        (
            lambda spec: with_finetune(spec, partition="side"),
            "jobs[finetune].partition: main -> side",
        ),
        (lambda spec: with_finetune(spec, nodes=3), "jobs[finetune].nodes: 4 -> 3"),
        (
            lambda spec: with_main(spec, nodesets=("safe",)),
            "slurm.partitions[main].nodesets: worker -> safe",
        ),
        (
            lambda spec: replace(spec, runs=(replace(spec.runs[0], epochs=Decimal(3)),)),
            "runs[finetune].epochs: 2 -> 3",
        ),
    ],
)
def test_one_key_that_changes_a_run_is_its_cause(
    public_key_file: object, edit: Callable[[StackSpec], StackSpec], cause: str
):
    spec = preempted()
    change = changed(bill(spec, layered(spec), ()), edit(spec))
    (run,) = [each for each in change.amounts if each.label == "$/run of finetune"]
    assert run.before_usd != run.after_usd
    assert run.causes == (cause,)


def one_line(change: Difference, name: str) -> LineChange:
    (line,) = [line for line in change.changes if line.line.id == name]
    return line


def test_more_nodes_at_most_show_in_the_last_column_only(billed: Billed):
    """3..9 system nodes to 3..10: 0.1984 x 730 + 128 x 0.071 more at max_nodes."""
    before = billed("l40s-dev")
    system = replace(before.spec.nodes.system, max_nodes=10)
    spec = replace(before.spec, nodes=replace(before.spec.nodes, system=system))
    change = changed(before, spec)
    assert [(line.change_low_usd, line.change_high_usd) for line in change.changes] == [
        (Decimal(0), Decimal("144.832")),
        (Decimal(0), Decimal("9.088")),
    ]


def test_a_changed_preset_names_its_key(billed: Billed):
    before = billed("l40s-dev")
    change = changed(before, with_worker(before.spec, preset="2gpu-96vcpu-576gb"))
    assert causes(change) == {
        "nodes.workers[worker]": [
            "nodes.workers[worker].preset: 2gpu-64vcpu-384gb -> 2gpu-96vcpu-576gb"
        ]
    }


def test_a_changed_kind_of_billing_names_its_key(billed: Billed):
    before = billed("h100-prod")
    change = changed(before, with_worker(before.spec, billing=Billing.PREEMPTIBLE))
    assert causes(change) == {
        "nodes.workers[worker]": ["nodes.workers[worker].billing: on-demand -> preemptible"]
    }


def test_two_changed_keys_of_one_line_are_both_named(billed: Billed):
    before = billed("l40s-dev")
    jail = replace(before.spec.storage.jail, size_gib=512, type=DiskType.NETWORK_SSD_IO_M3)
    change = changed(before, with_storage(before.spec, jail=jail))
    assert causes(change)["storage.jail"] == [
        "storage.jail.size_gib: 256 -> 512",
        "storage.jail.type: network-ssd -> network-ssd-io-m3",
    ]


def test_a_new_submount_is_named_as_a_whole(billed: Billed):
    before = billed("l40s-dev")
    extra = SubmountSpec(name="v1.5", mount_path="/mnt/extra", size_gib=100)
    change = changed(
        before, with_storage(before.spec, submounts=(*before.spec.storage.submounts, extra))
    )
    assert causes(change) == {"storage.submounts[v1.5]": ["storage.submounts[v1.5]: added"]}
    assert one(change).change_low_usd == Decimal("8.00")


def test_a_removed_nodeset_is_named_as_a_whole(billed: Billed):
    before = billed("l40s-dev")
    second = replace(before.spec.nodes.workers[0], name="second")
    two = replace(
        before.spec, nodes=replace(before.spec.nodes, workers=(*before.spec.nodes.workers, second))
    )
    change = changed(bill(two, layered(two)), before.spec)
    removed = "nodes.workers[second]: removed"
    assert causes(change) == {
        "nodes.workers[second]": [removed],
        "nodes.workers[second].boot_disk": [removed],
    }


def test_another_price_book_names_its_key_the_sku_and_both_dates(billed: Billed):
    before = billed("l40s-dev")
    change = changed(before, replace(before.spec, prices="nebius"))
    found = causes(change)["nodes.login"]
    assert found[0] == "prices: nebius-2026-09 -> nebius"
    assert found[1].startswith(
        "price cpu-d3/vcpu: 0.012 (nebius-2026-09, undated, read on 2026-11-21) -> 0.015 (nebius, "
    )


def test_a_state_that_has_the_old_name_of_the_book_is_no_change(billed: Billed):
    before = billed("l40s-dev")
    values = json.loads(json.dumps(plain(take(before))).replace("nebius-2026-09", "seed000"))
    assert values["book"] == values["values"]["prices"] == "seed000"
    assert parse(values) == take(before)


def test_a_price_that_moved_in_the_same_book_names_sku_and_dates_alone(billed: Billed):
    before = billed("l40s-dev")
    book = layered(before.spec)
    price = replace(
        book.prices["filesystem/network-ssd"], usd=Decimal("0.09"), date=date(2026, 12, 1),
        is_undated=False,
    )  # fmt: skip
    after = bill(before.spec, book.with_prices([price]))
    change = diff(take(before), take(after))
    (cause,) = causes(change)["storage.jail"]
    assert cause == (
        "price filesystem/network-ssd: 0.08 (nebius-2026-09, undated, read on 2026-11-21) -> "
        "0.09 (nebius-2026-09, 2026-12-01) USD per GiB-month"
    )


def test_a_contract_price_is_named_on_its_own_lines_only(billed: Billed):
    before = billed("l40s-dev")
    contract = ContractPriceSpec(
        sku="gpu-l40s-d/gpu", unit="GPU-hour", usd=Decimal("1.10"), source="offer 7",
        date=date(2026, 11, 1),
    )  # fmt: skip
    change = changed(before, replace(before.spec, contract_prices=(contract,)))
    found = causes(change)
    assert list(found) == ["nodes.workers[worker]", "nodes.workers[worker-serve]"]
    key, price = found["nodes.workers[worker]"]
    assert found["nodes.workers[worker-serve]"] == [key, price]
    assert key == "contract_prices[gpu-l40s-d/gpu]: added"
    assert price == (
        "price gpu-l40s-d/gpu: 1.35 (nebius-2026-09, undated, read on 2026-11-21) -> "
        "1.10 (contract, 2026-11-01) USD per GPU-hour"
    )


def amounts(change: Difference) -> dict[str, list[str]]:
    return {amount.label: list(amount.causes) for amount in change.amounts if amount.causes}


def test_unit_costs_follow_the_bill_and_name_the_same_key(billed: Billed):
    before = billed("l40s-dev")
    change = changed(before, with_worker(before.spec, min_nodes=5, max_nodes=5))
    key = "nodes.workers[worker].nodes: 4 -> 5"
    assert amounts(change) == {"$/1M tokens": [key], "$/chat": [key]}


def test_a_longer_chat_changes_its_cost_and_no_line(billed: Billed):
    before = billed("l40s-dev")
    chat = replace(before.spec.chat, output_tokens=4000)
    change = changed(before, replace(before.spec, chat=chat))
    assert change.changes == ()
    assert not change.is_empty
    assert amounts(change) == {"$/chat": ["chat.output_tokens: 2000 -> 4000"]}


def test_a_new_measurement_names_its_job(billed: Billed):
    before = billed("l40s-dev")
    measured = record(model="Qwen3-14B", stack="l40s-dev", metrics={"output_tokens_per_s": 5.5})
    change = changed(before, before.spec, [measured])
    (cause,) = amounts(change)["$/chat"]
    assert "now measured: Single Batch Finetuned: job 12 of stack l40s-dev" in cause
    assert "was assumed: Single Batch Finetuned: published run" in cause


def test_a_finished_run_names_its_job(billed: Billed):
    before = billed("l40s-dev")
    run = record(kind="train", job="finetune", job_id="11", stack="l40s-dev")
    (cause,) = amounts(changed(before, before.spec, [run]))["$/run"]
    assert cause.startswith("$/run: now measured: finetune, job 11; was NOT KNOWN")


def test_a_change_to_an_unknown_price_is_unknown_and_the_total_says_so(billed: Billed):
    before = billed("l40s-dev")
    book = PriceBook.load(before.spec.prices)
    readings = {sku: found for sku, found in book.readings.items() if sku != "gpu-l40s-d/gpu"}
    without = replace(book, readings=readings)
    change = diff(take(before), take(bill(before.spec, without)))
    assert [line.change_low_usd for line in change.changes] == [None, None]
    text = " ".join(render_diff(change).split())
    assert "Total, priced lines only" in text
    assert "price book 'nebius-2026-09' has no 'gpu-l40s-d/gpu'" in text
    for figure in ("$/h at min_nodes $24.82 at least $1.97", "$/chat $3.63 at least $0.288"):
        assert f"{figure} unknown" in text
    plain = {each["unit"]: each for each in plain_diff(change)["amounts"]}
    assert plain["$/chat"]["change_usd"] is None
    assert (
        plain_diff(change)["before_is_lower_bound"],
        plain_diff(change)["after_is_lower_bound"],
    ) == (False, True)


def test_a_longer_chat_on_a_bill_that_misses_a_line_costs_an_unknown_amount_more(billed: Billed):
    """Half of an unknown amount is unknown too."""
    spec = billed("l40s-dev").spec
    mount = SubmountSpec(name="old", mount_path="/mnt/old", existing_id="computefilesystem-1")
    spec = with_storage(spec, submounts=(*spec.storage.submounts, mount))
    longer = replace(spec, chat=replace(spec.chat, output_tokens=4000))
    text = " ".join(render_diff(changed(bill(spec, layered(spec)), longer)).split())
    assert "$/chat at least $3.63 at least $7.26 unknown" in text


def test_an_unpriced_line_that_stays_the_same_keeps_the_change_exact(billed: Billed):
    spec = billed("l40s-dev").spec
    mount = SubmountSpec(name="old", mount_path="/mnt/old", existing_id="computefilesystem-1")
    spec = with_storage(spec, submounts=(*spec.storage.submounts, mount))
    before = bill(spec, layered(spec))
    assert before.estimate.total.is_lower_bound
    change = changed(before, with_worker(spec, min_nodes=5, max_nodes=5))
    assert not change.is_incomplete
    text = " ".join(render_diff(change).split())
    assert "$/chat at least $3.63 at least $4.30 +$0.674" in text


@pytest.mark.parametrize("label", ["$/h at min_nodes", "$/month at max_nodes", "$/run", "$/chat"])
def test_every_unit_is_printed_before_and_after(billed: Billed, label: str):
    before = billed("l40s-dev")
    text = render_diff(changed(before, with_worker(before.spec, min_nodes=5, max_nodes=5)))
    assert any(line.startswith(f"{label} ") for line in text.splitlines())


def test_json_and_csv_hold_the_same_changes(billed: Billed):
    change = diff(take(billed("l40s-dev")), take(billed("h100-prod")))
    document = json.loads(render_diff(change, Format.JSON))
    rows = list(csv.reader(io.StringIO(render_diff(change, Format.CSV))))
    assert {len(row) for row in rows} == {6}
    (total,) = [row for row in rows if row[0] == "Total"]
    assert document["change_low_usd"] == total[3]
    lines = [row[0] for row in rows[1 : rows.index(total)]]
    assert [line["resource"] for line in document["changes"]] == lines
    assert all(line["causes"] for line in document["changes"])
