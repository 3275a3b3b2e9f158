"""Reads what workloads/monitoring/check_gpu_util.sh --raw prints: pure, from lines to samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from infra.jobs.errors import JobsError

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
    received_bytes: int | None
    """Through all InfiniBand ports since the node started; None without one."""
    sent_bytes: int | None


@dataclass(slots=True)
class _Begun:
    gpus: list[Gpu] = field(default_factory=list)
    ports: list[tuple[int, int]] = field(default_factory=list)


def samples(lines: Iterable[str]) -> Iterator[NodeSample]:
    """Each node's samples as they are complete; lines of nodes may be mixed."""
    begun: dict[str, _Begun] = {}
    for line in lines:
        fields = line.strip().split(",")
        if len(fields) < 2:
            continue
        kind, node, *values = fields
        sample = begun.setdefault(node, _Begun())
        try:
            match kind:
                case "gpu":
                    sample.gpus.append(_gpu(node, values))
                case "ib":
                    _, received, sent = values
                    sample.ports.append((int(received), int(sent)))
                case "end":
                    yield _whole(node, float(values[0]), begun.pop(node))
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
    if (
        before.received_bytes is None
        or before.sent_bytes is None
        or after.received_bytes is None
        or after.sent_bytes is None
        or seconds <= 0
    ):
        return None
    received = after.received_bytes - before.received_bytes
    sent = after.sent_bytes - before.sent_bytes
    if received < 0 or sent < 0:  # the node, or its driver, started anew
        return None
    return received / seconds / 1e9, sent / seconds / 1e9


def mean_utilization(gpus: Iterable[Gpu]) -> float | None:
    """Mean over the GPUs that tell; None where none does."""
    told = [each.utilization_percent for each in gpus if each.utilization_percent is not None]
    return math.fsum(told) / len(told) if told else None


def memory_percent(found: Iterable[NodeSample]) -> float | None:
    """Memory in use on the GPU that used least of its own, at its fullest; None where none tells.

    In percent of the GPU's memory.
    """
    fullest: dict[tuple[str, int], float] = {}
    for gpu in (gpu for sample in found for gpu in sample.gpus):
        if (used := gpu.memory_percent) is not None:
            key = (gpu.node, gpu.index)
            fullest[key] = max(used, fullest.get(key, 0.0))
    return min(fullest.values(), default=None)


def by_node(found: Iterable[NodeSample]) -> Mapping[str, NodeSample]:
    """The newest sample of each node, by name."""
    newest: dict[str, NodeSample] = {}
    for sample in found:
        newest[sample.node] = sample
    return dict(sorted(newest.items()))


def _gpu(node: str, values: list[str]) -> Gpu:
    index, *rest = values
    used_percent, used, memory, power, limit = (_number(text) for text in rest)
    return Gpu(
        node=node,
        index=int(index),
        utilization_percent=used_percent,
        memory_used_mib=used,
        memory_mib=memory,
        power_w=power,
        power_limit_w=limit,
    )


def _number(text: str) -> float | None:
    """nvidia-smi prints [N/A], [NotSupported] and the like for what a GPU does not tell."""
    return None if text.startswith("[") else float(text)


def _whole(node: str, at_s: float, begun: _Begun) -> NodeSample:
    return NodeSample(
        node=node,
        at_s=at_s,
        gpus=tuple(begun.gpus),
        received_bytes=_IB_WORD_BYTES * sum(each[0] for each in begun.ports)
        if begun.ports
        else None,
        sent_bytes=_IB_WORD_BYTES * sum(each[1] for each in begun.ports) if begun.ports else None,
    )
