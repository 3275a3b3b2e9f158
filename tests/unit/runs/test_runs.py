"""Runs are listed with what they cost and compared with units; damaged ones are named."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from infra.cli.main import app
from infra.clients.errors import JobsError
from infra.reports.runs import run
from infra.reports.runs.diff import Verdict, agreement, diff, unit
from infra.reports.runs.run import SHARED, find_run
from tests.unit.cost.run_stacks import CLUSTER, actual_entry, at, l40s, rates_of
from tests.unit.runs.folders import RECIPE, runs, write_run

RUNNER = CliRunner()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public_key_file: Path) -> Path:
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path))
    return tmp_path


def test_a_run_has_the_dollars_of_accounting_before_those_of_its_own_clock(
    state: Path, public_key_file: Path
) -> None:
    write_run(state, "2", cluster=CLUSTER)
    write_run(state, "3")
    ended = actual_entry("2", "7.25", at(5), at(6))
    two, three = runs(state, rates=rates_of(l40s()), entries=[ended])
    assert (two.usd, two.usd_from) == (Decimal("7.25"), "accounting")
    # 2 nodes at 4.5688 USD an hour for the 210 s of its record.
    assert three.usd is not None
    assert abs(three.usd - Decimal("4.5688") * 2 * 210 / 3600) < Decimal("1e-9")
    assert three.usd_from == "its record's time, whole nodes"


def test_the_list_marks_what_no_accounting_has_said(state: Path, public_key_file: Path) -> None:
    """Of whole nodes an estimate was 17 times what accounting said, under the same heading."""
    write_run(state, "2", cluster=CLUSTER)
    write_run(state, "3")
    entries = [actual_entry("2", "7.25", at(5), at(6))]
    found = runs(state, rates=rates_of(l40s()), entries=entries)
    shown = [row[run.HEADERS.index("USD")] for row in run.rows(found)]
    assert shown == ["$7.25", "~$0.533"]
    (note,) = run.notes(found)
    assert note.startswith("~: an estimate, whole nodes")
    assert run.notes(found[:1]) == ()


def test_filters_keep_what_fits_and_the_newest_of_it(state: Path) -> None:
    write_run(state, "2")
    write_run(state, "3", outcome="FAIL", reason="loss is NaN")
    write_run(state, "4", model="Qwen3-14B", started_at="2026-11-21T05:03:00Z")
    found = runs(state)

    def named(**wanted: object) -> list[str]:
        chosen = run.select(found, **wanted)  # type: ignore[arg-type]
        return [run.name for run in chosen]

    assert named(outcomes=("FAIL",)) == ["3"]
    assert named(model="qwen") == ["4"]
    assert named(last=2) == ["3", "4"]
    assert named(since=datetime(2026, 11, 21, 5, 2, tzinfo=UTC)) == ["4"]
    assert named(jobs=("serve",)) == []


def test_a_damaged_record_is_named_and_costs_no_other(state: Path) -> None:
    write_run(state, "2")
    damaged = state / "runs" / "local" / "9" / "run_record.json"
    damaged.parent.mkdir()
    damaged.write_text("{")
    done = RUNNER.invoke(app, ["runs", "list"])
    assert done.exit_code == 0, done.output
    assert f"damaged run record, left out: {damaged}" in done.stderr
    assert done.stdout.splitlines()[1].split()[:3] == ["2", "finetune", "PASS"]


def test_the_list_as_json_names_units_and_settings(state: Path) -> None:
    write_run(state, "2")
    (found,) = json.loads(RUNNER.invoke(app, ["runs", "list", "--format", "json"]).stdout)
    assert found["tokens_per_s"] == 400.0
    assert found["method"] == "lora"
    assert found["settings"]["train.lora.rank"] == 8
    assert found["usd_from"] == "its record's time, whole nodes"


def test_a_run_that_is_not_here_is_refused_with_those_that_are(state: Path) -> None:
    write_run(state, "2")
    done = RUNNER.invoke(app, ["runs", "diff", "2", "7"])
    assert done.exit_code == 2, "1 would say that they differ"
    assert "run '7': not here (newest: 2); bring it with soperator pull 7" in done.stderr


def test_a_diff_tells_settings_code_data_results_and_cost(state: Path) -> None:
    write_run(state, "2")
    other = {**RECIPE, "train": {**RECIPE["train"], "seed": 8}}
    write_run(
        state,
        "3",
        recipe=other,
        code_hash="f" * 16,
        data_hash="e" * 64,
        metrics={"train_tokens_per_s": 500.0, "peak_gpu_memory_gib": 30.0},
    )
    found = diff(*runs(state))
    told = {(each.what, each.name): each for each in found.differences}
    assert (told["setting", "train.seed"].first, told["setting", "train.seed"].second) == (7, 8)
    assert [key for key in told if key[0] == "setting"] == [("setting", "train.seed")]
    assert told["code", "code"].second == "f" * 16
    assert told["data", "hash"].first == "d" * 64
    speed = told["result", "train_tokens_per_s"]
    assert (speed.unit, speed.change_percent) == ("tokens/s", 25.0)
    assert told["result", "peak_gpu_memory_gib"].first is None
    assert (
        "run 2: its cost is not known: soperator cost spend -s local asks accounting" in found.notes
    )


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("train_tokens_per_s", "tokens/s"),
        ("train_tokens_per_s_per_gpu", "tokens/s a GPU"),
        ("train_step_s", "s"),
        ("median_ttft_ms", "ms"),
        ("num_train_steps", "count"),
        ("last_loss", "nats"),
        ("perplexity", ""),
    ],
)
def test_a_metrics_unit_is_the_end_of_its_name(metric: str, said: str) -> None:
    assert unit(metric) == said


def test_losses_agree_to_the_bit_within_the_tolerance_or_not() -> None:
    curve = [(1, 2.0), (2, 1.0)]
    assert agreement(curve, list(curve)).verdict is Verdict.EQUAL
    near = agreement(curve, [(1, 2.0), (2, 1.01)], 0.011)
    assert near.verdict is Verdict.AGREE
    far = agreement(curve, [(1, 2.0), (2, 1.1)], 0.011)
    assert far.verdict is Verdict.DIFFER
    assert "at step 2 1 and 1.1" in far.detail
    assert agreement(curve, []).verdict is Verdict.NOT_RUN
    assert agreement([], curve).verdict is Verdict.NOT_RUN


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        (2.0, NAN, Verdict.DIFFER),
        (NAN, 2.0, Verdict.DIFFER),
        (2.0, INF, Verdict.DIFFER),
        (INF, 2.0, Verdict.DIFFER),
        (INF, -INF, Verdict.DIFFER),
        (0.0, 1.0, Verdict.DIFFER),
        (NAN, NAN, Verdict.EQUAL),
        (INF, INF, Verdict.EQUAL),
        (1e300, 1e300 * (1 + 1e-15), Verdict.AGREE),
    ],
)
def test_a_loss_that_is_no_number_agrees_with_nothing_but_itself(
    first: float, second: float, verdict: Verdict
) -> None:
    found = agreement([(1, 1.0), (2, first)], [(1, 1.0), (2, second)])
    assert found.verdict is verdict, found


@pytest.mark.parametrize(
    ("losses", "status", "word"),
    [
        ((2.0, 1.5, 1.25), 0, "EQUAL"),
        ((2.0, 1.5, 1.251), 0, "AGREE"),
        ((2.0, 1.5, 1.5), 1, "DIFFER"),
        ((), 69, "NOT RUN"),
    ],
)
@pytest.mark.parametrize("format", ["table", "json"])
def test_a_diff_ends_with_the_status_of_its_losses(
    losses: tuple[float, ...], status: int, word: str, format: str, state: Path
) -> None:
    write_run(state, "2")
    write_run(state, "3", losses=losses)
    done = RUNNER.invoke(app, ["runs", "diff", "2", "3", "--format", format])
    assert done.exit_code == status, done.output
    assert word in done.stdout


def test_a_diff_of_a_loss_that_is_no_number_is_json(state: Path) -> None:
    write_run(state, "2")
    write_run(state, "3", losses=(2.0, NAN, 1.0))
    done = RUNNER.invoke(app, ["runs", "diff", "2", "3", "--format", "json"])
    found = json.loads(done.stdout, parse_constant=pytest.fail)
    assert (found["losses"]["verdict"], found["losses"]["largest_share"]) == ("DIFFER", None)


def test_a_damaged_file_beside_a_record_costs_no_other_run(state: Path) -> None:
    folder = write_run(state, "2", cluster=CLUSTER)
    write_run(state, "3")
    deep = "[" * 100_000
    for name in ("recipe.json", "submission.json"):
        (folder / name).write_text(deep)
    lines = ('{"step": Infinity, "loss": 1}', f'{{"step": 1, "loss": {10**400}}}', deep)
    (folder / "loss_curve.jsonl").write_text("\n".join([*lines, '{"step": 4, "loss": 0.5}']))
    two, three = runs(state)
    assert (two.recipe, two.submission, two.losses) == (None, None, ((5, 0.5),))
    assert len(three.losses) == 3
    odd = {"stack": "local", "job": "x", "job_id": "x", "code_hash": "", "sets": [], "after": None}
    odd |= {"log_path": "", "submitted_at": "", "cluster": ["no", "text"]}
    (folder / "submission.json").write_text(json.dumps(odd))
    assert runs(state)[0].submission is None


def test_a_record_of_others_that_says_another_id_or_commit_is_not_believed(state: Path) -> None:
    """Both stand in commands that people copy, and in what git is asked."""
    for folder, job_id in (("2-0123abcd", "5"), ("3-0123abcd", "3")):
        made = write_run(state / "others", job_id, git_revision="--output=x")
        made.rename(parent(state) / folder)
    said: list[str] = []
    (three,) = runs(state, say=said.append)
    assert (three.name, three.record.git_revision) == ("3@0123abcd", None)
    assert [line for line in said if "2-0123abcd" in line and "is not of its folder" in line]


def parent(state: Path) -> Path:
    """Where runs of others lie."""
    path = state / "runs" / "local" / SHARED
    path.mkdir(parents=True, exist_ok=True)
    return path


def test_a_step_that_only_one_run_has_is_told_and_not_compared() -> None:
    found = agreement([(1, 2.0), (2, 1.0)], [(1, 2.0)])
    assert (found.verdict, found.num_steps) == (Verdict.EQUAL, 1)
    assert "1 in one run only" in found.detail


def test_a_diff_without_recipes_says_that_settings_are_not_compared(state: Path) -> None:
    write_run(state, "2", recipe=None)
    (two,) = runs(state)
    notes = diff(two, replace(two, name="3", record=replace(two.record, data_hash=None))).notes
    assert "run 2 kept no recipe.json: its settings are not compared" in notes
    assert "run 3 has no data hash: its data is not compared" in notes


def test_a_name_that_two_clusters_gave_is_refused(state: Path) -> None:
    write_run(state, "2")
    (two,) = runs(state)
    others = [replace(two, name="2@aaaaaaaa"), replace(two, name="2@bbbbbbbb")]
    with pytest.raises(JobsError, match="there are several: 2@aaaaaaaa, 2@bbbbbbbb"):
        find_run(others, "2", "local")
