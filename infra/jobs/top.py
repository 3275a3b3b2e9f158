"""Watches the GPUs of a running job from inside its allocation, beside its own steps.

Owns the srun line, what workloads/monitoring/check_gpu_util.sh --raw prints and how its samples
become a screen. No daemon: sampling ends with the connection.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Final

from infra.clients.errors import JobsError
from infra.clients.slurm import Job, expand
from infra.clients.ssh import Connection, split_lines

GATE_PERCENT: Final = 80.0
"""A published rule of thumb: every GPU busier than this."""
MEMORY_GATE_PERCENT: Final = 50.0
"""Ours, where that rule says "high": at half and below, twice the micro batch is sure to fit."""
_POLL_S: Final = 0.5
_HISTORY: Final = 60
_BARS: Final = " .:-=+*#%@"
_SCRIPT: Final = "current/workloads/monitoring/check_gpu_util.sh"
_IB_WORD_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU at one moment; None where the driver does not tell."""

    node: str
    index: int
    utilization_percent: float | None
    memory_used_mib: float | None
    memory_mib: float | None
    power_w: float | None
    power_limit_w: float | None

    @property
    def memory_percent(self) -> float | None:
        """Memory in use, in percent of the GPU's own; None where it does not tell."""
        if self.memory_used_mib is None or not self.memory_mib:
            return None
        return 100 * self.memory_used_mib / self.memory_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSample:
    """What one node said at one moment."""

    node: str
    at_s: float
    """Seconds since 1970, by the node's clock."""
    gpus: tuple[Gpu, ...]
    ib_bytes: tuple[int, int] | None
    """Received and sent through all InfiniBand ports since the node started; None without one."""


def samples(lines: Iterable[str]) -> Iterator[NodeSample]:
    """Each node's samples as they are complete; lines of nodes may be mixed."""
    begun: dict[str, tuple[list[Gpu], list[tuple[int, int]]]] = {}
    for line in lines:
        cells = line.strip().split(",")
        if len(cells) < 2:
            continue
        kind, node, *values = cells
        gpus, ports = begun.setdefault(node, ([], []))
        try:
            match kind:
                case "gpu":
                    gpus.append(_gpu(node, values))
                case "ib":
                    _, received, sent = values
                    ports.append((_IB_WORD_BYTES * int(received), _IB_WORD_BYTES * int(sent)))
                case "end":
                    del begun[node]
                    yield NodeSample(
                        node=node,
                        at_s=float(values[0]),
                        gpus=tuple(gpus),
                        ib_bytes=(sum(p[0] for p in ports), sum(p[1] for p in ports))
                        if ports
                        else None,
                    )
                case _:
                    pass
        except (ValueError, IndexError) as error:
            raise JobsError(
                f"{node}: check_gpu_util.sh printed {line.strip()!r}, which is none of its lines; "
                "the cluster's code may be older than this checkout: run pulumi up"
            ) from error


def rates_gb_per_s(before: NodeSample, after: NodeSample) -> tuple[float, float] | None:
    """GB/s received and sent by a node between two samples; None without InfiniBand."""
    seconds = after.at_s - before.at_s
    if before.ib_bytes is None or after.ib_bytes is None or seconds <= 0:
        return None
    received, sent = (now - then for then, now in zip(before.ib_bytes, after.ib_bytes, strict=True))
    if received < 0 or sent < 0:  # the node, or its driver, started anew
        return None
    return received / seconds / 1e9, sent / seconds / 1e9


def mean_utilization(gpus: Iterable[Gpu]) -> float | None:
    """Mean over the GPUs that tell; None where none does."""
    told = [each.utilization_percent for each in gpus if each.utilization_percent is not None]
    return math.fsum(told) / len(told) if told else None


@dataclass(slots=True)
class EachGpu:
    """What each GPU did over its samples, by node and index: a gate holds for the least of them."""

    busy: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    fullest: dict[tuple[str, int], float] = field(default_factory=dict)
    """Most memory in use, in percent of the GPU's own."""

    def take(self, sample: NodeSample) -> None:
        """Adds a node's sample."""
        for gpu in sample.gpus:
            key = (gpu.node, gpu.index)
            if (busy := gpu.utilization_percent) is not None:
                self.busy.setdefault(key, []).append(busy)
            if (used := gpu.memory_percent) is not None:
                self.fullest[key] = max(used, self.fullest.get(key, 0.0))

    @property
    def least_busy(self) -> tuple[float, str] | None:
        """Mean over time of the GPU that was least busy, in percent, and which it is."""
        means = ((math.fsum(each) / len(each), key) for key, each in self.busy.items())
        least = min(means, default=None)
        return least and (least[0], f"{least[1][0]} GPU {least[1][1]}")

    @property
    def memory_percent(self) -> float | None:
        """Memory of the GPU that used least of its own, at its fullest; None where none tells."""
        return min(self.fullest.values(), default=None)


