"""Holds recorded results against today's gates: what a published run would have been told.

Usage: python -m workloads.accept --judge one_node.json two_nodes.json --platform gpu-h100-sxm
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from workloads.accept import collectives, scaling
from workloads.accept.gates import Gates, gates_for
from workloads.accept.nodes import Node
from workloads.accept.outcome import Check, exit_code, not_run, overall
from workloads.accept.recorded import Recorded, latest, node_names, read_benchmark
from workloads.accept.table import table
from workloads.common.exit_codes import DataError, ExitCode, WorkloadError
from workloads.common.log import log


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
        *scaling.judge(points, [], nodes, gates),
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
    for line in table(checks):
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
