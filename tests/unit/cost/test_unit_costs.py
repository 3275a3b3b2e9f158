"""A measurement replaces an assumption only where it measures the same thing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from cost.bill.bill import figures
from cost.chat.speeds import Basis, ChatCost
from cost.chat.unit_costs import NotKnown, UnitCosts
from cost.prices.book import PriceBook
from cost.resources.estimate import estimate
from cost.run_record import RunRecord
from stacks.spec.nodes import Billing
from stacks.spec.slurm import PartitionSpec
from tests.unit.cost.conftest import RECORD, Priced, record, unit_costs

H200 = {**RECORD["hardware"], "platform": "gpu-h200-sxm", "preset": "1gpu-16vcpu-200gb"}


def chats_of(costs: UnitCosts) -> tuple[ChatCost, ...]:
    assert not isinstance(costs.chats, NotKnown)
    return costs.chats


def test_a_measurement_gives_the_local_stack_its_cost_per_chat(priced: Callable[[str], Priced]):
    """10.0444 dollars an hour x 2000 tokens / (12.25 x 3600) tokens an hour."""
    (chat,) = chats_of(unit_costs(*priced("local"), [record()]))
    assert chat.speed.basis is Basis.MEASURED
    assert chat.speed.source == "job 12 of stack local on cpu"
    assert str(chat.speed.date) == "2026-11-21"
    assert chat.cluster_low_usd.quantize(Decimal("0.0001")) == Decimal("0.4555")


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": "FAIL"},
        {"outcome": "NOT_RUN"},
        {"kind": "train"},
        {"model": "SmolLM2-360M-Instruct"},
        {"model": None},
        {"engine": None},
        {"hardware": None},
        {"hardware": {**RECORD["hardware"], "preset": "2gpu-96vcpu-576gb"}},
        {"hardware": {**RECORD["hardware"], "platform": None}},
        {"metrics": {"perplexity": 4.5}},
        {"metrics": {"output_tokens_per_s": 0}},
        {"metrics": {"batch_output_tokens_per_s": 50}},
    ],
)
def test_a_record_of_something_else_does_not_count(
    priced: Callable[[str], Priced], changes: dict[str, Any]
):
    """The last row: a batched speed without its batch size belongs to no scenario."""
    costs = unit_costs(*priced("local"), [record(**changes)])
    assert isinstance(costs.chats, NotKnown)


def test_what_is_not_known_says_what_to_run(priced: Callable[[str], Priced]):
    costs = unit_costs(*priced("h100-prod"), [])
    assert str(costs.chats) == (
        "NOT KNOWN: no speed of Qwen2-7B-Instruct is declared or measured on this preset; "
        "run: soperator submit evaluate --stack h100-prod"
    )
    assert str(costs.run) == (
        "NOT KNOWN: no training run of this stack has passed; "
        "run: soperator submit finetune --stack h100-prod"
    )


def seed_model(**changes: Any) -> RunRecord:
    return record(**{"model": "Qwen/Qwen3-14B", "stack": "l40s-dev", **changes})


def test_a_measurement_of_the_local_model_leaves_the_assumptions_of_l40s_dev(
    priced: Callable[[str], Priced],
):
    """Both stacks declare the same preset; only the model tells them apart."""
    chats = chats_of(unit_costs(*priced("l40s-dev"), [record()]))
    assert {chat.speed.basis for chat in chats} == {Basis.ASSUMED}


def test_a_measurement_replaces_the_row_of_its_engine_and_batch_size(
    priced: Callable[[str], Priced],
):
    metrics = {"output_tokens_per_s": 20, "batch_output_tokens_per_s": 250, "batch_size": 16}
    chats = chats_of(unit_costs(*priced("l40s-dev"), [seed_model(metrics=metrics)]))
    assert [
        (chat.speed.scenario, chat.speed.output_tokens_per_s, chat.speed.basis) for chat in chats
    ] == [
        ("Single Batch Finetuned", Decimal(20), Basis.MEASURED),
        ("Batch Size 16 Finetuned", Decimal(250), Basis.MEASURED),
        ("Optimized Target", Decimal(200), Basis.ASSUMED),
    ]


def test_a_measurement_of_another_batch_size_or_engine_is_a_row_of_its_own(
    priced: Callable[[str], Priced],
):
    metrics = {"batch_output_tokens_per_s": 250, "batch_size": 32}
    vllm = seed_model(engine="vllm")
    chats = chats_of(unit_costs(*priced("l40s-dev"), [seed_model(metrics=metrics), vllm]))
    assert [chat.speed.scenario for chat in chats[3:]] == [
        "transformers, batch 32",
        "vllm, batch 1",
    ]
    assert {chat.speed.basis for chat in chats[:3]} == {Basis.ASSUMED}


def test_a_measured_prefill_is_counted_and_a_batch_has_its_own(priced: Callable[[str], Priced]):
    """8,000 tokens read at 1,000/s and 2,000 written at 20/s: 108 seconds of the node."""
    metrics = {
        "output_tokens_per_s": 20,
        "prefill_tokens_per_s": 1000,
        "batch_output_tokens_per_s": 250,
        "batch_prefill_tokens_per_s": 4000,
        "batch_size": 16,
    }
    single, batch, target = chats_of(unit_costs(*priced("l40s-dev"), [seed_model(metrics=metrics)]))
    assert single.answer_s == 108
    assert single.speed.prefill_basis is Basis.MEASURED
    assert batch.speed.prefill_tokens_per_s == 4000
    assert not target.counts_prefill


def test_a_batch_without_a_prefill_of_its_own_reads_as_fast_as_one_prompt(
    priced: Callable[[str], Priced],
):
    metrics = {
        "batch_output_tokens_per_s": 250,
        "prefill_tokens_per_s": 1000,
        "batch_size": 16,
    }
    _, batch, _ = chats_of(unit_costs(*priced("l40s-dev"), [seed_model(metrics=metrics)]))
    assert batch.speed.prefill_tokens_per_s == 1000


def test_a_declared_prefill_stays_where_only_writing_was_measured(
    priced: Callable[[str], Priced],
):
    spec, bill = priced("l40s-dev")
    rows = (replace(spec.chat.speeds[0], prefill_tokens_per_s=Decimal(900)), *spec.chat.speeds[1:])
    spec = replace(spec, chat=replace(spec.chat, speeds=rows))
    chat = chats_of(unit_costs(spec, bill, [seed_model()]))[0]
    assert (chat.speed.basis, chat.speed.prefill_basis) == (Basis.MEASURED, Basis.ASSUMED)
    assert chat.speed.prefill_tokens_per_s == 900


def test_a_nodeset_that_shrinks_to_nothing_is_charged_for_the_nodes_that_serve(
    priced: Callable[[str], Priced],
):
    """Else the whole cluster would cost less than the node in it that answers."""
    spec, _ = priced("l40s-dev")
    *_, worker = spec.nodes.workers
    bills = {}
    for least in (0, 2):
        other = replace(worker, min_nodes=least, max_nodes=5)
        changed = replace(
            spec,
            nodes=replace(spec.nodes, workers=(other,)),
            chat=replace(spec.chat, serving_nodes=2),
        )
        bill = estimate(changed, PriceBook.load(changed.prices))
        bills[least] = chats_of(unit_costs(changed, bill, []))[0]
    assert bills[0].serving_usd == bills[2].serving_usd
    assert abs(bills[0].cluster_low_usd - bills[2].cluster_low_usd) < Decimal("1e-20")


def test_chats_of_a_paused_stack_pay_for_their_nodes_at_max_nodes_too(
    priced: Callable[[str], Priced],
):
    """That end had none: it was below the serving node alone, and policies are held against it."""
    spec, _ = priced("l40s-dev")
    spec = replace(spec, nodes=replace(spec.nodes, paused=True))
    found = unit_costs(spec, estimate(spec, PriceBook.load(spec.prices)), []).hourly
    assert (found.serving_usd or 0) < found.cluster_low_usd <= found.cluster_high_usd


def test_the_newest_measurement_wins_whatever_the_order(priced: Callable[[str], Priced]):
    day_before = {"started_at": "2026-11-20T05:00:00Z", "finished_at": "2026-11-20T05:01:40Z"}
    old = record(metrics={"output_tokens_per_s": 5}, **day_before)
    for records in ([old, record()], [record(), old]):
        (chat,) = chats_of(unit_costs(*priced("local"), records))
        assert chat.speed.output_tokens_per_s == Decimal("12.25")


def test_a_nodeset_that_does_not_serve_is_not_measured_for_chats(
    priced: Callable[[str], Priced],
):
    spec, bill = priced("local")
    other = replace(spec.nodes.workers[0], name="worker-b", preset="2gpu-96vcpu-576gb")
    spec = replace(spec, nodes=replace(spec.nodes, workers=(*spec.nodes.workers, other)))
    of_other = record(hardware={**RECORD["hardware"], "preset": "2gpu-96vcpu-576gb"})
    assert isinstance(unit_costs(spec, bill, [of_other]).chats, NotKnown)


def test_without_a_serving_nodeset_only_the_whole_cluster_is_charged(
    priced: Callable[[str], Priced],
):
    spec, bill = priced("local")
    spec = replace(spec, chat=replace(spec.chat, serving_nodeset=None))
    (chat,) = chats_of(unit_costs(spec, bill, [record()]))
    assert chat.serving_usd is None
    assert chat.cluster_low_usd > 0


def test_a_run_costs_what_the_nodes_of_its_partition_do(priced: Callable[[str], Priced]):
    """Of two nodesets of one preset the first was taken: on demand, $1.00 instead of $0.478."""
    spec, _ = priced("h100-prod")
    (worker, *_), job = spec.nodes.workers, next(j for j in spec.jobs if j.name == "finetune")
    spot = replace(worker, name="worker-spot", billing=Billing.PREEMPTIBLE)
    partition = PartitionSpec(name="spot", nodesets=("worker-spot",))
    spec = replace(
        spec,
        nodes=replace(spec.nodes, workers=(worker, spot)),
        slurm=replace(spec.slurm, partitions=(*spec.slurm.partitions, partition)),
        jobs=(replace(job, partition="spot"),),
    )
    place = {"platform": worker.platform, "preset": worker.preset}
    hardware = {**RECORD["hardware"], **place}
    ran = record(kind="train", job="finetune", stack="h100-prod", hardware=hardware)
    run = unit_costs(spec, estimate(spec, PriceBook.load("nebius")), [ran]).run
    assert not isinstance(run, NotKnown)
    assert round(run.nodes_usd or 0, 9) == round(8 * Decimal("2.15") * 100 / 3600, 9)


def test_a_training_run_costs_its_time_times_the_cluster(priced: Callable[[str], Priced]):
    """4 H200 nodes at 5.40 for half an hour: 10.80 dollars of the nodes alone."""
    spec, bill = priced("h200-elastic")
    train = record(
        kind="train",
        stack="h200-elastic",
        job="finetune",
        hardware={**H200, "num_nodes": 4},
        started_at="2026-11-21T05:00:00Z",
        finished_at="2026-11-21T05:30:00Z",
    )
    run = unit_costs(spec, bill, [train]).run
    assert not isinstance(run, NotKnown)
    assert run.nodes_usd == Decimal("10.8")
    assert run.cluster_usd == bill.total.hourly_low_usd / 2


@pytest.mark.parametrize("changes", [{"outcome": "FAIL"}, {"stack": "other"}, {"kind": "evaluate"}])
def test_a_training_run_of_another_stack_or_that_failed_has_no_cost(
    priced: Callable[[str], Priced], changes: dict[str, Any]
):
    train = record(**{"kind": "train", **changes})
    assert isinstance(unit_costs(*priced("local"), [train]).run, NotKnown)


def test_the_stack_output_gives_money_as_text_and_dates_but_no_ages(
    priced: Callable[[str], Priced],
):
    spec, bill = priced("local")
    train = record(kind="train", job="finetune", job_id="11")
    assert figures(unit_costs(spec, bill, [record(), train])) == {
        "hourly_usd": "10.044400",
        "hourly_high_usd": "10.466119",
        "monthly_low_usd": "7332.41",
        "monthly_high_usd": "7640.27",
        "subtotal_low_usd": "7332.41",
        "subtotal_high_usd": "7640.25",
        "is_lower_bound": False,
        "unpriced": [],
        "per_run_usd": "0.279011",
        "per_1m_tokens_usd": "227.764172",
        "per_chat_usd": "0.455528",
        "serving_node_per_chat_usd": "0.207202",
        "basis": "transformers, batch 1: 12.3 tokens/s, measured on 2026-11-21: "
        "job 12 of stack local on cpu",
        "reasons": {},
        "price_book": "nebius-2026-09",
        "price_date": "2026-09-15",
        "heading": "What this shape would cost on Nebius; this machine bills nothing.",
    }


def test_the_stack_output_gives_a_reason_for_what_is_not_known(priced: Callable[[str], Priced]):
    spec, bill = priced("h100-prod")
    found = figures(unit_costs(spec, bill, []))
    assert (found["per_chat_usd"], found["per_1m_tokens_usd"], found["per_run_usd"]) == (
        None,
        None,
        None,
    )
    assert found["basis"] == "NOT KNOWN"
    reasons = found["reasons"]
    assert isinstance(reasons, dict)
    assert set(reasons) == {"per_chat_usd", "per_1m_tokens_usd", "per_run_usd"}


def test_a_job_that_is_not_declared_is_not_told_to_be_submitted(priced: Callable[[str], Priced]):
    spec, bill = priced("local")
    bare = replace(spec, jobs=(), chat=replace(spec.chat, speeds=()))
    units = unit_costs(bare, bill, [])
    for found, module in ((units.chats, "workloads.evaluate"), (units.run, "workloads.train")):
        assert isinstance(found, NotKnown)
        assert found.command == (
            f"soperator submit JOB --stack local, once jobs declares a JOB of {module}"
        )