def each_gpu(found: Iterable[NodeSample]) -> EachGpu:
    """What each GPU of the samples did."""
    use = EachGpu()
    for sample in found:
        use.take(sample)
    return use


def _gpu(node: str, values: list[str]) -> Gpu:
    index, *rest = values
    # nvidia-smi prints [N/A], [NotSupported] and the like for what a GPU does not tell.
    told = (None if text.startswith("[") else float(text) for text in rest)
    names = [each.name for each in fields(Gpu)[2:]]  # in the order of check_gpu_util.sh
    return Gpu(node=node, index=int(index), **dict(zip(names, told, strict=True)))


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
    step = (
        f"srun --jobid={shlex.quote(job.id)} --overlap --nodes={num_nodes} --ntasks={num_nodes} "
        "--ntasks-per-node=1 --mem=0 --unbuffered "
        f"bash {shlex.quote(f'{code_path}/{_SCRIPT}')} --raw {every_s:g} {count}"
    )
    # srun ends as the job that it looked at: that is no failure of who looked.
    yield from samples(_lines(connection.stream(f"{step} 2>&1; true", poll_s=_POLL_S)))


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    """Whole lines; what srun itself has to say is an error of its own."""
    held = b""
    for chunk in chunks:
        lines, held = split_lines(held, chunk)
        for text in lines:
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
    seen: list[float] = field(default_factory=list)
    each: EachGpu = field(default_factory=EachGpu)

    def take(self, sample: NodeSample) -> None:
        """Adds a node's sample."""
        before = self.newest.get(sample.node)
        if before is not None and (rates := rates_gb_per_s(before, sample)) is not None:
            self.rates[sample.node] = rates
        self.newest[sample.node] = sample
        self.each.take(sample)
        mean = mean_utilization(self.gpus)
        if mean is not None:
            self.seen.append(mean)

    @property
    def gpus(self) -> Sequence[Gpu]:
        """GPUs of all nodes at the newest moment."""
        return [gpu for _, node in sorted(self.newest.items()) for gpu in node.gpus]

    @property
    def mean_percent(self) -> float | None:
        """Mean utilisation over every moment so far; None before a GPU told its own."""
        return math.fsum(self.seen) / len(self.seen) if self.seen else None

    @property
    def verdict(self) -> str:
        """PASS, FAIL or NOT RUN against the gate on every GPU, with the figures."""
        least, mean = self.each.least_busy, self.mean_percent
        if least is None or mean is None:
            nodes = ", ".join(sorted(self.newest)) or "no node"
            return f"NOT RUN: {nodes} told of no GPU (nvidia-smi is not there, or sees none)"
        busy, which = least
        word = "PASS" if busy > self.gate_percent else "FAIL"
        return (
            f"{word}: utilisation of the least busy GPU, {which}, {busy:.1f} %, gate above "
            f"{self.gate_percent:g} %; mean of all {mean:.1f} %"
        )

    @property
    def memory_verdict(self) -> str:
        """PASS, FAIL or NOT RUN against the gate on memory, with what to do."""
        least = self.each.memory_percent
        if least is None:
            return "NOT RUN: no GPU told its memory"
        gate = (
            f"memory of the least used GPU {least:.1f} %, gate above {self.memory_gate_percent:g} %"
        )
        if least > self.memory_gate_percent:
            return f"PASS: {gate}"
        return f"FAIL: {gate}; raise train.micro_batch_size and lower gradient_accumulation as much"

    @property
    def outcome(self) -> str:
        """FAIL where a gate does not hold; else NOT RUN where one could not be told; else PASS."""
        words = [each.partition(":")[0] for each in (self.verdict, self.memory_verdict)]
        return next((word for word in ("FAIL", "NOT RUN") if word in words), "PASS")

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
        return "".join(_BARS[min(last, round(each / 100 * last))] for each in self.seen[-_HISTORY:])


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.0f} %"


def _of(used: float | None, whole: float | None, unit: str) -> str | None:
    if used is None:
        return None
    return f"{used:,.0f} {unit}" if whole is None else f"{used:,.0f} of {whole:,.0f} {unit}"
