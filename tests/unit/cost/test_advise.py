"""The preset advisor ranks by dollars a chat, keeps promises, and says why each other one loses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.chat.speeds import Basis
from cost.choose.advise import (
    Advice,
    Verdict,
    advise,
    explain_candidate,
    plain_advice,
    render_advice,
)
from cost.choose.servers import (
    PEAKS,
    Ask,
    Load,
    Server,
    best_load,
    estimate,
    missing_bytes,
    prompts_waited,
)
from cost.report.layout import WIDTH, Format
from cost.size.choice import gpu_presets
from cost.size.memory import usable_bytes
from cost.size.shape import load_shape
from stacks.errors import UserError
from tests.nightly import law
from tests.unit.cost.advices import BOOK, NODE, advice, ask, candidate, curves, promise
from tests.unit.cost.test_explain import evaluated

SETTINGS = law(10)
CHATS = st.integers(1, 5_000_000)
TTFTS = st.decimals("0.05", "30", places=2)
TPOTS = st.decimals("2", "200", places=1)


def server(platform: str = "gpu-h100-sxm", memory_gb: int = 80, ways: int = 1) -> Server:
    return Server(peaks=PEAKS[platform], ways=ways, usable_bytes=usable_bytes(memory_gb))


def small(**changes: Any) -> Ask:
    """Chats of 512 + 128 tokens with Llama-3.1-8B."""
    values: dict[str, Any] = {"shape": load_shape("Llama-3.1-8B"), "promise": promise()}
    return ask(**{**values, "input_tokens": 512, "output_tokens": 128, **changes})


def usd(found: Advice) -> Decimal:
    """The best's dollars a chat; without a best, more than anything."""
    best = found.winner
    if best is None or best.usd_per_chat is None:
        return Decimal("Infinity")
    return best.usd_per_chat


def test_chats_of_more_than_a_million_tokens_are_advised_on():
    """The bill of such a stack has them: each answer fits the model's context."""
    found = advice(output_tokens=2_000_000, turns=1_000, chats_per_day=100)
    assert found.winner is not None


def test_nodes_that_cost_nothing_win_by_no_percentage():
    """A book of the own hardware: dividing by its price ended in a traceback."""
    free = replace(
        BOOK.readings["gpu-h100-sxm/gpu"][-1], usd=Decimal(0), date=datetime.now(UTC).date()
    )
    found = advise(ask(), BOOK.with_prices([free]), ())
    assert found.winner is not None
    assert found.winner.usd_per_chat == 0
    assert "the cheapest that keeps the SLO" in found.winner.reason
    assert not any("cost +" in each.reason for each in found.candidates)


def test_every_platform_with_gpus_has_its_peaks():
    assert {platform for platform, _, _ in gpu_presets()} == set(PEAKS)


def test_peaks_are_those_that_the_trainer_measures_against():
    """workloads/ and cost/ hold the table each for itself."""
    from workloads.common.hardware import PEAK_BF16_FLOPS

    ours = {"H200": "gpu-h200-sxm", "H100 80GB HBM3": "gpu-h100-sxm", "L40S": "gpu-l40s-d"}
    for device, flops in PEAK_BF16_FLOPS:
        assert float(PEAKS[ours[device]].bf16_flops) == flops


@pytest.mark.parametrize(
    ("platform", "gb", "streams", "published"),
    [
        ("gpu-h100-sxm", 80, 1, 93),
        ("gpu-h100-sxm", 80, 8, 688),
        ("gpu-h100-sxm", 80, 32, 2462),
        ("gpu-l40s-d", 48, 1, 44),
        ("gpu-l40s-d", 48, 8, 325),
        ("gpu-l40s-d", 48, 32, 1124),
    ],
)
def test_estimates_are_within_half_of_what_was_published(
    platform: str, gb: int, streams: int, published: int
):
    """Llama-3.1-8B with vLLM: Koyeb through aihardwareindex, read 2026-11."""
    found = estimate(server(platform, gb), small(input_tokens=128), streams).load
    assert 1 / 1.5 < float(found.output_tokens_per_s) / published < 1.5


