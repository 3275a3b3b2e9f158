"""Training throughput of one run, from any file that holds one: read_run(path) -> Run.

Takes acceptance.json, a certificate, the JSON of seed 001's benchmark.py, and a table of published
numbers (`soperator-throughput`). Owns what makes two points comparable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from infra.accept import certificate, result
from infra.accept.errors import AcceptError
from stacks.text_file import read_text

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
        run = _run(values, path)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise AcceptError(f"{path}: damaged: {error!r}; get the file again") from error
    if not run.points:
        raise AcceptError(f"{path}: holds no training throughput; run the stage training")
    return run


def _run(values: Any, path: Path) -> Run:
    schema = values.get("schema") if isinstance(values, dict) else None
    if schema == result.SCHEMA:
        found = result.parse(values, str(path))
        return _measured(path, found.measurements, found.runs[0], found.hardware)
    if schema == certificate.SCHEMA:
        return _measured(path, values["measurements"], values["runs"][0], values["hardware"])
    if schema == TABLE_SCHEMA and values.get("schema_version") == TABLE_VERSION:
        return Run(
            name=path.stem,
            launcher=str(values["launcher"]),
            hardware=str(values["hardware"]),
            points=tuple(_point(each) for each in values["points"]),
        )
    if isinstance(values, dict) and {"cluster_info", "results"} <= set(values):
        return _seed_001(path, values)
    raise AcceptError(
        f"{path}: schema {schema!r} is none of {result.SCHEMA}, {certificate.SCHEMA} and "
        f"{TABLE_SCHEMA}, and it is no output of seed 001's benchmark.py"
    )


def _measured(
    path: Path,
    measurements: Mapping[str, Any],
    run: Mapping[str, Any],
    hardware: Mapping[str, Any],
) -> Run:
    points = measurements.get("training", {}).get("points", [])
    return Run(
        name=path.stem,
        launcher=str(run["launcher"]),
        hardware=str(hardware["device"]),
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


def _seed_001(path: Path, values: Mapping[str, Any]) -> Run:
    cluster, training = values["cluster_info"], values["results"]["training_benchmark"]
    details = training["details"]
    point = {
        "nodes": cluster["nodes"],
        "ranks": cluster["total_gpus"],
        "tokens_per_s": training["metric_value"],
        "model": "seed 001 encoder, 163M",
        "batch": details["batch_size"],
        "sequence": details["seq_length"],
        "dtype": "fp32",
    }
    return Run(
        name=path.stem, launcher="torchrun", hardware=cluster["gpu_model"], points=(_point(point),)
    )
