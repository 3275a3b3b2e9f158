"""A load test's curve says at which load a chat is priced, and that none is where none is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from cost.bill.bill import Bill, bill, render, render_chats
from cost.bill.explain import explain
from cost.chat.speeds import Basis, speeds
from cost.chat.unit_costs import NotKnown, chat_notes
from cost.diff.diff import diff, take, unit_amounts
from cost.prices.book import layered
from cost.report.layout import Format
from cost.run_record import RunRecord, RunRecordError, load_run_records, parse_load_curve
from stacks.load import load_stack
from tests.unit.cost.conftest import Priced, record
from tests.unit.cost.loads import SLO, curve, load_json, load_record, write_load

POINT = (
    "Operating point of transformers, batch 8: 8 streams, 41 tokens/s, 0.0205 requests/s "
    "(goodput 0.0205), TTFT p99 4,200 ms, TPOT p99 195 ms; keeps TTFT 5,000 ms, TPOT 500 ms for "
    "99 % of requests."
)
HOPELESS = ((1, 12.0, 6.1, False), (4, 30.0, 9.0, False))


@pytest.fixture
def local(public_key_file: Path) -> Callable[..., Bill]:
    """`local(record, ...)`: the bill of the stack with these records."""

    def make(*records: RunRecord) -> Bill:
        spec = load_stack("local")
        return bill(spec, layered(spec), records)

    return make


def notes(found: Bill) -> str:
    return "\n".join(chat_notes(found))


def test_the_highest_load_under_the_slo_is_the_operating_point():
    """16 streams write more, and break the promise."""
    best = curve().operating_point
    assert best is not None
    assert (best.concurrency, best.output_tokens_per_s) == (8, Decimal("41.0"))
    assert curve(((1, 12.0, 6.1, False),)).operating_point is None


def test_without_an_slo_a_load_that_answered_everything_is_feasible():
    points = [(1, 12.0, 0.4, None), (4, 30.0, 0.9, None)]
    content = load_json(points, dict.fromkeys(SLO) | {"share": 0.99})
    content["curve"][1]["num_ok"] = 15
    found = parse_load_curve(json.dumps(content), "load.json")
    assert found.operating_point is not None
    assert found.operating_point.concurrency == 1
    assert str(found.slo) == "no SLO"


def test_the_operating_point_is_the_first_row_and_the_cost_of_a_chat(local: Callable[..., Bill]):
    evaluated = record(finished_at="2026-11-21T07:00:00Z")
    found = local(load_record(), evaluated)
    rows = found.chats
    assert not isinstance(rows, NotKnown)
    assert [row.speed.batch_size for row in rows] == [8, 1]
    assert rows[0].speed.basis is Basis.MEASURED
    amounts = {each.name: each for each in unit_amounts(found)}
    assert amounts["per_chat_usd"].usd == rows[0].cluster_low_usd
    assert "transformers, batch 8: job 14" in amounts["per_chat_usd"].basis


def test_every_output_states_the_operating_point(local: Callable[..., Bill]):
    found = local(load_record())
    assert POINT in notes(found)
    assert "Operating point of transformers, batch 8: 8 streams" in render(found, Format.TABLE)
    assert POINT in explain(found, "chat").notes
    (plain,) = json.loads(render_chats(found, Format.JSON))["operating_points"]
    assert plain["concurrency"] == 8
    assert plain["p99_ttft_ms"] == "4200"
    assert plain["goodput_requests_per_s"] == "0.0205"
    assert plain["slo"] == "TTFT 5,000 ms, TPOT 500 ms for 99 % of requests"


def test_a_declared_row_that_the_load_test_replaced_keeps_its_name_and_comes_first(
    priced: Callable[[str], Priced],
):
    spec, _ = priced("l40s-dev")
    measured = load_record(
        model="Qwen3-14B",
        sweep=((1, 12.0, 0.4, True), (16, 90.0, 3.0, True)),
        metrics={"batch_size": 16, "batch_output_tokens_per_s": 95.0},
    )
    found = speeds(spec, [measured])
    assert [each.scenario for each in found] == [
        "Batch Size 16 Finetuned",
        "Single Batch Finetuned",
        "Optimized Target",
    ]


def test_a_load_test_that_keeps_its_slo_nowhere_prices_nothing(local: Callable[..., Bill]):
    """Its speed of one stream would be a price at which the promise is broken."""
    found = local(load_record(HOPELESS))
    chats = found.chats
    assert isinstance(chats, NotKnown)
    assert chats.reason == (
        "the load test of job 14 found no load (1, 4 streams) that keeps TTFT 5,000 ms, TPOT 500 "
        "ms for 99 % of requests; 1 had TTFT p99 6,100 ms, TPOT p99 83 ms"
    )
    assert chats.command == (
        "soperator cost advise --model SmolLM2-135M-Instruct --stack local "
        "--slo ttft_p99_s=5,tpot_p99_ms=500 --chats-per-day 1000"
    )


def test_rows_of_another_job_stay_and_the_broken_promise_is_said(local: Callable[..., Bill]):
    found = local(record(), load_record(HOPELESS))
    rows = found.chats
    assert not isinstance(rows, NotKnown)
    assert [row.speed.source for row in rows] == ["job 12 of stack local on cpu"]
    assert "NO OPERATING POINT: the load test of job 14 found no load (1, 4 streams)" in notes(
        found
    )
    assert json.loads(render_chats(found, Format.JSON))["no_operating_points"]


def test_the_newest_load_test_outlives_an_earlier_curve_as_a_whole(local: Callable[..., Bill]):
    later = load_record(HOPELESS, job_id="15", finished_at="2026-11-21T08:00:00Z")
    assert isinstance(local(load_record(), later).chats, NotKnown)
    again = load_record(job_id="16", finished_at="2026-11-21T09:00:00Z")
    assert "NO OPERATING POINT" not in notes(local(later, again))


def test_an_evaluation_is_there_again_once_the_load_test_that_hid_it_is_outlived(
    local: Callable[..., Bill],
):
    """Both measured one stream; the next load test took the row of either with it."""
    later = load_record(HOPELESS, job_id="15", finished_at="2026-11-21T08:00:00Z")
    rows = local(record(), load_record(), later).known_chats
    assert [row.speed.source for row in rows] == ["job 12 of stack local on cpu"]


def test_one_stream_that_breaks_the_slo_is_no_row_beside_a_batch_that_keeps_it(
    local: Callable[..., Bill],
):
    found = local(load_record(((1, 12.0, 6.0, False), (8, 41.0, 4.0, True))))
    rows = found.chats
    assert not isinstance(rows, NotKnown)
    assert [row.speed.batch_size for row in rows] == [8]


def test_a_preview_names_the_measurement_that_moved_the_cost_of_a_chat(local: Callable[..., Bill]):
    change = diff(take(local(record())), take(local(record(), load_record())))
    chat = next(each for each in change.amounts if each.label == "$/chat")
    (cause,) = chat.causes
    assert cause == (
        "$/chat: now measured: transformers, batch 8: job 14 of stack local on cpu; was measured: "
        "transformers, batch 1: job 12 of stack local on cpu"
    )


def test_a_record_without_its_curve_states_what_its_metrics_say(local: Callable[..., Bill]):
    found = local(replace(load_record(), curve=None))
    assert "8 streams, 41 tokens/s" in notes(found)
    assert "its SLO is in the load test's own result" in notes(found)


def test_the_curve_is_read_beside_the_record(tmp_path: Path):
    write_load(tmp_path / "14")
    (found,), problems = load_run_records(tmp_path)
    assert problems == ()
    assert found.curve == curve()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"schema_version": 1', "not valid JSON"),
        ({"schema_version": 2}, "schema_version: got 2, expected 1"),
        ({"schema_version": 1, "slo": None}, "slo: missing; give a mapping of ttft_ms"),
        (
            {"schema_version": 1, "slo": SLO, "curve": [{"concurrency": 0}]},
            "curve[0].concurrency: expected a whole number of 1 or more, got 0",
        ),
        ({"schema_version": 1, "slo": SLO, "curve": {}}, "curve: expected a list, got a mapping"),
    ],
)
def test_a_damaged_curve_is_named_with_its_path(tmp_path: Path, content: object, words: str):
    """A record whose curve cannot be read might price a load that breaks the promise."""
    text = content if isinstance(content, str) else json.dumps(content)
    with pytest.raises(RunRecordError, match=r"load\.json"):
        parse_load_curve(text, "load.json")
    write_load(tmp_path / "14", content)
    records, (problem,) = load_run_records(tmp_path)
    assert records == ()
    assert words in problem
