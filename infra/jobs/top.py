"""Watches the GPUs of a running job from inside its allocation, beside its own steps.

Owns the srun line and how samples become a screen. No daemon: sampling ends with the connection.
"""

from __future__ import annotations

import math
import shlex
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from infra.jobs.errors import JobsError
from infra.jobs.gpu_samples import (
    Gpu,
    NodeSample,
    by_node,
    mean_utilization,
    rates_gb_per_s,
    samples,
)
from infra.jobs.hostlist import expand
from infra.jobs.parse import Job
from infra.jobs.ssh import Connection

GATE_PERCENT: Final = 80.0
"""Seed 002: all GPUs busier than this."""
MEMORY_GATE_PERCENT: Final = 50.0
"""Ours, where seed 002 says "high": at half and below, twice the micro batch is sure to fit."""
_POLL_S: Final = 0.5
_HISTORY: Final = 60
_BARS: Final = " .:-=+*#%@"
_SCRIPT: Final = "current/workloads/monitoring/check_gpu_util.sh"


def watch(
    connection: Connection, code_path: str, job: Job, *, every_s: float, count: int
) -> Iterator[NodeSample]:
    """Samples of every node of the running job; `count` 0: until the job ends."""
    if job.state != "RUNNING":
        raise JobsError(
            f"job {job.id} {job.name} is {job.state}: only a running job has GPUs to look at"
        )
    # --overlap: the step shares what the job's own steps hold. --mem=0: it asks for none of it.
    # Without both numbers a step with one task a node is on the first node alone (Slurm 22.05).
    num_nodes = len(expand(job.where or ""))
    step = shlex.join(
        [
            "srun",
            f"--jobid={job.id}",
            "--overlap",
            f"--nodes={num_nodes}",
            f"--ntasks={num_nodes}",
            "--ntasks-per-node=1",
            "--mem=0",
            "--unbuffered",
            "bash",
            f"{code_path}/{_SCRIPT}",
            "--raw",
            f"{every_s:g}",
            str(count),
        ]
    )
    yield from samples(_lines(connection.stream(f"{step} 2>&1", poll_s=_POLL_S)))


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    """Whole lines; what srun itself has to say is an error of its own."""
    held = b""
    for chunk in chunks:
        *whole, held = (held + chunk).split(b"\n")
        for line in whole:
            text = line.decode(errors="replace")
            if text.startswith("srun: error"):
                raise JobsError(text.removeprefix("srun: "))
            yield text


@dataclass(slots=True, kw_only=True)
class Screen:
    """What is shown of the samples so far."""

    gate_percent: float = GATE_PERCENT
    memory_gate_percent: float = MEMORY_GATE_PERCENT
    newest: dict[str, NodeSample] = field(default_factory=dict)
    rates: dict[str, tuple[float, float]] = field(default_factory=dict)
    history: deque[float] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    seen: list[float] = field(default_factory=list)
    fullest: dict[tuple[str, int], float] = field(default_factory=dict)
    """Most memory that each GPU had in use, in percent of its own."""

    def take(self, sample: NodeSample) -> None:
        """Adds a node's sample."""
        before = self.newest.get(sample.node)
        if before is not None and (rates := rates_gb_per_s(before, sample)) is not None:
            self.rates[sample.node] = rates
        self.newest[sample.node] = sample
        for gpu in sample.gpus:
            if (used := gpu.memory_percent) is not None:
                key = (gpu.node, gpu.index)
                self.fullest[key] = max(used, self.fullest.get(key, 0.0))
        mean = mean_utilization(self.gpus)
        if mean is not None:
            self.history.append(mean)
            self.seen.append(mean)

    @property
    def gpus(self) -> Sequence[Gpu]:
        """GPUs of all nodes at the newest moment."""
        return [gpu for node in by_node(self.newest.values()).values() for gpu in node.gpus]

    @property
    def mean_percent(self) -> float | None:
        """Mean utilisation over every moment so far; None before a GPU told its own."""
        return math.fsum(self.seen) / len(self.seen) if self.seen else None

    @property
    def verdict(self) -> str:
        """PASS, FAIL or NOT RUN against the gate, with the figure."""
        mean = self.mean_percent
        if mean is None:
            nodes = ", ".join(sorted(self.newest)) or "no node"
            return f"NOT RUN: {nodes} told of no GPU (nvidia-smi is not there, or sees none)"
        word = "PASS" if mean > self.gate_percent else "FAIL"
        return f"{word}: mean utilisation {mean:.1f} %, gate above {self.gate_percent:g} %"

    @property
    def memory_percent(self) -> float | None:
        """Memory in use on the GPU that used least of its own, at its fullest; None: unknown."""
        return min(self.fullest.values(), default=None)

    @property
    def memory_verdict(self) -> str:
        """PASS, FAIL or NOT RUN against the gate on memory, with what to do."""
        least = self.memory_percent
        if least is None:
            return "NOT RUN: no GPU told its memory"
        gate = (
            f"memory of the least used GPU {least:.1f} %, gate above {self.memory_gate_percent:g} %"
        )
        if least > self.memory_gate_percent:
            return f"PASS: {gate}"
        return f"FAIL: {gate}; raise train.micro_batch_size and lower gradient_accumulation as much"

    @property
    def passed(self) -> bool | None:
        """Whether every gate holds; None where one could not be told and none failed."""
        gates = (
            (self.mean_percent, self.gate_percent),
            (self.memory_percent, self.memory_gate_percent),
        )
        if any(value is not None and value <= gate for value, gate in gates):
            return False
        return None if any(value is None for value, _ in gates) else True

    def rows(self) -> list[tuple[object, ...]]:
        """Node, GPU, utilisation, memory, power; then a row for each node with InfiniBand."""
        found: list[tuple[object, ...]] = [
            (
                gpu.node,
                gpu.index,
                _percent(gpu.utilization_percent),
                _of(gpu.memory_used_mib, gpu.memory_mib, "MiB"),
                _of(gpu.power_w, gpu.power_limit_w, "W"),
            )
            for gpu in self.gpus
        ]
        for node, (received, sent) in sorted(self.rates.items()):
            text = f"InfiniBand {received:.2f} GB/s in, {sent:.2f} GB/s out"
            found.append((node, None, None, text, None))
        return found

    def sparkline(self) -> str:
        """Mean utilisation of the last moments, a character each from 0 to 100 %."""
        last = len(_BARS) - 1
        return "".join(_BARS[min(last, round(each / 100 * last))] for each in self.history)


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.0f} %"


def _of(used: float | None, whole: float | None, unit: str) -> str | None:
    if used is None:
        return None
    return f"{used:,.0f} {unit}" if whole is None else f"{used:,.0f} of {whole:,.0f} {unit}"
