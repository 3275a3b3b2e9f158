"""What each GPU does alone: matrix products, copies in its memory, copies from the host.

All ranks run at the same time: a GPU that is slow only under shared power or PCIe shows here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from workloads.accept.config import ComputeConfig
from workloads.accept.gates import Gates
from workloads.accept.nodes import Node, name_of
from workloads.accept.outcome import Check, fact, hold
from workloads.common.dist import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """One rank's rates."""

    gemm_tflops: float
    hbm_gb_per_s: float
    """Bytes read and written by a copy inside the memory of the device, over its time."""
    host_to_device_gb_per_s: float | None
    """From pinned memory; None on CPU."""
    is_right: bool
    """Whether the product has the value that it must have."""


_CHECKS = (
    ("compute.gemm", "gemm_tflops"),
    ("compute.hbm", "hbm_gb_per_s"),
    ("compute.host_to_device", "host_to_device_gb_per_s"),
)


def measure(world: World, config: ComputeConfig) -> list[dict[str, Any]]:
    """Return the rates of each rank in rank order, on every rank."""
    gemm, is_right = _gemm(world, config)
    rates = Rates(
        gemm_tflops=gemm,
        hbm_gb_per_s=_copy(world, config),
        host_to_device_gb_per_s=_from_host(world, config),
        is_right=is_right,
    )
    return [
        {"rank": rank, **values}
        for rank, values in enumerate(
            world.gather({name: getattr(rates, name) for name in Rates.__slots__})
        )
    ]


def judge(rows: Sequence[dict[str, Any]], nodes: Sequence[Node], gates: Gates) -> list[Check]:
    """Return: right values, the slowest rank against each limit, and the spread of all ranks."""
    wrong = [row["rank"] for row in rows if not row["is_right"]]
    checks = [
        fact(
            "compute.values",
            not wrong,
            subject=f"{len(rows)} ranks",
            nodes=sorted({name_of(nodes, rank) for rank in wrong}),
            reason=f"ranks {wrong}: a matrix product came out wrong: drain the node",
        )
    ]
    for check, name in _CHECKS:
        known = [row for row in rows if row[name] is not None]
        limit, spread_limit = gates.limit(check), gates.limit(f"{check}_spread")
        if not known:
            continue
        slow = min(known, key=lambda row: row[name])
        at = {
            "subject": f"rank {slow['rank']}, the slowest of {len(known)}",
            "nodes": (name_of(nodes, slow["rank"]),),
        }
        if limit is not None:
            checks.append(hold(check, slow[name], limit, **at))
        if spread_limit is not None and len(known) > 1:
            checks.append(
                hold(
                    f"{check}_spread",
                    spread_percent([row[name] for row in known]),
                    spread_limit,
                    **at,
                )
            )
    return checks


def spread_percent(values: Sequence[float]) -> float:
    """Return what lies between the slowest and the fastest, in percent of the mean."""
    return 100 * (max(values) - min(values)) / (sum(values) / len(values))


def _gemm(world: World, config: ComputeConfig) -> tuple[float, bool]:
    import torch

    size = config.matrix_size
    dtype = torch.bfloat16 if world.device.type == "cuda" else torch.float32
    left = torch.full((size, size), 0.5, dtype=dtype, device=world.device)
    right = torch.full((size, size), 2.0, dtype=dtype, device=world.device)
    out = torch.empty_like(left)
    torch.matmul(left, right, out=out)
    is_right = bool((out == float(size)).all())
    # A GPU is faster on constants: they flip few bits and take little power.
    left.normal_()
    right.normal_()
    seconds = _seconds(world, lambda: torch.matmul(left, right, out=out), config.iterations)
    return 2 * size**3 / seconds / 1e12, is_right


def _copy(world: World, config: ComputeConfig) -> float:
    import torch

    source = torch.empty(config.copy_mb * 10**6 // 4, device=world.device).fill_(1.0)
    into = torch.empty_like(source)
    seconds = _seconds(world, lambda: into.copy_(source), config.iterations)
    return 2 * source.numel() * 4 / seconds / 1e9


def _from_host(world: World, config: ComputeConfig) -> float | None:
    import torch

    if world.device.type != "cuda":
        return None
    source = torch.empty(config.copy_mb * 10**6 // 4, pin_memory=True)
    into = torch.empty(source.shape, device=world.device)
    seconds = _seconds(world, lambda: into.copy_(source, non_blocking=True), config.iterations)
    return source.numel() * 4 / seconds / 1e9


def _seconds(world: World, call: Callable[[], object], iterations: int) -> float:
    """Seconds of one call, warm, begun by all ranks together."""
    call()
    world.synchronize()
    world.barrier()
    began = time.perf_counter()
    for _ in range(iterations):
        call()
    world.synchronize()
    return (time.perf_counter() - began) / iterations