def test_the_table_of_the_documentation_is_what_the_estimate_says():
    gpus = {"H100": ("gpu-h100-sxm", 80), "L40S": ("gpu-l40s-d", 48)}
    text = (Path(__file__).parents[3] / "docs" / "advise.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (H100|L40S) \| (\d+) \| ([\d,]+) \| ([\d,]+) \|$", text, re.MULTILINE)
    assert len(rows) == 6
    for gpu, streams, _, printed in rows:
        asked = small(input_tokens=128)
        found = estimate(server(*gpus[gpu]), asked, int(streams)).load
        assert f"{round(found.output_tokens_per_s):,}" == printed


def test_one_stream_decodes_at_the_roofline():
    """L40S, 13,990,394,880 weights of 2 bytes and 9,000 tokens of 163,840 at 0.6 x 864 GB/s."""
    found = estimate(server("gpu-l40s-d", 48), ask(), 1)
    expected = (13_990_394_880 * 2 + 9000 * 163_840) / (0.6 * 864e9)
    assert float(found.step_s) == pytest.approx(expected, rel=1e-12)
    assert float(found.read_s) == pytest.approx(2 * 13_990_394_880 * 8000 / (0.4 * 362.05e12))
    assert found.load.ttft_p99_s is not None


@SETTINGS
@given(streams=st.integers(1, 256), tokens=st.integers(1, 4000))
def test_more_streams_answer_more_and_each_of_them_later(streams: int, tokens: int):
    """What the search for the greatest number of streams rests on."""
    found = [
        estimate(server(), small(output_tokens=tokens), count) for count in (streams, streams + 1)
    ]
    less, more = (each.load for each in found)
    assert less.ttft_p99_s is not None
    assert more.ttft_p99_s is not None
    assert less.tpot_p99_ms is not None
    assert more.tpot_p99_ms is not None
    assert more.answers_per_s >= less.answers_per_s
    assert more.ttft_p99_s >= less.ttft_p99_s
    assert more.tpot_p99_ms >= less.tpot_p99_ms


@pytest.mark.parametrize(
    ("share", "waited"), [("0", "0"), ("0.01", "0"), ("0.5", "3.67"), ("0.9", "22.24")]
)
def test_the_queue_of_prompts_is_lundbergs_bound(share: str, waited: str):
    """At 0.5 the root of 0.5 (exp(x) - 1) = x is 1.2564, ln(100) / 1.2564 = 3.665."""
    assert prompts_waited(Decimal(share)) == Decimal(waited)


@SETTINGS
@given(chats=CHATS, more=CHATS, ttft=TTFTS, tpot=TPOTS)
def test_more_chats_never_need_fewer_nodes_or_dollars_a_day(
    chats: int, more: int, ttft: Decimal, tpot: Decimal
):
    bounds = replace(promise(), ttft_p99_s=ttft, tpot_p99_ms=tpot)
    few = advice(chats_per_day=chats, promise=bounds)
    many = advice(chats_per_day=chats + more, promise=bounds)
    for each in few.candidates:
        if each.nodes is None or each.verdict is not Verdict.RANKED:
            continue
        other = candidate(many, each.name)
        assert other.nodes is not None
        assert other.nodes >= each.nodes
    if few.winner is not None:
        # A day's dollars from those of a chat, which are rounded at their 28th digit.
        assert usd(many) * (chats + more) >= usd(few) * chats - Decimal("1e-20")


