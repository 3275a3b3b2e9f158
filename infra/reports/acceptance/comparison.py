"""Two runs of the same throughput job beside each other: overhead in percent, with its interval.

Overhead is what the second run loses of the first one's tokens a second; negative: it is faster.
Step times of one run are not independent, so blocks of them are compared (Welch's test on the
logarithm). The Kubernetes Job of the same ranks, for a comparison without Slurm, is here too.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from cost.report.layout import Format, Report, Table, render_report
from infra.render import kube_job
from infra.render.kube_job import PORT, Pods
from infra.reports.acceptance import certificate
from infra.reports.acceptance.run import SCHEMA, AcceptError, parse
from stacks.files import read_text
from stacks.spec import StackSpec
from stacks.spec.nodes import WorkerSpec

LIMIT_PERCENT: Final = 3.0
"""Gate of a published comparison: Kubernetes costs less; the worst that it printed is 2.78."""
_BLOCKS: Final = 10
_LEAST_BLOCKS: Final = 3
_TAIL: Final = 0.975
"""Of a two-sided interval of 95 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One pair of comparable points."""

    nodes: int
    ranks: int
    workload: str
    first: float
    """Tokens a second."""
    second: float
    overhead_percent: float
    low_percent: float | None
    """Of the interval; None where a run kept no step times."""
    high_percent: float | None
    outcome: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All pairs of two runs."""

    first: Run
    second: Run
    limit_percent: float
    rows: tuple[Row, ...]

    @property
    def outcome(self) -> str:
        """FAIL if one pair failed, NOT_RUN if one cannot be told or there is none, else PASS."""
        found = {row.outcome for row in self.rows}
        if "FAIL" in found:
            return "FAIL"
        return "PASS" if found == {"PASS"} else "NOT_RUN"


def compare(first: Run, second: Run, *, limit_percent: float = LIMIT_PERCENT) -> Comparison:
    """The points that both runs have, by workload and nodes."""
    others = {point.key: point for point in second.points}
    pairs = [(point, others[point.key]) for point in first.points if point.key in others]
    rows = [_row(one, other, limit_percent) for one, other in pairs]
    return Comparison(
        first=first,
        second=second,
        limit_percent=limit_percent,
        rows=tuple(sorted(rows, key=lambda row: (row.workload, row.ranks))),
    )


def _row(first: Point, second: Point, limit: float) -> Row:
    overhead = 100 * (1 - second.tokens_per_s / first.tokens_per_s)
    interval = _interval(first, second)
    if interval is None:
        outcome = "PASS" if overhead < limit else "FAIL"
        reason = "single numbers: no interval can be given"
    elif interval[1] < limit:
        outcome, reason = "PASS", ""
    elif interval[0] >= limit:
        outcome, reason = "FAIL", ""
    else:
        outcome, reason = "NOT_RUN", f"the interval straddles {limit:g} %: run more steps"
    low, high = interval or (None, None)
    return Row(
        nodes=first.nodes,
        ranks=first.ranks,
        workload=first.name,
        first=first.tokens_per_s,
        second=second.tokens_per_s,
        overhead_percent=overhead,
        low_percent=low,
        high_percent=high,
        outcome=outcome,
        reason=reason,
    )


def _interval(first: Point, second: Point) -> tuple[float, float] | None:
    """Low and high overhead in percent, at 95 %."""
    one, other = _blocks(first.step_s), _blocks(second.step_s)
    if min(len(one), len(other)) < _LEAST_BLOCKS:
        return None
    parts = [statistics.variance(each) / len(each) for each in (one, other)]
    total = sum(parts)
    ratio = math.log(second.tokens_per_s / first.tokens_per_s)
    if total == 0:
        exact = 100 * (1 - math.exp(ratio))
        return exact, exact
    freedom = total**2 / sum(
        part**2 / (len(each) - 1) for part, each in zip(parts, (one, other), strict=True)
    )
    reach = t_quantile(freedom) * math.sqrt(total)
    return 100 * (1 - math.exp(ratio + reach)), 100 * (1 - math.exp(ratio - reach))


def _blocks(step_s: Sequence[float]) -> list[float]:
    """The logarithm of the mean step time of each block, in order."""
    size = max(1, len(step_s) // _BLOCKS)
    whole = len(step_s) // size
    return [
        math.log(statistics.fmean(step_s[index * size : (index + 1) * size]))
        for index in range(whole)
    ]


def t_quantile(freedom: float) -> float:
    """Student's t at 97.5 %, from the normal one (Abramowitz and Stegun 26.7.5)."""
    z = statistics.NormalDist().inv_cdf(_TAIL)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms))


