"""What a load test writes is what cost/ reads: the row becomes measured, at the same throughput."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from cost.chat.speeds import Basis, ChatCost, HourlyCost, Speed, speeds
from cost.run_record import RunRecord as CostRecord
from cost.run_record import parse_load_curve, parse_run_record
from stacks.load import load_stack
from tests.workloads.test_load_measure import at
from workloads.common.hardware import Hardware
from workloads.common.record import RunRecord
from workloads.load.run import Found, Point, operating_point, record_metrics, to_json
from workloads.recipes.load import LoadConfig

CONTEXT, OUTPUT = 8000.0, 2000.0
WHERE = {"platform": "gpu-l40s-d", "preset": "2gpu-64vcpu-384gb"}


def chat_point(streams: int, tokens_per_s: float, ttft_ms: float, tpot_ms: float) -> Point:
    """A point whose requests have the lengths of the stack's chat."""
    return replace(
        at(streams, tokens_per_s, ttft_ms, tpot_ms),
        mean_prompt_tokens=CONTEXT,
        mean_uncached_tokens=CONTEXT,
        mean_output_tokens=OUTPUT,
    )


POINTS = [chat_point(1, 2000 / 102, 2050, 50), chat_point(16, 160, 0, 0)]


def record(points: list[Point], **hardware: str | None) -> CostRecord:
    """The record that the job writes, as cost/ reads it."""
    written = RunRecord(kind="load", recipe="r", model="Qwen3-14B", engine="transformers")
    written.outcome = "PASS"
    written.hardware = Hardware(
        platform=hardware.get("platform", WHERE["platform"]),
        preset=hardware.get("preset", WHERE["preset"]),
        device="L40S",
        num_nodes=1,
        num_gpus_declared=0,
    )
    written.metrics |= record_metrics(points)
    return parse_run_record(json.dumps(written.to_json()), "run_record.json")


def of_stack(*records: CostRecord) -> dict[int, Speed]:
    """The rows of transformers by batch size."""
    found = speeds(load_stack("l40s-dev"), records)
    return {each.batch_size: each for each in found if each.scenario != "Optimized Target"}


@pytest.mark.usefixtures("public_key_file")
def test_a_load_test_replaces_assumed_throughput_and_cost_keeps_what_it_measured():
    """Of 2,000 tokens in 102 s: 100 s written and 2 s read; at 16 streams 160 tokens/s in all."""
    assert {each.basis for each in of_stack().values()} == {Basis.ASSUMED}
    rows = of_stack(record(POINTS))
    assert {size: row.basis for size, row in rows.items()} == {
        1: Basis.MEASURED,
        16: Basis.MEASURED,
    }
    assert float(rows[1].output_tokens_per_s) == pytest.approx(20)
    assert rows[1].prefill_tokens_per_s is not None
    assert float(rows[1].prefill_tokens_per_s) == pytest.approx(4000)
    chat = load_stack("l40s-dev").chat
    assert (chat.context_tokens, chat.output_tokens, chat.turns) == (CONTEXT, OUTPUT, 1)
    hourly = HourlyCost(cluster_low_usd=Decimal(1), cluster_high_usd=Decimal(1), serving_usd=None)
    row = ChatCost(chat, rows[16], hourly)
    assert float(row.tokens_per_s) == pytest.approx(160)
    assert float(row.answer_s) == pytest.approx(16 * 2000 / 160)


@pytest.mark.usefixtures("public_key_file")
@pytest.mark.parametrize(
    "other", [{"preset": "1gpu-8vcpu-32gb"}, {"platform": None, "preset": None}]
)
def test_a_server_on_another_preset_or_on_an_unknown_one_changes_nothing(
    other: dict[str, str | None],
):
    assert of_stack(record(POINTS, **other)) == of_stack()


@pytest.mark.usefixtures("public_key_file")
def test_a_batch_that_breaks_the_promise_is_not_priced():
    points = [POINTS[0], replace(POINTS[1], keeps_slo=False)]
    rows = of_stack(record(points))
    assert rows[1].basis is Basis.MEASURED
    assert rows[16].basis is Basis.ASSUMED
    assert rows[16].output_tokens_per_s == Decimal(60)


@pytest.mark.feature("S000-115")
@pytest.mark.usefixtures("public_key_file")
def test_the_profile_in_a_rendered_job_is_the_one_that_a_load_test_reads(tmp_path: Path):
    from infra.render.sbatch import chat_profile
    from workloads.load.prompts import read_profile, with_profile
    from workloads.recipes import load_recipe

    spec = load_stack("l40s-dev")
    text = json.dumps(chat_profile(spec))
    profile = read_profile({"SOPERATOR_CHAT_PROFILE": text})
    assert profile is not None
    assert (profile.context_tokens, profile.output_tokens, profile.turns) == (8000, 2000, 1)
    (job,) = [each for each in spec.jobs if each.is_load_test]
    own = load_recipe(job.recipe).load
    assert own is not None
    asked = with_profile(own, profile)
    assert (asked.prompt_tokens.mean, asked.output_tokens.mean) == (8000, 2000)


def test_the_curve_that_a_load_test_writes_is_the_one_that_cost_reads():
    """Both sides choose the same operating point by their own code."""
    points = [*POINTS, replace(chat_point(32, 200, 9000, 400), keeps_slo=False)]
    content = to_json(Found(points=points), LoadConfig(), "http://127.0.0.1:1/v1")
    read = parse_load_curve(json.dumps(content), "load.json")
    assert [each.concurrency for each in read.sweep] == [1, 16, 32]
    ours, theirs = read.operating_point, operating_point(points)
    assert ours is not None
    assert theirs is not None
    assert (ours.concurrency, float(ours.output_tokens_per_s)) == (
        theirs.concurrency,
        theirs.output_tokens_per_s,
    )
    assert ours.ttft.p99_ms is not None
    assert theirs.ttft is not None
    assert float(ours.ttft.p99_ms) == theirs.ttft.p99_ms


@pytest.mark.parametrize(("asked", "expected"), [("m-tuned", "m-tuned"), ("", None)])
def test_the_model_that_a_load_test_asked_is_read_also_where_it_asked_none(
    asked: str, expected: str | None
):
    content = to_json(Found(model=asked, points=POINTS), LoadConfig(), "http://127.0.0.1:1/v1")
    assert parse_load_curve(json.dumps(content), "load.json").model == expected
