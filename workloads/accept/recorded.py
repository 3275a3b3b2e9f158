"""Results that other programs recorded, held against today's gates."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workloads.accept import collectives, training
from workloads.accept.collectives import BUS_FACTORS, Row, Transfer
from workloads.accept.gates import Check, Gates, exit_code, gates_for, not_run, overall
from workloads.accept.report import Node, check_lines
from workloads.accept.training import Point
from workloads.common.exit_codes import DataError, ExitCode, WorkloadError
from workloads.common.log import log

_MIB = 2**20
BENCHMARK_MODEL = "encoder-163m"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One recorded run."""

    nodes: int
    ranks: int
    device: str
    timestamp: str
    rows: tuple[Row, ...]
    point: Point


def read_benchmark(values: Mapping[str, Any], name: str) -> Recorded:
    """Return the run in a file of the published benchmark.py; `name` starts the messages."""
    try:
        cluster, results = values["cluster_info"], values["results"]
        ranks, nodes = int(cluster["total_gpus"]), int(cluster["nodes"])
        if not 1 <= nodes <= ranks or ranks % nodes:
            raise ValueError(f"{ranks} GPUs on {nodes} nodes")
        rows = results["nccl_benchmark"]["details"]["results_by_size"]
        training = results["training_benchmark"]
        details = training["details"]
        rate = float(training["metric_value"])
        tokens = details["batch_size"] * details["seq_length"] * ranks * details["num_steps"]
        return Recorded(
            nodes=nodes,
            ranks=ranks,
            device=cluster["gpu_model"],
            timestamp=values["timestamp"],
            rows=tuple(_row(row, ranks, nodes) for row in rows),
            point=Point(
                ranks=ranks,
                nodes=nodes,
                tokens=tokens,
                seconds=tokens / rate,
                model=BENCHMARK_MODEL,
                batch=details["batch_size"],
                sequence=details["seq_length"],
                dtype="fp32",
                loss=None,
            ),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise DataError(
            f"{name}: no result of benchmark.py --mode distributed: {error!r}; "
            "give the file that it wrote with --output"
        ) from error


def _row(row: Mapping[str, Any], ranks: int, nodes: int) -> Row:
    # Its MB are 2^20 bytes, and its "bandwidth" is already the bus bandwidth.
    num_bytes, time_s = int(row["size_mb"]) * _MIB, float(row["latency_ms"]) / 1000
    busbw = float(row["bandwidth_gbps"])
    found = Transfer(
        op="all_reduce",
        ranks=ranks,
        bytes=num_bytes,
        time_s=time_s,
        algbw_gb_per_s=busbw / BUS_FACTORS["all_reduce"](ranks),
        busbw_gb_per_s=busbw,
        wrong=None,
        source="nebius-h100-8gpu-benchmark, benchmark.py",
    )
    return {
        **asdict(found),
        "scope": "cluster" if nodes > 1 else "node",
        "nodes": node_names(nodes),
    }


def node_names(nodes: int) -> list[str]:
    """Return the names that the published table gives them: gpu-node-0, gpu-node-1."""
    return [f"gpu-node-{index}" for index in range(nodes)]


def latest(runs: Sequence[Recorded]) -> Recorded:
    """Return the run on the most ranks: the one that asks to be accepted."""
    return max(runs, key=lambda run: run.ranks)


def judge(runs: Sequence[Recorded], gates: Gates) -> list[Check]:
    """Return the checks of what the runs measured; what nobody measured is NOT RUN."""
    widest = latest(runs)
    per_node = widest.ranks // widest.nodes
    nodes = [
        Node(
            name=name,
            role="worker" if index else "master",
            ranks=tuple(range(index * per_node, (index + 1) * per_node)),
            device=widest.device,
            gpus=per_node,
            gpu_memory_gib=None,
        )
        for index, name in enumerate(node_names(widest.nodes))
    ]
    rows = [row for run in runs for row in run.rows]
    points = sorted((run.point for run in runs), key=lambda point: point.ranks)
    names = tuple(node.name for node in nodes)
    subject = f"{len(nodes)} nodes"
    missing = ("readiness.gpus", "connectivity.pairs", "collectives.send_recv", "storage.places")
    return [
        *(
            not_run(name, "the recorded run did not measure it", subject=subject, nodes=names)
            for name in missing
        ),
        *collectives.judge(rows, gates, None),
        *training.judge(points, [], nodes, gates),
    ]


def main(arguments: Sequence[str]) -> ExitCode:
    """Print the checks of recorded files and return what they come to."""
    parser = argparse.ArgumentParser(prog="python -m workloads.accept --judge")
    parser.add_argument("--judge", nargs="+", type=Path, required=True, metavar="FILE")
    parser.add_argument("--platform", required=True)
    options = parser.parse_args(arguments)
    try:
        runs = [read_benchmark(_read(path), str(path)) for path in options.judge]
        widest = latest(runs)
        checks = judge(runs, gates_for(options.platform, widest.ranks // widest.nodes))
    except WorkloadError as error:
        log(str(error))
        return error.exit_code
    for line in check_lines(checks):
        print(line)
    outcome = overall(checks)
    print(outcome.replace("_", " "))
    return exit_code(outcome)


def _read(path: Path) -> dict[str, object]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(values, dict):
        raise DataError(f"{path}: holds a {type(values).__name__}, expected an object")
    return values
