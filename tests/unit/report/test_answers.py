"""The three sentences of the first screen claim what was measured, and nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cost.bill.bill import render_chats
from cost.report.layout import Format
from infra.reports.page import page
from infra.reports.page.loop import Answer, answers, close_loop, loop_text
from infra.reports.page.quality import evaluation_rows, verdict
from infra.reports.page.training import Report, collect, span_of_days
from stacks.load import load_stack
from tests.unit.cost.loads import load_json
from tests.unit.report.loops import TESTED, write_loop
from tests.unit.report.reports import evaluation, write_record, write_runs

ACCURACY = "function_name_accuracy"


@pytest.fixture
def state(tmp_path: Path, public_key_file: Path) -> Path:
    return tmp_path


def opened(state: Path, stack: str = "local") -> tuple[Answer, ...]:
    report = collect(load_stack(stack), state)
    return answers(report, evaluation_rows(report.evaluation))


def text(answer: Answer) -> str:
    return f"{answer.lead} {answer.sentence}"


def judged(state: Path, change: Callable[[dict[str, Any]], None]) -> Answer:
    """The first answer after a change of the evaluation's result."""
    write_loop(state)
    path = state / "runs" / "local" / "3" / "evaluation.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))
    return opened(state)[0]


def with_test(**changes: Mapping[str, float]) -> Callable[[dict[str, Any]], None]:
    return lambda values: values["significance"].update(changes)


def test_a_gain_is_named_with_metric_rows_and_interval(state: Path) -> None:
    sure = {**TESTED[ACCURACY], "num_rows": 24}
    found = judged(state, with_test(**{ACCURACY: sure}))
    assert text(found) == (
        "Yes, better. Function name accuracy on 24 held-out rows: 12.5 % base, 95.8 % tuned; "
        "difference +83.3 points, 95 % interval +60 to +95."
    )
    assert found.more.startswith("Of 2 other tested metrics 1 better, 0 worse")


def test_width_and_fineness_are_those_of_the_evaluation(state: Path) -> None:
    """`--resamples 99 --confidence 0.9`: nothing is told below 1 in 100."""

    def change(values: dict[str, Any]) -> None:
        values["sampling"] = {"resamples": 99, "confidence": 0.9, "seed": 0}
        values["significance"]["perplexity"]["p_value"] = 0.01

    assert "90 % interval +60 to +95" in judged(state, change).sentence
    report = collect(load_stack("local"), state)
    table = " ".join(loop_text(close_loop(report), Format.TABLE).split())
    html = page.render(report)
    for shown in (table, html):
        assert "95 % interval" not in shown
        assert "90 % interval" in shown
        assert "0.0005" not in shown
    assert "<= 0.01" in table
    assert "&lt;= 0.01" in html


def test_rows_without_a_difference_give_no_interval(state: Path) -> None:
    found = judged(state, with_test(**{ACCURACY: {"low": 0.0, "high": 0.0, "p_value": 1.0}}))
    assert found.lead == "Not shown to be better."
    assert found.sentence.endswith(
        "; the same difference in every resample, so no interval can be told."
    )


@pytest.mark.parametrize("p_value", [0.001, 0.4])
def test_an_interval_with_zero_in_it_is_not_shown_to_be_better(state: Path, p_value: float) -> None:
    """However small the p of the other test is."""
    found = judged(state, with_test(**{ACCURACY: {"low": -0.1, "high": 0.95, "p_value": p_value}}))
    assert found.lead == "Not shown to be better."
    assert found.sentence.endswith("95 % interval -10 to +95, which includes zero.")
    assert not found.kind


def test_an_interval_beside_zero_with_a_large_p_is_not_shown_to_be_better(state: Path) -> None:
    found = judged(state, with_test(**{ACCURACY: {"low": 0.1, "high": 0.95, "p_value": 0.13}}))
    assert found.lead == "Not shown to be better."
    assert found.sentence.endswith("but p 0.1300 is not below 0.05.")


def test_a_loss_is_told_and_so_is_one_beside_a_gain(state: Path) -> None:
    def worse(values: dict[str, Any]) -> None:
        values["finetuned_model"]["perplexity"] = 9.0
        values["significance"]["perplexity"] = {"low": 1.0, "high": 3.0, "p_value": 0.001}

    found = judged(state, worse)
    assert found.lead == "Yes, better."
    assert "1 worse (Perplexity on held-out rows)" in found.more


def test_perplexity_decides_where_no_function_is_called(state: Path) -> None:
    def without(values: dict[str, Any]) -> None:
        del values["base_model"][ACCURACY]

    found = judged(state, without)
    assert text(found).startswith("Yes, better. Perplexity on the held-out rows: 7.03 base, 4.70 ")


def test_a_difference_without_an_interval_is_no_gain(state: Path) -> None:
    write_runs(state)
    found = opened(state)[0]
    assert found.lead == "Not shown to be better."
    assert "without an interval this shows no gain; run: soperator submit evaluate" in text(found)
    assert 'class="n good"' not in page.render(collect(load_stack("local"), state))


