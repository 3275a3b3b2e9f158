"""An acceptance.json as the job writes it: made by the job's own code from numbers of choice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from workloads.accept import collectives, training
from workloads.accept.collectives import transfer
from workloads.accept.gates import Check, Report, fact, gates_for, hold, table
from workloads.accept.training import Point
from workloads.recipes.accept import STAGES, AcceptConfig, StageName

MODEL = "decoder-163m"


def point(ranks: int, rate: float, nodes: int = 1, step_s: Sequence[float] = ()) -> Point:
    """Training of `ranks` ranks at `rate` tokens a second each."""
    return Point(
        ranks=ranks,
        nodes=nodes,
        tokens=int(rate * ranks * 1000),
        seconds=1000.0,
        model=MODEL,
        batch=8,
        sequence=512,
        dtype="bf16",
        step_s=tuple(step_s),
        loss=3.0,
    )


def report(
    *,
    points: Sequence[Point] = (point(1, 40000), point(8, 39500), point(16, 39000, 2)),
    stages: Sequence[StageName] = STAGES,
    extra: Sequence[Check] = (),
    text: str = "",
) -> Report:
    """Two nodes with eight H100 each; `text` goes wherever a machine writes text."""
    gates = gates_for("gpu-h100-sxm", 8)
    nodes = table(
        [
            (f"worker-{index}{text}", f"NVIDIA H100 80GB HBM3{text}", 79.19)
            for index in (0, 1)
            for _ in range(8)
        ]
    )
    names = tuple(node.name for node in nodes)
    found = Report(
        config=AcceptConfig(stages=tuple(stages)),
        gates=gates,
        nodes=nodes,
        world_size=16,
        backend="nccl",
    )
    at = {"scope": "cluster", "nodes": tuple(names)}
    rows = [
        transfer("all_reduce", 16, size, size * 1.875 / rate / 1e9, **at)
        for size, rate in ((10**6, 22.3), (10**9, 410.0), (8 * 10**9, 430.0))
    ]
    if "collectives" in stages:
        found.measurements["collectives"] = [asdict(row) for row in rows]
        found.checks += collectives.judge(rows, gates, "nvls")
    if "training" in stages:
        found.measurements["training"] = {"points": [each.to_json() for each in points]}
        found.checks += training.judge(points, [[0.1]] * 16, nodes, gates)
    asked = {check.id.partition(".")[0] for check in found.checks}
    for stage in stages:
        if stage not in asked:
            found.checks.append(fact(f"{stage}.all", True, subject="all nodes", reason=""))
    found.checks += extra
    return found


def slow_gpu() -> Check:
    """A GPU of the second node that does 630 of 700 TFLOP/s."""
    limit = gates_for("gpu-h100-sxm", 8).limit("compute.gemm")
    return hold("compute.gemm", 630.0, limit, subject="rank 9", nodes=["worker-1"])


def dead_gpu(text: str = "") -> Check:
    """A node with seven of eight GPUs."""
    return fact(
        "readiness.gpus",
        False,
        subject=f"worker-0{text}",
        nodes=["worker-0"],
        reason=f"7 of 8 GPUs{text}",
    )


def write(folder: Path, made: Report, name: str = "acceptance.json") -> Path:
    """The file, as the job leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    made.write(folder / name)
    return folder / name


def values(made: Report) -> dict[str, Any]:
    """The result as plain values that went through JSON."""
    return json.loads(json.dumps(made.to_json()))
