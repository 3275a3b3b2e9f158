"""acceptance.json: both sides read one format, and what is no such file is refused in a line."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from infra.reports.acceptance import run as module
from infra.reports.acceptance.run import AcceptError, merge, parse, read
from tests.unit.accept import acceptance
from workloads.accept import gates
from workloads.recipes import accept

SCHEMA = Path(gates.__file__).with_name("acceptance.schema.json")


@pytest.mark.feature("S001-15")
def test_what_the_job_writes_follows_the_published_schema() -> None:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    made = acceptance.report(extra=[acceptance.slow_gpu(), acceptance.dead_gpu()])
    jsonschema.validate(acceptance.values(made), schema)
    broken = acceptance.values(made)
    broken["checks"][0]["outcome"] = "MAYBE"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema)


@pytest.mark.feature("S001-51")
def test_both_sides_agree_on_names_stages_and_outcome(tmp_path: Path) -> None:
    assert module.STAGES == accept.STAGES
    assert (module.SCHEMA, module.SCHEMA_VERSION, module.FILE_NAME) == (
        gates.SCHEMA,
        gates.SCHEMA_VERSION,
        gates.FILE_NAME,
    )
    for extra in ([], [acceptance.dead_gpu()]):
        made = acceptance.report(extra=extra)
        found = read(acceptance.write(tmp_path, made))
        assert found.outcome == made.outcome == ("FAIL" if extra else "PASS")
        assert [check.id for check in found.checks] == [check.id for check in made.checks]


def test_a_stage_that_was_asked_for_and_has_no_check_passes_nothing(tmp_path: Path) -> None:
    made = acceptance.report()
    made.checks = [check for check in made.checks if not check.id.startswith("soak")]
    assert made.outcome == "NOT_RUN"
    assert read(acceptance.write(tmp_path, made)).outcome == "NOT_RUN"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "other"}, "no result of `python -m workloads.accept`"),
        ({"schema_version": 2}, "schema_version 2, this reads 1"),
        ({"checks": "none"}, "x.json: checks: expected a list, got text 'none'"),
        ({"checks": 5}, "x.json: checks: expected a list, got number 5"),
        ({"nodes": None}, "x.json: nodes: missing; give a list"),
        ({"hardware": None}, "x.json: hardware: missing; give a mapping"),
        ({"run": 3}, "x.json: run: expected a mapping, got number 3"),
        ({"checks": [{"id": "a.b"}]}, r"x.json: checks\[0\].outcome: missing; give text"),
        ({"checks": [{"id": "a.b"}]}, r"x.json: checks\[0\].measured: missing"),
    ],
)
def test_what_is_no_result_is_refused_with_its_path(change: dict[str, Any], message: str) -> None:
    values = {**acceptance.values(acceptance.report()), **change}
    with pytest.raises(AcceptError, match=message):
        parse(values, "x.json")


@pytest.mark.parametrize("key", ["nodes", "measured", "unit", "limit", "context", "reason"])
def test_a_check_without_one_of_its_keys_is_refused(key: str) -> None:
    values = acceptance.values(acceptance.report())
    del values["checks"][0][key]
    with pytest.raises(AcceptError, match=rf"^x.json: checks\[0\].{key}: missing$"):
        parse(values, "x.json")
    values["checks"][0][key] = None
    if key in ("nodes", "unit", "context"):
        with pytest.raises(AcceptError, match=rf"^x.json: checks\[0\].{key}: missing$"):
            parse(values, "x.json")


@pytest.mark.parametrize("value", [10**400, -(10**400), math.inf, math.nan, True])
def test_what_no_float_holds_was_not_measured(value: float) -> None:
    """A long row of digits ended the report in an OverflowError."""
    values = acceptance.values(acceptance.report())
    values["checks"][0]["measured"] = value
    with pytest.raises(AcceptError, match=r"^x.json: checks\[0\].measured: expected a number, got"):
        parse(values, "x.json")


def test_results_of_one_stage_each_come_together_in_order(tmp_path: Path) -> None:
    parts = [
        read(acceptance.write(tmp_path / stage, acceptance.report(stages=[stage])))
        for stage in ("training", "collectives", "readiness")
    ]
    found = merge(parts, {"soak": "job 9 ended before it: TIMEOUT, exit 1"})
    assert found.stages == ("readiness", "collectives", "training", "soak")
    assert found.outcome == "NOT_RUN"
    assert found.checks[0].stage == "readiness"
    assert found.checks[-1].reason == "job 9 ended before it: TIMEOUT, exit 1"
    assert len(found.runs) == 3


def test_results_of_two_clusters_do_not_make_one(tmp_path: Path) -> None:
    one = acceptance.values(acceptance.report())
    other = {**one, "hardware": {**one["hardware"], "num_nodes": 4}}
    with pytest.raises(AcceptError, match="different clusters: num_nodes 4, not 2"):
        merge([parse(one, "one"), parse(other, "other")], {})
    with pytest.raises(AcceptError, match="no stage left a result: soak: gone"):
        merge([], {"soak": "gone"})


def test_results_of_other_nodes_of_one_cluster_do_not_make_one() -> None:
    one = acceptance.values(acceptance.report())
    nodes = [{**node, "name": f"worker-{index}"} for index, node in enumerate(one["nodes"], 6)]
    other = parse({**one, "nodes": nodes}, "other")
    said = "nodes worker-6, worker-7, not worker-0, worker-1"
    with pytest.raises(AcceptError, match=said):
        merge([parse(one, "one"), other], {})
    again = parse({**one, "nodes": one["nodes"][::-1]}, "again")
    assert len(merge([parse(one, "one"), again], {}).runs) == 2


def test_a_loss_that_is_not_finite_is_written_as_the_failure_that_it_is(tmp_path: Path) -> None:
    points = [replace(acceptance.point(8, 40000), loss=loss) for loss in (math.nan, math.inf)]
    found = read(acceptance.write(tmp_path, acceptance.report(points=points)))
    outcomes = {check.id: check.outcome for check in found.checks}
    assert outcomes["training.loss"] == "FAIL"
    written = found.measurements["training"]["points"]
    assert [point["loss"] for point in written] == [None, None]
