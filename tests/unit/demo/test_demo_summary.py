"""The text that ends the demo, from what the five jobs of a reduced demo left (2026-11-21)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cost.chat.unit_costs import HourlyCost
from cost.report.layout import WIDTH
from infra.setup.demo import summary
from infra.setup.demo.summary import outcomes
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.cost import AssumedSpeedSpec

RECORDED = Path(__file__).parent / "recorded"
JOBS = ("prepare-data", "finetune", "evaluate", "serve", "load")
STAGES = [
    ("plan and price", 0.4, "$7,332 to $7,640 a month"),
    ("local up", 5.1, ""),
    ("pulumi up", 21.8, "resources: 52 created"),
    *((name, 20.0 + n, f"job {n}") for n, name in enumerate(JOBS, start=1)),
    ("pulumi up, measured cost", 3.2, "nothing to change"),
]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    shutil.copytree(RECORDED, tmp_path / "runs")
    return tmp_path


@pytest.fixture
def spec(public_key_file: Path) -> StackSpec:
    return load_stack("local", environ={"SOPERATOR_SSH_PUBLIC_KEY_FILE": str(public_key_file)})


def shown(spec: StackSpec, state: Path, *, jobs: tuple[str, ...] = JOBS, kept: bool = True) -> str:
    """The text for these jobs."""
    folders = {name: _folder(state, name) for name in jobs}
    page = Path("/state/report.html")
    return summary.text(outcomes(spec, state, folders), STAGES, 131.2, page, kept=kept) + "\n"


def changed(state: Path, job: str, file: str, change: Callable[[Any], None]) -> None:
    path = _folder(state, job) / file
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def _folder(state: Path, job: str) -> Path:
    return state / "runs" / "local" / str(JOBS.index(job) + 1)


def test_the_end_of_a_demo_is_one_page(
    spec: StackSpec, state: Path, golden: Callable[[str, str], None]
) -> None:
    text = shown(spec, state)
    golden("demo/summary.txt", text)
    assert max(map(len, text.splitlines())) <= WIDTH


def test_what_needs_the_cluster_is_not_offered_once_it_is_gone(
    spec: StackSpec, state: Path
) -> None:
    after = shown(spec, state, kept=False).partition("Next:")[2]
    assert "soperator cost chat" in after
    assert "submit" not in after
    assert "DESTROY" not in after


def test_another_run_of_the_same_state_changes_no_figure(spec: StackSpec, state: Path) -> None:
    """A person's own, newer evaluation is no part of the demo."""
    before = shown(spec, state)
    other = state / "runs" / "local" / "9"
    shutil.copytree(_folder(state, "evaluate"), other)
    record = json.loads((other / "run_record.json").read_text())
    record |= {"job_id": "9", "finished_at": "2027-01-01T00:00:00Z"}
    record["metrics"]["output_tokens_per_s"] = 1000.0
    (other / "run_record.json").write_text(json.dumps(record))
    assert shown(spec, state) == before


def test_a_load_test_without_a_feasible_point_prices_nothing_and_says_why(
    spec: StackSpec, state: Path
) -> None:
    def broken(values: Any) -> None:
        for each in values["curve"]:
            each["keeps_slo"] = False

    changed(state, "load", "load.json", broken)
    text = " ".join(shown(spec, state).split())
    assert "transformers, batch 8" not in text
    assert "One chat:" not in text
    assert "the load test of job 5 found no load (1, 8 streams) that keeps" in text


def test_chats_that_cost_nothing_are_not_compared(spec: StackSpec, state: Path) -> None:
    report = outcomes(spec, state, {name: _folder(state, name) for name in JOBS}).report
    zero = HourlyCost(
        cluster_low_usd=Decimal(0), cluster_high_usd=Decimal(0), serving_usd=Decimal(0)
    )
    free = [replace(each, hourly=zero) for each in report.bill.known_chats]
    assert summary.cheaper(report.bill.known_chats)
    assert summary.cheaper(free) == []


@pytest.mark.feature("S000-115")
def test_an_assumed_speed_is_what_a_chat_costs_until_one_was_measured(
    spec: StackSpec, state: Path
) -> None:
    row = AssumedSpeedSpec(
        scenario="a guess", output_tokens_per_s=Decimal("0.1"), source="this test"
    )
    guessed = replace(spec, chat=replace(spec.chat, speeds=(row,)))
    text = " ".join(shown(guessed, state, jobs=()).split())
    assert "What does a chat cost? Estimated: $55.80 to $58.15." in text
    assert "A chat reads 8,000 tokens and writes 2,000" in text
    assert "assumed: this test; NOT MEASURED" in text
    (line,) = [each for each in shown(guessed, state).splitlines() if "Est Cost/Chat" in each]
    assert line.startswith("Scenario")
    assert "What does a chat cost? Measured: $0.331 to $0.345." in shown(guessed, state)


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ((), "Training: NOT RUN: no training run of this stack has passed"),
        (JOBS[:2], "Is the tuned model better? NOT MEASURED: no evaluation of this stack has"),
        (JOBS[:3], "Load: NOT RUN: no load test of this stack has passed"),
        (JOBS[3:], "Quality and speed: NOT RUN: no evaluation of this stack has passed"),
    ],
)
def test_what_was_not_measured_is_not_run_and_says_how(
    spec: StackSpec, state: Path, jobs: tuple[str, ...], said: str
) -> None:
    text = " ".join(shown(spec, state, jobs=jobs).split())
    assert said in text
    assert "What does a chat cost?" in text


def test_a_long_answer_is_cut_and_an_empty_one_is_named(spec: StackSpec, state: Path) -> None:
    def talkative(values: Any) -> None:
        values["base_model"]["sample_generations"][0]["generated"] = "word " * 200
        values["finetuned_model"]["sample_generations"][0]["generated"] = " "

    changed(state, "evaluate", "evaluation.json", talkative)
    text = shown(spec, state)
    assert "word ...\n" in text
    assert "  fine-tuned  (nothing)\n" in text


def test_the_counts_of_pulumi_become_a_remark() -> None:
    from infra.setup.demo.runner import changes

    assert changes("x\nResources:\n    + 52 created\n\nDuration: 28s\n") == "resources: 52 created"
    done = "\nResources:\n    ~ 1 updated\n    +-2 replaced\n    3 changes. 48 unchanged\n"
    assert changes(done) == "resources: 1 updated, 2 replaced"
    assert changes("\nResources:\n    54 unchanged\n") == "nothing to change"
    assert changes("") == "nothing to change"


def test_a_damaged_test_of_a_metric_leaves_its_change_without_an_interval(
    spec: StackSpec, state: Path
) -> None:
    def damage(values: dict[str, Any]) -> None:
        values["significance"]["function_name_accuracy"] = {"difference": 1.0, "low": None}

    changed(state, "evaluate", "evaluation.json", damage)
    text = " ".join(shown(spec, state).split())
    assert "Not shown to be better." in text
    assert "without an interval this shows no gain" in text


def test_the_server_is_called_as_the_stack_calls_it(spec: StackSpec, state: Path) -> None:
    folders = {name: _folder(state, name) for name in JOBS}
    measured = outcomes(spec, state, folders)
    jobs = tuple(replace(job, name="chat") if job.is_server else job for job in spec.jobs)
    renamed = replace(measured, report=replace(measured.report, spec=replace(spec, jobs=jobs)))
    after = summary.text(renamed, STAGES, 131.2, Path("/state/report.html"), kept=True)
    assert "soperator submit chat --set serve.adapter=" in after