TABLE_SCHEMA: Final = "soperator-throughput"
TABLE_VERSION: Final = 1
_WORKLOAD: Final = ("model", "batch", "sequence", "dtype")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Training on some nodes."""

    nodes: int
    ranks: int
    tokens_per_s: float
    workload: tuple[tuple[str, Any], ...]
    step_s: tuple[float, ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """What must be the same in two runs."""
        return (self.nodes, self.ranks, self.workload)

    @property
    def name(self) -> str:
        """The workload in words."""
        said = dict(self.workload)
        size = [f"{key} {said[key]}" for key in ("batch", "sequence") if said.get(key)]
        return ", ".join([str(said["model"]), *size])


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One file's points."""

    name: str
    launcher: str
    """slurm, kubernetes, torchrun, process, or what a table says of itself."""
    hardware: str
    points: tuple[Point, ...]


def read_run(path: Path) -> Run:
    """The run in a file; another format or no training in it is refused."""
    try:
        values = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise AcceptError(f"{path}: cannot be read as JSON: {error}") from error
    try:
        run = _read_run(values, path)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise AcceptError(f"{path}: damaged: {error!r}; get the file again") from error
    if not run.points:
        raise AcceptError(f"{path}: holds no training throughput; run the stage training")
    return run


def _read_run(values: Any, path: Path) -> Run:
    schema = values.get("schema") if isinstance(values, dict) else None
    if schema == SCHEMA:
        parse(values, str(path))
        return _measured(path, values, values["run"])
    if schema == certificate.SCHEMA:
        return _measured(path, values, values["runs"][0])
    if schema == TABLE_SCHEMA and values.get("schema_version") == TABLE_VERSION:
        return Run(
            name=path.stem,
            launcher=str(values["launcher"]),
            hardware=str(values["hardware"]),
            points=tuple(_point(each) for each in values["points"]),
        )
    if isinstance(values, dict) and {"cluster_info", "results"} <= set(values):
        return _recorded_benchmark(path, values)
    raise AcceptError(
        f"{path}: schema {schema!r} is none of {SCHEMA}, {certificate.SCHEMA} and "
        f"{TABLE_SCHEMA}, and it is no output of nebius-h100-8gpu-benchmark's benchmark.py"
    )


def _measured(path: Path, values: Mapping[str, Any], run: Mapping[str, Any]) -> Run:
    points = values["measurements"].get("training", {}).get("points", [])
    return Run(
        name=path.stem,
        launcher=str(run["launcher"]),
        hardware=str(values["hardware"]["device"]),
        points=tuple(_point(each) for each in points),
    )


def _point(values: Mapping[str, Any]) -> Point:
    return Point(
        nodes=int(values["nodes"]),
        ranks=int(values["ranks"]),
        tokens_per_s=float(values["tokens_per_s"]),
        workload=tuple((key, values.get(key)) for key in _WORKLOAD),
        step_s=tuple(map(float, values.get("step_s", ()))),
    )


def _recorded_benchmark(path: Path, values: Mapping[str, Any]) -> Run:
    cluster, training = values["cluster_info"], values["results"]["training_benchmark"]
    details = training["details"]
    point = {
        "nodes": cluster["nodes"],
        "ranks": cluster["total_gpus"],
        "tokens_per_s": training["metric_value"],
        "model": "encoder-163m",
        "batch": details["batch_size"],
        "sequence": details["seq_length"],
        "dtype": "fp32",
    }
    return Run(
        name=path.stem, launcher="torchrun", hardware=cluster["gpu_model"], points=(_point(point),)
    )


HEADERS: Final = ("nodes", "ranks", "workload", "first", "second", "overhead", "95 %", "outcome")


def rows(found: Comparison) -> list[tuple[str, ...]]:
    """A row for each pair, in words."""
    return [
        (
            str(row.nodes),
            str(row.ranks),
            row.workload,
            f"{row.first:,.0f}",
            f"{row.second:,.0f}",
            f"{row.overhead_percent:+.2f} %",
            _interval_text(row),
            row.outcome.replace("_", " "),
        )
        for row in found.rows
    ]


def notes(found: Comparison) -> list[str]:
    """Who is compared, what is to be known of it, and the verdict as the last line."""
    lines = [f"first: {_run(found.first)}", f"second: {_run(found.second)}"]
    lines += list(dict.fromkeys(row.reason for row in found.rows if row.reason))
    if any(row.overhead_percent < 0 for row in found.rows):
        lines.append("a negative overhead: the second run is faster")
    if found.first.hardware != found.second.hardware:
        lines.append("the two ran on different hardware: the overhead is not that of the launcher")
    if not found.rows:
        lines.append(
            "no point has the same nodes, ranks, model, batch and sequence in both: nothing to "
            "compare"
        )
    blind = sum(row.low_percent is None for row in found.rows)
    how = f", {blind} of {len(found.rows)} pairs without an interval" if blind else ""
    outcome = found.outcome.replace("_", " ")
    lines.append(f"{outcome}: overhead under {found.limit_percent:g} %{how}")
    return lines


