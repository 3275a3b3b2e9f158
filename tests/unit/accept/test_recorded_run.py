"""The published 16-GPU run passed its own gate with 98 %. Its own numbers say 20.7 %, and FAIL.

The invariant: efficiency comes from tokens of one model; a ratio of bandwidths never stands for it.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workloads.accept.gates import FILE, Check, gates_for, overall
from workloads.accept.suite import Recorded, judge_files, judge_recorded, read_benchmark
from workloads.common.exit_codes import DataError, ExitCode

RECORDED = Path(__file__).parent / "recorded"
ITS_RULE = FILE.with_name("gates_h100_benchmark.yaml")
FILES = (RECORDED / "seed001_1_node.json", RECORDED / "seed001_2_nodes.json")


def _runs() -> list[Recorded]:
    return [read_benchmark(json.loads(path.read_text()), path.name) for path in FILES]


def _checks(runs: list[Recorded], rule: Path | None = None) -> dict[str, list[Check]]:
    found: dict[str, list[Check]] = {}
    for check in judge_recorded(runs, gates_for("gpu-h100-sxm", 8, rule)):
        found.setdefault(check.id, []).append(check)
    return found


@pytest.mark.feature("S001-50", "S001-56", "S001-59")
def test_the_run_that_claimed_98_percent_fails_with_its_true_20_7() -> None:
    checks = _checks(_runs())
    (efficiency,) = checks["training.scaling_efficiency"]
    assert efficiency.outcome == "FAIL"
    assert efficiency.measured == pytest.approx(100 * 137162.0 / 16 / (331742.7 / 8))
    assert efficiency.measured == pytest.approx(20.67, abs=0.01)
    assert efficiency.reason is not None
    assert "2 times the ranks do 0.41 times the work" in efficiency.reason
    assert overall([check for found in checks.values() for check in found]) == "FAIL"


@pytest.mark.feature("S001-52", "S001-53", "S001-54", "S001-55")
def test_its_bandwidths_were_right_and_say_nothing_of_training() -> None:
    checks = _checks(_runs())
    assert [check.outcome for check in checks["collectives.arithmetic"]] == ["PASS"]
    assert {check.outcome for check in checks["collectives.all_reduce"]} == {"PASS"}
    called_efficiency = 434.99 / 442.21
    assert called_efficiency == pytest.approx(0.98, abs=0.005)


@pytest.mark.feature("S001-49")
def test_its_tokens_pass_on_one_node_and_fail_on_two() -> None:
    found = _checks(_runs())["training.tokens_per_s_per_gpu"]
    assert [(check.outcome, check.measured) for check in found] == [
        ("PASS", pytest.approx(331742.7 / 8)),
        ("FAIL", pytest.approx(137162.0 / 16)),
    ]


@pytest.mark.feature("S001-48", "S001-49")
def test_by_its_own_rule_its_bandwidth_and_its_tokens_pass_and_less_than_its_limits_not() -> None:
    """Seed 001: 434.99 of 350 GB/s and 8,573 of 500 tokens a second, which 33,000 would fail."""
    runs = _runs()
    found = _checks(runs, ITS_RULE)
    (two_nodes,) = (each for each in found["collectives.all_reduce"] if "2 nodes" in each.subject)
    assert (two_nodes.outcome, two_nodes.measured) == ("PASS", pytest.approx(434.99))
    tokens = found["training.tokens_per_s_per_gpu"]
    assert [each.outcome for each in tokens] == ["PASS", "PASS"]
    assert tokens[1].measured == pytest.approx(8572.6, abs=0.1)
    slow = replace(runs[1].point, tokens=runs[1].point.tokens * 499 // 8573)
    rows = tuple(replace(row, busbw_gb_per_s=349.0) for row in runs[1].rows)
    found = _checks([replace(runs[1], point=slow, rows=rows)], ITS_RULE)
    for check in ("collectives.all_reduce", "training.tokens_per_s_per_gpu"):
        assert [each.outcome for each in found[check]] == ["FAIL"], check


def test_what_it_did_not_measure_is_not_run() -> None:
    checks = _checks(_runs())
    assert [check.outcome for check in checks["connectivity.pairs"]] == ["NOT_RUN"]
    assert [check.outcome for check in checks["readiness.gpus"]] == ["NOT_RUN"]
    assert [check.outcome for check in checks["training.loss"]] == ["NOT_RUN"]


def test_two_nodes_without_one_have_no_efficiency() -> None:
    (efficiency,) = _checks(_runs()[1:])["training.scaling_efficiency"]
    assert efficiency.outcome == "NOT_RUN"


def test_points_of_two_models_are_not_compared() -> None:
    one, two = _runs()
    other = replace(two, point=replace(two.point, sequence=1024))
    (efficiency,) = _checks([one, other])["training.scaling_efficiency"]
    assert efficiency.outcome == "NOT_RUN"
    assert efficiency.reason is not None
    assert "another model, batch or sequence" in efficiency.reason


def test_a_bus_factor_of_the_wrong_world_is_caught() -> None:
    one, two = _runs()
    # The factor of eight ranks, 1.75, used for sixteen.
    rows = tuple(
        replace(row, busbw_gb_per_s=row.algbw_gb_per_s * 1.75) if row.ranks == 16 else row
        for row in two.rows
    )
    (arithmetic,) = _checks([one, replace(two, rows=rows)])["collectives.arithmetic"]
    assert arithmetic.outcome == "FAIL"
    assert arithmetic.reason is not None
    assert "bus factor 1.75 was used, all_reduce over 16 ranks has 1.875" in arithmetic.reason


@pytest.mark.feature("S001-59")
def test_the_command_fails_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--judge", *map(str, FILES), "--platform", "gpu-h100-sxm"]
    assert judge_files(words) is ExitCode.FAILED
    printed = capsys.readouterr().out
    assert re.search(r"^FAIL +training.scaling_efficiency .* 20\.67 percent", printed, re.MULTILINE)
    assert printed.endswith("FAIL\n")


@pytest.mark.parametrize("values", [{}, {"cluster_info": {}}, {"results": 3, "cluster_info": {}}])
def test_another_schema_is_refused_in_a_line(values: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"x\.json: no result of benchmark\.py") as refused:
        read_benchmark(values, "x.json")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("latency_ms", [0, float("nan")])
def test_a_row_that_took_no_time_is_refused_in_a_line(latency_ms: float) -> None:
    values = json.loads(FILES[0].read_text())
    values["results"]["nccl_benchmark"]["details"]["results_by_size"][0]["latency_ms"] = latency_ms
    with pytest.raises(DataError, match=r"x\.json: no result of .* bytes in (0\.0|nan) s"):
        read_benchmark(values, "x.json")


def test_a_bandwidth_that_is_not_a_number_agrees_with_no_formula() -> None:
    one, two = _runs()
    rows = (replace(two.rows[0], busbw_gb_per_s=float("nan")), *two.rows[1:])
    (arithmetic,) = _checks([one, replace(two, rows=rows)])["collectives.arithmetic"]
    assert arithmetic.outcome == "FAIL"


@pytest.mark.parametrize("nodes", [0, -1, 3])
def test_gpus_that_nodes_cannot_hold_are_refused_in_a_line(nodes: int) -> None:
    values = json.loads(FILES[0].read_text())
    values["cluster_info"]["nodes"] = nodes
    with pytest.raises(DataError, match=f"8 GPUs on {nodes} nodes"):
        read_benchmark(values, "x.json")
