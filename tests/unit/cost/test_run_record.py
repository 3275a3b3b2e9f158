"""A run record is read strictly, because money follows from it."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cost.run_record import Outcome, RunRecordError, load_run_records, parse_run_record
from tests.another_user import Neighbour, neighbour, run_python  # noqa: F401 (a fixture)
from tests.unit.cost.conftest import RECORD, record, record_text


def test_a_record_of_the_contract_is_read():
    found = record()
    assert found.outcome is Outcome.PASS
    assert found.metrics["output_tokens_per_s"] == Decimal("12.25")
    assert found.duration_s == 100
    assert found.hardware is not None
    assert found.hardware.device == "cpu"


def test_what_a_job_outside_a_stack_leaves_empty_is_allowed():
    """A job started by hand knows no stack, and a failed one may not have reached its hardware."""
    found = record(stack=None, code_hash=None, hardware=None, engine=None, model=None, metrics={})
    assert (found.stack, found.hardware) == (None, None)


def test_what_prices_nothing_does_not_cost_the_record():
    """A job of our user's own has no ranks, or knows no hash of its data."""
    empty = {"library": None, "python": "3.11.7"}
    named = {key: {"x": None} for key in ("environment", "artifacts", "metrics")}
    found = record(world_size=0, code_hash="", data_hash="", versions=empty, **named)
    assert (found.world_size, found.code_hash, found.data_hash) == (0, None, None)
    assert found.versions == {"python": "3.11.7"}
    assert (found.environment, found.artifacts, found.metrics) == ({}, {}, {})


def test_the_log_s_last_line_is_the_same_record():
    line = record_text() + "\n"
    assert "\n" not in line.strip()
    assert parse_run_record(line, "job.out").job_id == "12"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"schema_version": 2}, r"a/b\.json: schema_version: got 2, expected 1; run the job again"),
        ({"schema_version": None}, "schema_version: got None"),
        ({"outcome": "OK"}, "outcome: expected one of PASS, FAIL, NOT_RUN, got text 'OK'"),
        ({"job_id": 12}, "job_id: expected text, got number 12"),
        ({"finished_at": "yesterday"}, "finished_at: expected a time"),
        ({"schema_version": True}, "schema_version: got True"),
        ({"finished_at": "2001-01-01T00:00:00Z"}, "finished_at: expected no time before started_"),
        ({"metrics": {"x": "fast"}}, "metrics.x: expected a number, got text 'fast'"),
        ({"metrics": {"x": True}}, "metrics.x: expected a number"),
        ({"metrics": []}, "metrics: expected a mapping of numbers"),
        ({"hardware": "gpu"}, "hardware: expected a mapping of platform"),
        (
            {"hardware": {**RECORD["hardware"], "num_nodes": 1.5}},
            "hardware.num_nodes: expected a whole number",
        ),
        (
            {"hardware": {**RECORD["hardware"], "num_nodes": 0}},
            "hardware.num_nodes: expected a whole number of 1 or more",
        ),
        (
            {"hardware": {**RECORD["hardware"], "device": None}},
            "hardware.device: missing; give text",
        ),
    ],
)
def test_a_record_of_another_shape_is_refused_with_its_file_and_key(
    changes: dict[str, Any], problem: str
):
    with pytest.raises(RunRecordError, match=problem):
        parse_run_record(record_text(**changes), "a/b.json")


@pytest.mark.parametrize("key", ["kind", "started_at", "recipe", "metrics", "outcome"])
def test_a_missing_key_is_refused(key: str):
    values = {name: value for name, value in RECORD.items() if name != key}
    text = json.dumps(values)
    with pytest.raises(RunRecordError, match=f"{key}: missing; give"):
        parse_run_record(text, "x")


@pytest.mark.parametrize("size", ["1e400", "1e999999999", "-1e16", "1e-999998"])
def test_a_measurement_that_nothing_can_be_computed_with_is_refused(size: str):
    text = record_text(metrics={"output_tokens_per_s": 1.5}).replace("1.5", size)
    with pytest.raises(RunRecordError, match=r"metrics\.output_tokens_per_s: expected 0 or a size"):
        parse_run_record(text, "x")


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"schema_version": NaN}', "[" * 100_000])
def test_text_that_is_not_a_record_is_refused(text: str):
    with pytest.raises(RunRecordError, match="x: "):
        parse_run_record(text, "x")


def test_a_folder_gives_its_records_and_says_what_is_wrong_with_the_rest(tmp_path: Path):
    """One torn file must not take the cost out of every preview."""
    for job_id, text in {"7": record_text(job_id="7"), "8": "{", "9": record_text()}.items():
        (tmp_path / job_id).mkdir()
        (tmp_path / job_id / "run_record.json").write_text(text)
    records, problems = load_run_records(tmp_path)
    assert [found.job_id for found in records] == ["7", "12"]
    assert len(problems) == 1
    assert str(tmp_path / "8" / "run_record.json") in problems[0]


def test_the_copy_of_an_interrupted_pull_is_no_record(tmp_path: Path):
    """A pull that was killed leaves `.7.part/7/run_record.json`; the job must not count twice."""
    for folder in ("7", ".7.part/7"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "run_record.json").write_text(record_text(job_id="7"))
    records, problems = load_run_records(tmp_path)
    assert [Path(found.path).parent for found in records] == [tmp_path / "7"]
    assert problems == ()


def test_a_job_s_folder_that_cannot_be_entered_is_told(neighbour: Neighbour):  # noqa: F811
    """Its measurement would be missing from every figure without a word."""
    folder = neighbour.folder / "7"
    folder.mkdir(mode=0o700)
    (folder / "run_record.json").write_text(record_text(job_id="7"))
    imports = "from pathlib import Path\nfrom cost.run_record import load_run_records"
    found = run_python(imports, f"print(*load_run_records(Path('{neighbour.folder}')))")
    assert found == f"() ('{folder}: cannot be read: Permission denied',)"


def test_a_folder_that_does_not_exist_has_no_records(tmp_path: Path):
    assert load_run_records(tmp_path / "none") == ((), ())