def test_a_speed_has_no_verdict_and_decides_nothing() -> None:
    values = {**evaluation(), "significance": TESTED}
    values["finetuned_model"]["output_tokens_per_s"] *= 3
    (row,) = [row for row in evaluation_rows(values) if row["key"] == "output_tokens_per_s"]
    assert (verdict(row), row["change"]) == ("-", "measured once")


def test_what_was_not_measured_names_what_measures_it(state: Path) -> None:
    better, chat, _ = opened(state)
    assert text(better) == (
        "NOT MEASURED: no evaluation of this stack has passed; run: soperator submit evaluate "
        "--stack local, then soperator pull ID -s local."
    )
    assert text(chat).startswith("NOT MEASURED: no speed of SmolLM2-135M-Instruct is declared or ")
    assert "run: soperator submit evaluate --stack local" in text(chat)


def test_a_chat_is_measured_once_on_cpus_and_says_so(state: Path) -> None:
    write_loop(state)
    _, chat, cluster = opened(state)
    # 52 tokens/s written and 900 read by a batch of 8: 2,000 / 52 + 8,000 / 900 s of the cluster.
    report = collect(load_stack("local"), state)
    usd = float(report.bill.estimate.total.hourly_low_usd) * (2000 / 52 + 8000 / 900) / 3600
    assert chat.lead.startswith(f"Measured: ${usd:.3f} to $0.")
    assert "reads 8,000 tokens and writes 2,000" in chat.sentence
    assert "on CPUs in place of the declared GPUs" in chat.sentence
    assert ": no confidence interval" in chat.sentence
    assert "reading is not counted" not in chat.sentence
    assert text(cluster).startswith("$7,332 to $7,640 a month. $10.04 to $10.47 an hour")
    assert cluster.more == "What this shape would cost on Nebius; this machine bills nothing."
    assert "PASS, CPU rehearsal" in page.render(report)


def test_a_load_of_short_prompts_says_that_its_speed_is_taken_to_the_chats_lengths(
    state: Path,
) -> None:
    """Speeds of 65 tokens priced chats of 8,000, and the page called that measured."""
    write_loop(state, load=load_json(prompt_tokens=65.03))
    _, chat, _ = opened(state)
    said = "with prompts of 65 and answers of 2,000 tokens, taken to the chat's lengths"
    assert f" {said}: " in chat.sentence
    notes = render_chats(collect(load_stack("local"), state).bill, Format.TABLE)
    assert said in " ".join(notes.split())


def test_an_assumed_speed_is_an_estimate_with_its_source(state: Path) -> None:
    _, chat, _ = opened(state, "l40s-dev")
    assert chat.lead.startswith("Estimated: $")
    assert "assumed: published run (sar/nebius)" in chat.sentence
    assert "NOT MEASURED, run: soperator submit evaluate --stack l40s-dev" in chat.sentence
    assert chat.sentence.endswith("reading is not counted.")


def test_a_line_without_a_price_is_named_and_makes_the_total_a_lower_bound(state: Path) -> None:
    report: Report = collect(load_stack("l40s-dev"), state)
    first, *others = report.bill.estimate.components
    lines = (replace(first, rate=None, unknown="no price is known"), *others)
    estimate = replace(report.bill.estimate, components=lines)
    report = replace(report, bill=replace(report.bill, estimate=estimate))
    _, _, cluster = answers(report, [])
    assert cluster.lead.startswith("At least $")
    assert f"not priced: {first.name}." in cluster.sentence


@pytest.mark.parametrize(
    ("days", "shown"), [(0.0390, "56 min"), (0.5, "12 h 00 min"), (3.21, "3.21 days")]
)
def test_a_part_of_a_day_is_written_in_minutes(days: float, shown: str) -> None:
    assert span_of_days(days) == shown


def test_a_chat_that_was_measured_several_times_has_the_interval_of_its_mean_cost(
    state: Path,
) -> None:
    """At 1.1 and 1/1.1 of the speed of the first: t(2) is 4.303, by hand in logarithms."""
    write_loop(state)
    first = json.loads((state / "runs/local/14/run_record.json").read_text())
    for job_id, hour, factor in (("15", 7, 1.1), ("16", 8, 1 / 1.1)):
        again = json.loads(json.dumps(first)) | {
            "job_id": job_id,
            "finished_at": f"2026-11-21T{hour:02}:00:00Z",
        }
        for key in again["metrics"]:
            if key.endswith("tokens_per_s"):
                again["metrics"][key] *= factor
        write_record(state, again)
    _, chat, _ = opened(state)
    report = collect(load_stack("local"), state)
    half = 4.303 * math.log(1.1) / math.sqrt(3)
    hourly = float(report.bill.estimate.total.hourly_low_usd)
    mean = hourly * (2000 / 52 + 8000 / 900) / 3600
    low, high = (f"${mean * math.exp(sign * half):.3f}" for sign in (-1, 1))
    assert (
        "measured 3 times, last on 2026-11-21, on CPUs in place of the declared GPUs: "
        f"95 % interval of their mean {low} to {high}, smallest cluster"
    ) in chat.sentence
    write_record(
        state, {**first, "job_id": "18", "recipe": "other", "finished_at": "2026-11-21T10:00:00Z"}
    )
    assert "measured once, " in opened(state)[1].sentence, "of another recipe"