@SETTINGS
@given(chats=CHATS, ttft=TTFTS, tpot=TPOTS, ease=st.decimals("1", "5", places=1))
def test_a_tighter_slo_is_never_cheaper(chats: int, ttft: Decimal, tpot: Decimal, ease: Decimal):
    tight = replace(promise(), ttft_p99_s=ttft, tpot_p99_ms=tpot)
    narrow = usd(advice(curves(), chats_per_day=chats, promise=tight))
    for loose in (
        replace(tight, ttft_p99_s=ttft * ease),
        replace(tight, tpot_p99_ms=tpot * ease),
    ):
        assert narrow >= usd(advice(curves(), chats_per_day=chats, promise=loose))


@SETTINGS
@given(chats=CHATS, ttft=TTFTS, tpot=TPOTS)
def test_every_sized_candidate_keeps_the_slo_fits_and_carries_the_peak(
    chats: int, ttft: Decimal, tpot: Decimal
):
    bounds = replace(promise(), ttft_p99_s=ttft, tpot_p99_ms=tpot)
    found = advice(chats_per_day=chats, promise=bounds)
    for each in found.candidates:
        if each.load is None:
            continue
        assert bounds.broken(each.load.ttft_p99_s, each.load.tpot_p99_ms) == ()
        use = each.peak_use(found.ask)
        assert use is not None
        assert use <= 1
        assert each.nodes is not None
        assert each.servers is not None
        assert each.servers <= each.nodes * each.servers_per_node
        gb = next(gb for platform, _, gb in gpu_presets() if platform == each.platform)
        server_of = server(each.platform, gb, each.ways)
        assert missing_bytes(server_of, found.ask, each.load.streams) <= 0
    ranked = [each.usd_per_chat for each in found.candidates if each.verdict is Verdict.RANKED]
    assert all(a is not None and b is not None and a <= b for a, b in pairwise(ranked))


def test_a_model_that_no_gpu_holds_is_ranked_over_several():
    """vLLM divides it: serve.gpus; 70 billion weights are 141 GB."""
    found = advice(shape=load_shape("Llama-3.1-70B"), region="eu-north1", promise=promise())
    best = found.winner
    assert best is not None
    assert best.ways > 1
    assert best.reason == f"the cheapest that keeps the SLO; needs vLLM, serve.gpus={best.ways}"
    assert f"servers of {best.ways} GPUs" in render_advice(found)


def test_gpus_that_share_a_model_pass_its_sums_between_them():
    """Qwen3-14B on 4 L40S: 40 layers of 2 sums of 5,120 x 2 bytes, 3/4 of it twice a GPU."""
    alone, shared = (estimate(server("gpu-l40s-d", 48, ways), ask(), 4) for ways in (1, 4))
    passing_s = 2 * 40 * 5120 * 2 * 2 * 3 / 4 / (0.6 * 32e9)
    assert alone.passing_s == 0
    assert float(shared.passing_s) == pytest.approx(passing_s, rel=1e-12)
    assert float(shared.read_s) == pytest.approx(float(alone.read_s) / 4 + 8000 * passing_s)
    assert float(shared.step_s) == pytest.approx(float(alone.step_s) / 4 + 4 * passing_s)


def test_a_higher_peak_or_longer_answers_never_need_fewer_servers():
    base = candidate(advice(), "gpu-h100-sxm/1gpu-16vcpu-200gb")
    for changed in (advice(peak_factor=Decimal(5)), advice(output_tokens=4000)):
        found = candidate(changed, base.name)
        assert found.servers is not None
        assert base.servers is not None
        assert found.servers > base.servers


def test_a_measured_curve_takes_the_place_of_the_estimate():
    """41 tokens/s keep the promise at 8 streams: 41 / 2,000 answers a second of the whole node."""
    loose = promise("5", "500")
    found = candidate(advice(curves(), promise=loose))
    assert (found.basis, found.ways, found.servers_per_node) == (Basis.MEASURED, 2, 1)
    assert found.load is not None
    assert (found.load.streams, found.load.answers_per_s) == (8, Decimal("0.0205"))
    # 50,000 x 2 / 86,400 / 0.0205 = 56.5
    assert (found.servers, found.nodes) == (57, 57)
    assert found.source == "job 14 of stack local, transformers, 2026-11-21"
    other = candidate(advice(curves(), promise=loose), "gpu-l40s-d/2gpu-96vcpu-576gb")
    assert other.basis is Basis.ESTIMATE


