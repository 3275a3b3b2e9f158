"""Bare metal against Kubernetes: any two result files, overhead with its interval, a 3 % gate."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cost.report.charts import Axis, Series
from infra.cli.main import app
from infra.reports.acceptance import certificate, comparison
from infra.reports.acceptance.comparison import Comparison, Run, compare, read_run, t_quantile
from infra.reports.acceptance.run import AcceptError
from tests.unit.accept import acceptance

RECORDED = Path(__file__).parent / "recorded"
BARE, KUBERNETES = RECORDED / "seed004_bare_metal.json", RECORDED / "seed004_kubernetes.json"


def _steps(mean_s: float, noise: float, seed: int, count: int = 50) -> list[float]:
    draw = random.Random(seed)
    return [mean_s * (1 + noise * draw.uniform(-1, 1)) for _ in range(count)]


def _run(folder: Path, name: str, factor: float, noise: float = 0.01) -> Run:
    """One, two and four nodes; steps take `factor` times as long as 0.1 s."""
    points = [
        acceptance.point(
            8 * nodes, 40000 / factor, nodes, _steps(0.1 * factor, noise, seed=nodes + len(name))
        )
        for nodes in (1, 2, 4)
    ]
    made = acceptance.report(points=points)
    return read_run(acceptance.write(folder, made, f"{name}.json"))


def _found(tmp_path: Path, factor: float, noise: float = 0.01) -> Comparison:
    return compare(_run(tmp_path, "bare", 1.0, noise), _run(tmp_path, "kube", factor, noise))


@pytest.mark.feature(
    "S004-33", "S004-34", "S004-38", "S004-39", "S004-40", "S004-41", "S004-42", "S004-43"
)
def test_the_decks_table_recomputes_but_for_its_sign() -> None:
    found = compare(read_run(BARE), read_run(KUBERNETES))
    assert [point.tokens_per_s for point in (*found.first.points, *found.second.points)] == [
        *(48941, 97541, 185090, 919803, 1747626, 3236345),
        *(48131, 95545, 182791, 894208, 1724417, 3268835),
    ]
    assert [(row[2], row[0], row[3], row[4]) for row in comparison.rows(found)] == [
        ("GPT-3 126M", "1", "919,803", "894,208"),
        ("GPT-3 126M", "2", "1,747,626", "1,724,417"),
        ("GPT-3 126M", "4", "3,236,345", "3,268,835"),
        ("GPT-3 5B", "1", "48,941", "48,131"),
        ("GPT-3 5B", "2", "97,541", "95,545"),
        ("GPT-3 5B", "4", "185,090", "182,791"),
    ]
    overheads = {(row.workload, row.nodes): round(row.overhead_percent, 2) for row in found.rows}
    assert [overheads["GPT-3 5B", nodes] for nodes in (1, 2, 4)] == [1.66, 2.05, 1.24]
    # It prints 1.00 for the last: Kubernetes was faster there, which is no overhead at all.
    assert [overheads["GPT-3 126M", nodes] for nodes in (1, 2, 4)] == [2.78, 1.33, -1.0]
    assert found.outcome == "PASS"
    assert found.first.hardware == "4x DGX A100-80GB, 8x 200 Gbit/s HDR a node"
    assert max(point.ranks for point in found.first.points) == 32
    assert max(overheads.values()) == 2.78
    assert "a negative overhead: the second run is faster" in comparison.notes(found)
    assert {row.low_percent for row in found.rows} == {None}, "single numbers have no interval"


@pytest.mark.feature("S004-26")
def test_the_decks_scaling_recomputes() -> None:
    run = read_run(BARE)
    rate = {
        (dict(point.workload)["model"], point.nodes): point.tokens_per_s for point in run.points
    }
    assert rate["GPT-3 5B", 4] / 4 / rate["GPT-3 5B", 1] == pytest.approx(0.946, abs=0.001)
    assert rate["GPT-3 126M", 4] / 4 / rate["GPT-3 126M", 1] == pytest.approx(0.880, abs=0.001)


@pytest.mark.feature("S004-01", "S004-46")
@pytest.mark.parametrize(
    ("factor", "noise", "outcome"),
    [
        (1.01, 0.01, "PASS"),
        (1.06, 0.01, "FAIL"),
        (1.03, 0.30, "NOT_RUN"),  # too noisy to tell
    ],
)
def test_the_whole_interval_decides(
    factor: float, noise: float, outcome: str, tmp_path: Path
) -> None:
    found = _found(tmp_path, factor, noise)
    assert found.outcome == outcome
    assert comparison.notes(found)[-1].endswith(": overhead under 3 %")
    assert [row.nodes for row in found.rows] == [1, 2, 4]
    for row in found.rows:
        assert row.low_percent is not None
        assert row.high_percent is not None
        assert row.low_percent < row.overhead_percent < row.high_percent
        assert row.overhead_percent == pytest.approx(100 * (1 - 1 / factor), abs=0.01)


@pytest.mark.feature("S004-46")
@pytest.mark.parametrize(("percent", "outcome"), [(2.9, "PASS"), (3.1, "FAIL")])
def test_of_single_numbers_the_worst_overhead_decides(percent: float, outcome: str) -> None:
    """The deck prints no step times; one pair over the limit is enough."""
    bare = read_run(BARE)
    *points, last = bare.points
    points.append(replace(last, tokens_per_s=last.tokens_per_s * (1 - percent / 100)))
    assert compare(bare, replace(bare, points=tuple(points))).outcome == outcome


def test_the_interval_holds_the_truth_about_as_often_as_it_says(tmp_path: Path) -> None:
    points = [acceptance.point(8, 40000, 1)]
    made = acceptance.report(points=points)
    hits = 0
    for seed in range(200):
        runs = []
        for offset in (0, 1000):
            steps = _steps(0.1, 0.2, seed + offset)
            (point,) = [acceptance.point(8, 8 * 512 / (sum(steps) / len(steps)), 1, steps)]
            made.measurements["training"] = {"points": [point.to_json()]}
            runs.append(read_run(acceptance.write(tmp_path, made)))
        (row,) = compare(*runs).rows
        assert row.low_percent is not None
        assert row.high_percent is not None
        hits += row.low_percent <= 0 <= row.high_percent
    assert 180 <= hits <= 200  # 95 % of 200 is 190


@pytest.mark.parametrize(
    ("freedom", "expected"), [(4, 2.776), (9, 2.262), (18, 2.101), (1e9, 1.96)]
)
def test_quantiles_are_those_of_the_tables(freedom: float, expected: float) -> None:
    assert t_quantile(freedom) == pytest.approx(expected, abs=0.01)


@pytest.mark.feature("S004-01")
def test_results_of_two_formats_are_compared_and_different_workloads_are_not(
    tmp_path: Path,
) -> None:
    seed = RECORDED / "seed001_1_node.json"
    (point,) = read_run(seed).points
    assert (point.nodes, point.ranks, point.tokens_per_s) == (1, 8, 331742.7)
    found = compare(read_run(seed), _run(tmp_path, "ours", 1.0))
    assert found.outcome == "NOT_RUN"
    assert any("nothing to compare" in line for line in comparison.notes(found))
    assert compare(read_run(seed), read_run(seed)).outcome == "PASS"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "schema None is none of"),
        ('{"schema": "soperator-throughput", "schema_version": 2}', "is none of"),
        ('{"schema": "soperator-throughput", "schema_version": 1, "launcher": "x"}', "damaged"),
    ],
)
def test_a_file_of_another_kind_is_refused_in_a_line(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(AcceptError, match=message) as refused:
        read_run(path)
    assert "\n" not in str(refused.value)


@pytest.mark.feature("S004-44")
def test_the_command_prints_the_table_writes_the_page_and_ends_with_the_outcome(
    tmp_path: Path,
) -> None:
    page = tmp_path / "c.html"
    done = CliRunner().invoke(
        app, ["runs", "overhead", str(BARE), str(KUBERNETES), "-o", str(page)]
    )
    assert done.exit_code == 0, done.output
    assert "-1.00 %" in done.output
    assert done.output.rstrip().endswith(
        "PASS: overhead under 3 %, 6 of 6 pairs without an interval"
    )
    assert page.read_text().count("<svg") == 2
    strict = ["runs", "overhead", str(BARE), str(KUBERNETES), "--limit", "2", "--format", "json"]
    done = CliRunner().invoke(app, strict)
    assert done.exit_code == 1
    assert json.loads(done.stdout)["outcome"] == "FAIL"


@pytest.mark.feature("S004-44")
def test_the_graphs_draw_what_was_measured_beside_the_ideal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: dict[str, tuple[str, str, dict[str, list[tuple[float, float]]]]] = {}

    def chart(_: str, *, title: str, x: Axis, y: Axis, series: list[Series], **__: object) -> str:
        lines = {
            each.name: [(float(place), float(value)) for place, value in each.points]
            for each in series
        }
        drawn[title] = (x.label, y.label, lines)
        assert y.reach == 0, "from zero up, so that no difference looks larger than it is"
        return "<svg>"

    monkeypatch.setattr(certificate, "line_chart", chart)
    comparison.html(compare(read_run(BARE), read_run(KUBERNETES)))
    nodes = (1, 2, 4)
    assert drawn.keys() == {"GPT-3 5B", "GPT-3 126M"}
    assert drawn["GPT-3 5B"] == (
        "nodes",
        "tokens/s",
        {
            "first: bare metal": [*zip(nodes, (48941, 97541, 185090), strict=True)],
            "second: kubernetes": [*zip(nodes, (48131, 95545, 182791), strict=True)],
            "ideal": [(each, 48941 * each) for each in nodes],
        },
    )
    points = [{"ranks": 16, "tokens_per_s": 150.0}, {"ranks": 8, "tokens_per_s": 100.0}]
    certificate.scaling(points)
    lines = {"measured": [(8, 100), (16, 150)], "ideal": [(8, 100), (16, 200)]}
    assert drawn["Scaling of training"] == ("ranks", "tokens/s", lines)


def test_a_comparison_that_could_not_be_made_is_told_from_one_that_failed(tmp_path: Path) -> None:
    damaged = tmp_path / "x.json"
    damaged.write_text("{")
    for files in ([str(BARE)], [str(BARE), str(damaged)]):
        assert CliRunner().invoke(app, ["runs", "overhead", *files]).exit_code == 2
