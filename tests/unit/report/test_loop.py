"""The loop closes from run records alone, and what did not run is said and not guessed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from cost.report.layout import WIDTH, Format
from infra.reports.page import page
from infra.reports.page.loop import Loop, close_loop, loop_charts, loop_text, plain_loop, states
from infra.reports.page.quality import evaluation_rows, verdict
from infra.reports.page.training import collect
from stacks.load import load_stack
from tests.unit.cost.loads import SLO, load_json
from tests.unit.report.loops import TESTED, write_loop
from tests.unit.report.reports import evaluation, write_record

HOPELESS = load_json(((1, 12.0, 6.1, False), (4, 30.0, 9.0, False)))


@pytest.fixture
def closed(tmp_path: Path, public_key_file: Path) -> Callable[..., Loop]:
    """`closed(load=False)`: the loop of `local` after those jobs."""

    def make(**jobs: object) -> Loop:
        write_loop(tmp_path, **jobs)
        return close_loop(collect(load_stack("local"), tmp_path))

    return make


@pytest.mark.feature("S000-121")
def test_quality_has_intervals_p_and_a_verdict(closed: Callable[..., Loop]):
    rows = {row["key"]: row for row in closed().quality}
    assert (rows["perplexity"]["low"], rows["perplexity"]["high"]) == (-2.9, -1.8)
    # Shares are shown in points: their bounds too.
    assert (rows["function_name_accuracy"]["low"], rows["function_name_accuracy"]["high"]) == (
        60,
        95,
    )
    assert [verdict(rows[key]) for key in TESTED] == ["better", "better", "not told apart"]


def test_a_metric_that_got_worse_for_sure_is_called_worse():
    found = {**evaluation(), "significance": {"perplexity": {**TESTED["perplexity"]}}}
    found["base_model"], found["finetuned_model"] = found["finetuned_model"], found["base_model"]
    (row,) = [row for row in evaluation_rows(found) if row["key"] == "perplexity"]
    assert verdict(row) == "worse"


def test_a_result_without_tests_has_no_verdict():
    assert {verdict(row) for row in evaluation_rows(evaluation())} == {"-"}


@pytest.mark.parametrize("test", [None, 3, {"low": "x", "high": 1, "p_value": 0.1}, {"low": 1}])
def test_a_damaged_test_is_no_test(test: object):
    found = {**evaluation(), "significance": {"perplexity": test}}
    assert {row["p_value"] for row in evaluation_rows(found)} == {None}


def test_states_go_from_the_base_model_to_the_served_one(closed: Callable[..., Loop]):
    found = dict(states(closed()))
    assert list(found) == [
        "before, base model",
        "after, its own length",
        "after, served under load",
    ]
    # 2,000 tokens, and 1,600 where answers have 100 of 125 characters, both at the base's 32 a
    # second: the tuned model's 40 are one measurement.
    base, tuned = found["before, base model"], found["after, its own length"]
    assert float(base.cluster_low_usd / tuned.cluster_low_usd) == pytest.approx(2000 / 1600)
    assert tuned.chats_per_day == Decimal(32) * 86400 / 1600
    assert found["after, served under load"].speed.operating is not None


@pytest.mark.parametrize("missing", ["base_batch_output_tokens_per_s", "batch_output_tokens_per_s"])
def test_base_and_tuned_model_are_priced_at_one_batch_size(
    tmp_path: Path, public_key_file: Path, missing: str
):
    """A batch of 8 against one stream would be the batch's gain, not the finetune's."""
    write_loop(tmp_path, load=False)
    path = tmp_path / "runs" / "local" / "3" / "run_record.json"
    values = json.loads(path.read_text())
    del values["metrics"][missing]
    path.write_text(json.dumps(values))
    found = close_loop(collect(load_stack("local"), tmp_path)).finetune
    assert found.base is not None
    assert found.tuned_own_length is not None
    speeds = [each.speed for each in (found.base, found.tuned_own_length)]
    assert [(each.batch_size, each.output_tokens_per_s) for each in speeds] == [(1, 10), (1, 10)]


def test_a_speed_that_was_measured_once_is_no_gain(closed: Callable[..., Loop]):
    loop = closed()
    text = " ".join(loop_text(loop, Format.TABLE).split())
    assert "+25.0 %" not in text, "40 tokens/s after 32"
    assert "their difference is not told apart from noise" in text
    rows = {row["key"]: row for row in evaluation_rows(loop.report.evaluation)}
    speed = rows["output_tokens_per_s"]
    assert (speed["better"], speed["change"]) == (None, "measured once")
    assert "base model, answers as long" not in text


def test_what_an_assumption_said_stands_before_what_was_measured(
    tmp_path: Path, public_key_file: Path
):
    loop = close_loop(collect(load_stack("l40s-dev"), tmp_path))
    assert [name for name, _ in states(loop)] == ["before, assumed"]


@pytest.mark.feature("S000-121")
def test_the_finetune_pays_back_against_the_base_model_and_not_against_a_cheaper_api(
    closed: Callable[..., Loop],
):
    """4.5688 USD an hour for 20 + 6 node minutes; 2,000 tokens and 1,600, both at 32 a second."""
    loop = closed()
    own_length, api = loop.finetune.paybacks
    usd = Decimal("4.5688") * (Decimal(20) + 6) / 60
    assert loop.finetune.investment_usd is not None
    assert loop.finetune.investment_usd.quantize(Decimal("1e-12")) == usd.quantize(Decimal("1e-12"))
    saving = Decimal("4.5688") / 3600 * (2000 - 1600) / 32
    assert own_length.chats is not None
    assert float(own_length.chats) == pytest.approx(float(usd / saving))
    # 32 / 1,600 x 86,400 chats a day.
    assert own_length.days is not None
    assert float(own_length.days) == pytest.approx(float(usd / saving) / 1728)
    assert (api.against, api.chats) == ("openai/gpt-4o-mini", None)
    assert api.saving_usd < 0


def test_the_text_holds_every_part_and_fits_its_width(closed: Callable[..., Loop]):
    text = loop_text(closed(), Format.TABLE)
    assert max(map(len, text.splitlines())) <= WIDTH
    for words in (
        "Function name accuracy",
        "+60 to +95",
        "Writes, batch",
        "after, served under load",
        "Break-even of the finetune of $1.98",
        "8 streams, operating point",
        "SLO: TTFT 5,000 ms, TPOT 500 ms for 99 % of requests",
    ):
        assert words in text
    assert "NOT RUN" not in text


def test_a_row_of_the_costs_says_how_fast_it_writes_and_reads(closed: Callable[..., Loop]):
    """Without what it reads, twice the tokens/s at twice the cost looked wrong."""
    lines = loop_text(closed(), Format.TABLE).splitlines()
    at = lines.index("Cost per chat before and after")
    _, heading, *rows = lines[at + 1 : at + 9]
    assert re.search(r"Writes/s +Reads/s", heading), heading
    (served,) = [row for row in rows if row.startswith("after, served under load")]
    assert re.search(r" 52 +900 ", served), served


def test_the_page_draws_the_load_curve(closed: Callable[..., Loop]):
    throughput, latencies = loop_charts(closed())
    html = throughput + latencies
    assert ">operating point</text>" in html
    # The streams that were measured, not round numbers.
    ticks = re.findall(r'text-anchor="middle"[^>]*>([0-9,]+)</text>', throughput)
    assert ticks == ["1", "4", "8", "16"]
    assert ">TTFT p99 allowed: 5,000 ms</text>" in html


def test_the_page_holds_the_loop_and_the_tests_of_the_evaluation(
    tmp_path: Path, public_key_file: Path
):
    write_loop(tmp_path)
    html = page.render(collect(load_stack("local"), tmp_path))
    assert "What the finetune brought" in html
    assert "+60 to +95" in html
    assert "not told apart" in html
    assert "0.0005" in html


@pytest.mark.parametrize(
    ("jobs", "missing"),
    [
        (
            {"train": False, "evaluate": False, "load": False},
            ["Training: NOT RUN", "Quality and speed: NOT RUN", "Load: NOT RUN", "Break-even"],
        ),
        ({"load": False}, ["Load: NOT RUN: no load test of this stack has passed"]),
        ({"evaluate": False}, ["Quality and speed: NOT RUN", "Break-even of the finetune: NOT"]),
        ({"train": False}, ["Training: NOT RUN", "Break-even of the finetune: NOT KNOWN"]),
        ({"load": HOPELESS}, ["NO OPERATING POINT: the load test of job 14 found no load"]),
    ],
)
def test_a_part_that_did_not_run_is_named_and_nothing_is_guessed(
    closed: Callable[..., Loop], jobs: dict[str, object], missing: list[str]
):
    loop = closed(**jobs)
    assert len(loop.missing) == len(missing)
    for line, words in zip(loop.missing, missing, strict=True):
        assert line.startswith(words)
    text = " ".join(loop_text(loop, Format.TABLE).split())
    assert all(" ".join(words.split()) in text for words in missing)
    plain = plain_loop(loop)
    assert plain["missing"] == list(loop.missing)
    if "train" in jobs:
        assert plain["training"] is None
        assert plain["investment_usd"] is None


def test_an_evaluation_of_another_model_prices_nothing(tmp_path: Path, public_key_file: Path):
    write_loop(tmp_path, load=False)
    path = tmp_path / "runs" / "local" / "3" / "run_record.json"
    path.write_text(path.read_text().replace("SmolLM2-135M-Instruct", "SmolLM2-360M"))
    loop = close_loop(collect(load_stack("local"), tmp_path))
    assert list(states(loop)) == []
    assert (
        "Cost before and after: NOT KNOWN: no evaluation of this stack's chat model"
        in (loop.missing[0])
    )


def test_a_load_test_without_its_curve_says_to_pull_it_again(tmp_path: Path, public_key_file: Path):
    write_loop(tmp_path)
    (tmp_path / "runs" / "local" / "14" / "load.json").unlink()
    loop = close_loop(collect(load_stack("local"), tmp_path))
    assert loop.missing == ("Load: job 14 left no load.json beside its record; pull it again",)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("engine", None, "its server named no engine: set load.target.engine"),
        ("model", "Qwen3-8B", "its model is Qwen3-8B, chat.model is SmolLM2-135M-Instruct"),
        ("hardware", None, "its server ran on an unknown preset, which serves no chats here"),
    ],
)
def test_a_load_test_that_prices_nothing_says_why(
    tmp_path: Path, public_key_file: Path, key: str, value: object, why: str
):
    write_loop(tmp_path)
    path = tmp_path / "runs" / "local" / "14" / "run_record.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    loop = close_loop(collect(load_stack("local"), tmp_path))
    assert loop.missing == (f"Load: job 14 prices no chat: {why}",)
    assert loop.finetune.served is None


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        (None, "a model that load.json does not name"),
    ],
)
def test_a_load_test_of_the_base_model_is_not_the_tuned_one_under_load(
    closed: Callable[..., Loop], model: str | None, asked: str
):
    loop = closed(load={**load_json(), "model": model})
    assert "after, served under load" not in dict(states(loop))
    (line,) = loop.missing
    assert line.startswith(f"Served: NOT RUN: job 14 asked {asked}, not the tuned model; run: ")


@pytest.mark.parametrize(
    "of_base",
    ["2026-11-21T07:00:00Z", "2026-11-21T04:59:59Z"],
    ids=["the base model later", "the base model earlier"],
)
def test_of_load_tests_the_newest_of_the_tuned_model_counts(
    tmp_path: Path, public_key_file: Path, of_base: str
):
    """Asked last, the base model outlives nothing that was measured of the tuned one."""
    write_loop(tmp_path)
    folder = tmp_path / "runs" / "local"
    values = json.loads((folder / "14" / "run_record.json").read_text())
    values |= {"job_id": "15", "started_at": "2026-11-21T04:00:00Z", "finished_at": of_base}
    other = write_record(tmp_path, values)
    faster = load_json(((8, 80.0, 0.2, True),), model="SmolLM2-135M-Instruct")
    (other / "load.json").write_text(json.dumps(faster))
    loop = close_loop(collect(load_stack("local"), tmp_path))
    served = loop.finetune.served
    assert served is not None
    assert served.speed.source.startswith("job 14 of ")
    assert loop.load is not None
    assert loop.load.job_id == "14"
    assert loop.missing == ()


def test_json_is_plain_and_holds_the_same(closed: Callable[..., Loop]):
    plain = json.loads(json.dumps(plain_loop(closed())))
    assert plain["operating_point"]["concurrency"] == 8
    assert [each["state"] for each in plain["chats"]] == [
        "before, base model",
        "after, its own length",
        "after, served under load",
    ]
    assert plain["break_even"][1]["chats"] is None
    assert plain["length_ratio"] == "0.800000"
    assert plain["speed"]["base_batch_output_tokens_per_s"] == 32
    assert {row["metric"]: row["verdict"] for row in plain["quality"]}["perplexity"] == "better"


def test_text_and_json_open_with_the_answers_of_the_page(closed: Callable[..., Loop]):
    loop = closed()
    text = " ".join(loop_text(loop, Format.TABLE).split())
    plain = json.loads(json.dumps(plain_loop(loop)))["answers"]
    assert [each["question"] for each in plain] == [
        "Is the tuned model better?",
        "What does a chat cost?",
        "What does the cluster cost?",
    ]
    for each in plain:
        told = f"- {each['question']} {each['lead']} {each['sentence']}"
        assert " ".join(told.split()) in text
    assert text.index(plain[2]["lead"]) < text.index("Quality on the same held-out rows")
    assert plain[0]["lead"] == "Yes, better."
    assert "- What does a chat cost? Measured: $" in loop_text(loop, Format.MARKDOWN)


def test_a_curve_of_one_load_has_a_table_and_no_chart(closed: Callable[..., Loop]):
    loop = closed(load=load_json(((1, 12.0, 0.4, None),), dict.fromkeys(SLO) | {"share": 1}))
    assert loop_charts(loop) == ()
    assert "1 stream, operating point" in loop_text(loop, Format.TABLE)