def test_the_question_s_slo_counts_not_that_of_the_test():
    """At 16 streams the test's own promise broke; this question makes none."""
    found = candidate(advice(curves(), promise=promise()))
    assert found.load is not None
    assert found.load.streams == 16


def test_of_several_engines_the_cheapest_counts_and_of_two_tests_the_newer():
    fast = curves(((1, 60.0, 0.2, True),), engine="vllm", job_id="15")
    found = candidate(advice((*curves(), *fast), promise=promise("5", "500")))
    assert "vllm" in found.source
    newer = curves(finished_at="2026-11-22T06:00:00Z", job_id="20")
    assert [each.record.job_id for each in newer] == ["20"]


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": "FAIL"},
        {"kind": "evaluate"},
        {"model": "SmolLM2-135M"},
        {"engine": None},
        {"hardware": None},
    ],
)
def test_other_records_are_no_curves(changes: dict[str, Any]):
    from cost.choose.servers import measured_curves
    from tests.unit.cost.loads import load_record

    values: dict[str, Any] = {"model": "Qwen3-14B", **changes}
    assert measured_curves("Qwen3-14B", [load_record(**values)]) == ()


def test_a_curve_of_other_requests_is_left_aside_and_named():
    """Latencies of short prompts say nothing about long ones."""
    found = advice(curves(), input_tokens=500)
    assert candidate(found).basis is Basis.ESTIMATE
    (why,) = found.left_aside
    assert why == (
        f"{NODE}: the curve of job 14 of stack local, transformers, 2026-11-21 is of 8,000 + "
        "2,000 tokens a request, asked are 500 + 2,000"
    )
    assert advice(curves(), input_tokens=8800).left_aside == ()


def test_a_load_that_lost_answers_is_no_operating_point():
    (curve,) = curves()
    lossy = replace(curve, points=tuple(replace(each, num_ok=15) for each in curve.points))
    assert lossy.loads == ()
    found = candidate(advice((lossy,)))
    assert (found.verdict, found.reason) == (Verdict.MISSES_SLO, "no load was answered")


def test_the_best_load_is_the_one_with_the_most_answers_under_the_promise():
    (curve,) = curves()
    best = best_load(ask(promise=promise("2", None)), curve.loads)
    assert best is not None
    assert best.streams == 4
    assert best_load(ask(promise=promise("0.1", None)), curve.loads) is None
    unknown = Load(
        streams=1,
        answers_per_s=Decimal(1),
        output_tokens_per_s=Decimal(1),
        ttft_p99_s=None,
        tpot_p99_ms=None,
    )
    assert best_load(ask(promise=promise("9", None)), [unknown]) is None


@pytest.mark.parametrize(
    ("name", "changes", "verdict", "reason"),
    [
        (
            "gpu-l40s-a/1gpu-8vcpu-32gb",
            {"shape": load_shape("Qwen3-32B")},
            "does-not-fit",
            "does not fit by 22.9 GiB of a GPU with one chat",
        ),
        (
            "gpu-l40s-a/1gpu-8vcpu-32gb",
            {"promise": promise(None, "50")},
            "misses-slo",
            "TPOT p99 56.8 ms > 50 at 1 stream",
        ),
        (
            NODE,
            {"promise": promise("2", "20")},
            "misses-slo",
            "TTFT p99 2.05 s > 2, TPOT p99 28.5 ms > 20 at 1 stream",
        ),
        ("gpu-h100-sxm/1gpu-16vcpu-200gb", {}, "ranked", "cost +26 %"),
        (
            "gpu-h100-sxm/1gpu-16vcpu-200gb",
            {"region": "us-central1"},
            "elsewhere",
            "not in us-central1 (is in eu-north1)",
        ),
        (
            "gpu-l40s-d/4gpu-128vcpu-768gb",
            {},
            "ranked",
            "cost +795 %; needs vLLM, serve.gpus=4",
        ),
    ],
)
def test_each_loser_is_explained_in_one_line(
    name: str, changes: dict[str, Any], verdict: str, reason: str
):
    found = candidate(advice(**changes), name)
    assert found.verdict.label == verdict
    assert found.reason == reason


