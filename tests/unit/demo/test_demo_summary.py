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

from cost.report.layout import Format
from infra.reports.page.loop import close_loop, loop_text
from infra.reports.page.training import collect
from infra.setup.demo import summary
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


def shown(spec: StackSpec, state: Path, *, kept: bool = True) -> str:
    """The text after these jobs."""
    folders = {name: _folder(state, name) for name in JOBS}
    page = Path("/state/report.html")
    return summary.text(collect(spec, state), folders, STAGES, 131.2, page, kept=kept) + "\n"


def changed(state: Path, job: str, file: str, change: Callable[[Any], None]) -> None:
    path = _folder(state, job) / file
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def _folder(state: Path, job: str) -> Path:
    return state / "runs" / "local" / str(JOBS.index(job) + 1)


def test_the_end_of_a_demo_says_what_the_report_says(
    spec: StackSpec, state: Path, golden: Callable[[str, str], None]
) -> None:
    text = shown(spec, state)
    golden("demo/summary.txt", text)
    assert loop_text(close_loop(collect(spec, state)), Format.TABLE) in text


def test_what_needs_the_cluster_is_not_offered_once_it_is_gone(
    spec: StackSpec, state: Path
) -> None:
    after = shown(spec, state, kept=False).partition("Next:")[2]
    assert "soperator cost chat" in after
    assert "submit" not in after
    assert "DESTROY" not in after


def test_another_run_of_the_same_state_changes_no_stage(spec: StackSpec, state: Path) -> None:
    """A person's own, newer training is none of the demo's stages."""
    before = shown(spec, state).partition("\n\n")[0]
    other = state / "runs" / "local" / "9"
    shutil.copytree(_folder(state, "finetune"), other)
    record = json.loads((other / "run_record.json").read_text())
    record |= {"job_id": "9", "finished_at": "2027-01-01T00:00:00Z"}
    record["metrics"]["train_tokens_per_s"] = 1000.0
    (other / "run_record.json").write_text(json.dumps(record))
    assert shown(spec, state).partition("\n\n")[0] == before
    assert "in 6 steps, 89.31 tokens/s" in before


def test_a_load_test_without_a_feasible_point_prices_nothing_and_says_why(
    spec: StackSpec, state: Path
) -> None:
    def broken(values: Any) -> None:
        for each in values["curve"]:
            each["keeps_slo"] = False

    changed(state, "load", "load.json", broken)
    text = shown(spec, state)
    assert "served under load" not in text
    assert "the load test of job 5 found no load (1, 8 streams) that keeps" in " ".join(
        text.split()
    )
    assert "operating point" not in text.replace("NO OPERATING POINT", "")


@pytest.mark.feature("S000-115")
def test_an_assumed_speed_is_where_the_cost_of_a_chat_starts(spec: StackSpec, state: Path) -> None:
    row = AssumedSpeedSpec(
        scenario="a guess", output_tokens_per_s=Decimal("0.1"), source="this test"
    )
    text = shown(replace(spec, chat=replace(spec.chat, speeds=(row,))), state)
    (line,) = [line for line in text.splitlines() if line.startswith("before, assumed ")]
    assert "$55.80" in line
    assert "A chat reads 8,000 tokens and writes 2,000;" in " ".join(text.split())


@pytest.mark.parametrize("job", ["evaluate", "load"])
def test_what_was_not_measured_is_named(spec: StackSpec, state: Path, job: str) -> None:
    assert "NOT RUN" not in shown(spec, state)
    shutil.rmtree(_folder(state, job))
    assert "NOT RUN" in shown(spec, state)


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
        values["significance"]["perplexity"] = {"difference": 1.0, "low": None}

    changed(state, "evaluate", "evaluation.json", damage)
    (line,) = [each for each in shown(spec, state).splitlines() if "Perplexity on held" in each]
    assert line.split()[-3:] == ["%", "-", "-"], "no interval and no p-value behind the change"


def test_the_server_is_called_as_the_stack_calls_it(spec: StackSpec, state: Path) -> None:
    jobs = tuple(replace(job, name="chat") if job.is_server else job for job in spec.jobs)
    after = shown(replace(spec, jobs=jobs), state)
    assert "soperator submit chat --set serve.adapter=/mnt/chkpt/finetune/2/final" in after
