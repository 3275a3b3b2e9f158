"""Results that other programs recorded, as the measurements that this suite judges. Pure.

Reads the JSON of seed 001's benchmark.py. It computed neither efficiency nor connectivity: a pair
of its files has what the first needs, and nothing has what the second needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workloads.accept.bus import BUS_FACTORS, Transfer
from workloads.accept.collectives import Row
from workloads.accept.scaling import Point
from workloads.common.exit_codes import DataError

_MIB = 2**20
SEED_MODEL = "seed 001 encoder, 163M"


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
    """Return the run in a file of seed 001's benchmark.py; `name` starts the messages."""
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
                model=SEED_MODEL,
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
        source="seed 001 benchmark.py",
    )
    return {
        **found.to_json(),
        "scope": "cluster" if nodes > 1 else "node",
        "nodes": node_names(nodes),
    }


def node_names(nodes: int) -> list[str]:
    """Return the names that the published table gives them: gpu-node-0, gpu-node-1."""
    return [f"gpu-node-{index}" for index in range(nodes)]


def latest(runs: Sequence[Recorded]) -> Recorded:
    """Return the run on the most ranks: the one that asks to be accepted."""
    return max(runs, key=lambda run: run.ranks)