def test_a_preset_without_a_price_is_never_the_best():
    from cost.choose.advise import advise
    from cost.prices.book import PriceBook

    found = advise(ask(), PriceBook(name="empty", caveat="", readings={}))
    assert found.winner is None
    assert {each.verdict for each in found.candidates} <= {
        Verdict.UNPRICED,
        Verdict.MISSES_SLO,
        Verdict.DOES_NOT_FIT,
    }
    priced = candidate(found, "gpu-h100-sxm/1gpu-16vcpu-200gb")
    assert priced.reason == "no price: price book 'empty' has no 'gpu-h100-sxm/gpu'"
    assert priced.usd_per_chat is None
    assert "NO PRESET keeps this" in render_advice(found)


def test_every_expression_gives_its_figure():
    for found in (
        advice(),
        advice(curves(), promise=promise("5", "500"), turns=3, peak_factor=Decimal("1.7")),
        advice(
            shape=load_shape("SmolLM2-135M"),
            input_tokens=6000,
            cached_share=Decimal("0.9"),
            promise=promise(),
        ),
        advice(shape=load_shape("Qwen3-0.6B"), input_tokens=16, output_tokens=8),
        advice(shape=load_shape("Llama-3.1-70B"), promise=promise()),
    ):
        for each in found.candidates:
            explanation = explain_candidate(found, each.name)
            for figure in explanation.figures:
                assert evaluated(figure.expression) == figure.value, (each.name, figure)
            sized = {"USD a chat", "servers"} <= {figure.unit for figure in explanation.figures}
            assert sized is (each.usd_per_chat is not None)


def test_an_unknown_preset_is_answered_with_those_that_are():
    with pytest.raises(UserError, match="known: gpu-b200-sxm-a/1gpu"):
        explain_candidate(advice(), "gpu-x")


def test_every_problem_of_a_question_is_told_at_once():
    with pytest.raises(UserError) as told:
        ask(
            chats_per_day=0,
            input_tokens=0,
            peak_factor=Decimal("0.5"),
            promise=promise("0"),
            region="moon",
        )
    assert [line.partition(":")[0] for line in str(told.value).splitlines()] == [
        "input_tokens",
        "chats_per_day",
        "peak_factor",
        "slo.ttft_p99_s",
        "region",
    ]


def test_the_advice_is_printed_as_its_golden_file(golden: Callable[[str, str], None]):
    found = advice(curves(), promise=promise("5", "60"))
    text = render_advice(found, Format.TABLE, ["Chats are as given."])
    assert max(map(len, text.splitlines())) <= WIDTH
    golden("cost/advise.txt", text)
    golden("cost/advise.json", render_advice(found, Format.JSON, ["Chats are as given."]))


@pytest.mark.parametrize("format", [Format.MARKDOWN, Format.CSV, Format.HTML])
def test_every_format_names_every_preset(format: Format):
    text = render_advice(advice(), format)
    assert all(preset.name in text for _, preset, _ in gpu_presets())


def test_json_holds_what_the_table_says():
    found = advice(curves(), promise=promise("5", "500"))
    plain = json.loads(json.dumps(plain_advice(found)))
    assert (
        plain["best"]
        == plain["candidates"][0]["platform"] + "/" + (plain["candidates"][0]["preset"])
    )
    measured = next(each for each in plain["candidates"] if each["basis"] == "measured")
    # 1.157407 answers a second, each 8 / 0.0205 s under way.
    assert Decimal(measured["chats_in_flight"]) == Decimal("451.671183")