def plain(found: Comparison) -> dict[str, Any]:
    """The comparison as plain values."""
    return {
        "first": _run(found.first),
        "second": _run(found.second),
        "limit_percent": found.limit_percent,
        "outcome": found.outcome,
        "rows": [asdict(row) for row in found.rows],
        "notes": notes(found),
    }


def html(found: Comparison) -> str:
    """The page; every text of a file is escaped."""
    table = Table(
        title="Tokens a second of both",
        headings=HEADERS,
        rows=tuple(rows(found)),
        num_text_columns=3,
        bad_rows=frozenset(i for i, row in enumerate(found.rows) if row.outcome == "FAIL"),
    )
    page = Report(
        title="Two runs compared",
        tables=(table,),
        notes=tuple(notes(found)),
        draw_figures=lambda: tuple(_graphs(found)),
    )
    return render_report(page, Format.HTML)


def _graphs(found: Comparison) -> Iterator[str]:
    for workload in dict.fromkeys(row.workload for row in found.rows):
        mine = [row for row in found.rows if row.workload == workload]
        base = mine[0]
        lines = {
            f"first: {found.first.launcher}": [(float(row.nodes), row.first) for row in mine],
            f"second: {found.second.launcher}": [(float(row.nodes), row.second) for row in mine],
            "ideal": [(float(row.nodes), base.first / base.nodes * row.nodes) for row in mine],
        }
        if len({row.nodes for row in mine}) > 1:
            yield certificate.compared(workload, lines)


def _run(run: Any) -> str:
    return f"{run.name} ({run.launcher}, {run.hardware})"


def _interval_text(row: Row) -> str:
    if row.low_percent is None or row.high_percent is None:
        return "-"
    return f"{row.low_percent:+.2f} to {row.high_percent:+.2f}"


_RESULTS: Final = "/results"
# torchrun ends with 1 whatever a rank ended with: NOT RUN is told by the result.
_PRINT: Final = (
    "import glob, json; "
    f"found = json.load(open(glob.glob('{_RESULTS}/*/acceptance.json')[0])); "
    "print(json.dumps(found)); "
    "raise SystemExit({'FAIL': 1, 'NOT_RUN': 69}.get(found['outcome'], 0))"
)


def kube_pods(spec: StackSpec, worker: WorkerSpec, *, name: str, image: str, nodes: int) -> Pods:
    """The pods of the same ranks, a quick profile; refused where the nodeset has fewer nodes.

    `image` has this project's `workloads` on PYTHONPATH or as its working directory, and torch.
    """
    preset = worker.hardware
    assert preset is not None
    volumes = {"results": "", "scratch": "", "shm": "Memory"}
    paths = {"results": _RESULTS, "scratch": "/scratch", "shm": "/dev/shm"}  # noqa: S108
    pods = Pods(
        name=name,
        namespace="default",
        nodes=nodes,
        worker=worker,
        image=image,
        script=_script(nodes, max(1, preset.gpus)),
        gpus=preset.gpus,
        environment={
            "SOPERATOR_STACK": spec.name,
            "SOPERATOR_PLACE_RESULTS": _RESULTS,
            "SOPERATOR_PLACE_SCRATCH": "/scratch",
        },
        volumes={
            name: {"emptyDir": {"medium": medium} if medium else {}}
            for name, medium in volumes.items()
        },
        mounts=tuple({"name": name, "mountPath": path} for name, path in paths.items()),
        fails_alone=True,  # the first pod's log has the result; it may wait for one that failed
        deadline_s=3600,
    )
    kube_job.check(spec, pods)
    return pods


def read_by(pods: Pods) -> str:
    """How kubectl reads the result before the pods go."""
    first = f"batch.kubernetes.io/job-name={pods.name},batch.kubernetes.io/job-completion-index=0"
    return f"logs -l {first} --tail=1 > acceptance.json"


def _script(nodes: int, ranks: int) -> str:
    return "\n".join(
        [
            f"python -m torch.distributed.run --nnodes={nodes} --nproc-per-node={ranks} \\",
            '  --node-rank="$NODE_RANK" --master-addr="$MASTER_ADDR" \\',
            f"  --master-port={PORT} -m workloads.accept --recipe accept_gpu \\",
            # A pod's folders are its own: any other place would be measured as one that is shared.
            "  --set accept.profile=quick --set 'accept.storage.places=[\"scratch\"]'",
            "status=$?",
            f'[ "$NODE_RANK" != 0 ] || python -c "{_PRINT}" || status=$?',
            "exit $status",
        ]
    )
