"""How well a training run used what it was paid for: time, speed, memory, InfiniBand, latency.

Owns the rows, and the gates of seed 002: GPUs busy, memory well used, throughput as high as it
gets. Reads what the job left: its record, and gpu_<node>.csv of workloads/common/gpu_log.py. What
was not measured is NOT RUN and says why.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Final

from cost.run_record import RunRecord
from infra.jobs.errors import JobsError
from infra.jobs.gpu_samples import (
    Gpu,
    NodeSample,
    mean_utilization,
    memory_percent,
    rates_gb_per_s,
    samples,
)
from infra.jobs.records import read_text
from infra.jobs.top import GATE_PERCENT, MEMORY_GATE_PERCENT
from infra.report.words import duration, number

BEST_SHARE: Final = 0.95
"""Ours: a run below this part of the fastest of its kind left speed on the table."""
_SPEED: Final = "train_tokens_per_s"
_NOT_RUN: Final = "NOT RUN"
_NO_GPU: Final = "no GPU told: nvidia-smi is not on its nodes, or the job is older than the samples"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """All GPUs of the run at one time."""

    minute: float
    """Since the first sample."""
    utilization_percent: float
    memory_percent: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """What the GPUs of a run did."""

    moments: tuple[Moment, ...]
    least_memory_percent: float | None
    """Of the GPU whose memory was used least, at its fullest."""
    received_gb_per_s: float | None
    """A node's mean through InfiniBand; None without a port."""
    sent_gb_per_s: float | None
    num_nodes: int
    """Nodes with a GPU that told its utilisation or memory."""
    problem: str | None = None

    @property
    def mean_percent(self) -> float | None:
        """Mean utilisation over the run; None without a sample."""
        busy = [each.utilization_percent for each in self.moments]
        return math.fsum(busy) / len(busy) if busy else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the summary."""

    name: str
    value: str
    verdict: str | None
    """PASS, FAIL or NOT RUN of a gate; None for a figure without one."""
    note: str


def gpu_use(folder: Path) -> GpuUse:
    """The samples in a run's folder, of all its nodes."""
    found: list[NodeSample] = []
    problem = None
    for path in sorted(folder.glob("gpu_*.csv")):
        try:
            # The last line may be cut by the end of the job.
            found += samples(read_text(path).rpartition("\n")[0].splitlines())
        except JobsError as error:
            problem = f"{path.name}: {error}"
    received, sent = _mean_rates(found)
    return GpuUse(
        moments=tuple(_moments(found)),
        least_memory_percent=memory_percent(found),
        received_gb_per_s=received,
        sent_gb_per_s=sent,
        num_nodes=len({gpu.node for each in found for gpu in each.gpus if _tells(gpu)}),
        problem=problem,
    )


def summary(run: RunRecord, use: GpuUse, records: Sequence[RunRecord]) -> tuple[Row, ...]:
    """Time, throughput, memory, InfiniBand, storage and latency of the run, gates judged."""
    metrics = run.metrics
    device = run.hardware.device if run.hardware else "unknown device"
    missing = _missing(use, run.hardware.num_nodes if run.hardware else 1)
    return (
        Row(
            name="Training time",
            value=duration(metrics.get("train_time_s", run.duration_s)),
            verdict=None,
            note=f"the job took {duration(run.duration_s)}, model and data included",
        ),
        _throughput(run, records),
        _figure("Model FLOP utilisation", metrics.get("useful_token_mfu_percent"), " %",
                f"of the dense bf16 peak; {device} is not in its table"),
        _gated("GPU utilisation", use.mean_percent, GATE_PERCENT, missing,
               "mean over the run"),
        _gated("GPU memory", use.least_memory_percent, MEMORY_GATE_PERCENT, missing,
               _memory_note(metrics)),
        _infiniband(use),
        _figure("Storage: checkpoint", metrics.get("checkpoint_stall_s"), " s",
                "training stands still for one; no checkpoint was due"),
        _figure("Storage: waiting for rows", metrics.get("data_wait_time_percent"), " %",
                "of the time; not measured by this run"),
        _latency(metrics),
        _fabric(records),
    )  # fmt: skip


def best_of_kind(run: RunRecord, records: Iterable[RunRecord]) -> RunRecord | None:
    """The fastest other passed run of the same recipe on as many of the same nodes."""
    hardware = run.hardware
    others = [
        each
        for each in records
        if each.path != run.path
        and each.outcome == "PASS"
        and (each.kind, each.recipe, each.model) == (run.kind, run.recipe, run.model)
        and each.hardware is not None
        and hardware is not None
        and (each.hardware.preset, each.hardware.device, each.hardware.num_nodes)
        == (hardware.preset, hardware.device, hardware.num_nodes)
        and each.metrics.get(_SPEED)
    ]
    return max(others, key=lambda each: each.metrics[_SPEED], default=None)


def speeds(records: Iterable[RunRecord]) -> tuple[tuple[RunRecord, Decimal], ...]:
    """Passed training runs that measured their speed, oldest first."""
    return tuple(
        (each, each.metrics[_SPEED])
        for each in records
        if each.kind == "train" and each.outcome == "PASS" and _SPEED in each.metrics
    )


def _throughput(run: RunRecord, records: Sequence[RunRecord]) -> Row:
    speed = run.metrics.get(_SPEED)
    if speed is None:
        return Row(
            name="Throughput", value="-", verdict=_NOT_RUN, note="fewer than two steps were trained"
        )
    value = f"{number(speed)} tokens/s"
    if (per_gpu := run.metrics.get("train_tokens_per_s_per_gpu")) is not None:
        value += f", {number(per_gpu)} a rank"
    best = best_of_kind(run, records)
    if best is None:
        note = "the first run of this recipe on these nodes: nothing to hold it against"
        return Row(name="Throughput", value=value, verdict=_NOT_RUN, note=note)
    share = float(speed / best.metrics[_SPEED])
    return Row(
        name="Throughput",
        value=value,
        verdict="PASS" if share >= BEST_SHARE else "FAIL",
        note=f"{100 * share:.0f} % of the fastest other run on such nodes, job {best.job_id}; gate "
        f"{100 * BEST_SHARE:.0f} %",
    )


def _missing(use: GpuUse, num_nodes: int) -> str | None:
    """Why its samples do not tell of the whole run; None where they do."""
    if use.problem is not None or not use.num_nodes:
        return use.problem or _NO_GPU
    if use.num_nodes < num_nodes:
        return f"only {use.num_nodes} of {num_nodes} nodes told"
    return None


def _gated(name: str, value: float | None, gate: float, missing: str | None, note: str) -> Row:
    if value is None:
        return Row(name=name, value="-", verdict=_NOT_RUN, note=missing or _NO_GPU)
    if missing is not None:
        # A part of a run passes and fails no gate: what is not there may be the rest of it.
        shown = f"{value:.1f} %"
        return Row(name=name, value=shown, verdict=_NOT_RUN, note=f"{note}; {missing}")
    return Row(
        name=name,
        value=f"{value:.1f} %",
        verdict="PASS" if value > gate else "FAIL",
        note=f"{note}; gate above {gate:g} %",
    )


def _memory_note(metrics: Mapping[str, Decimal]) -> str:
    note = "of the least used GPU, at its fullest"
    if (peak := metrics.get("peak_gpu_memory_gib")) is not None:
        note += f"; {number(peak)} GiB of tensors on rank 0"
    if (planned := metrics.get("planned_gpu_memory_gib")) is not None:
        note += f", {number(planned)} GiB planned"
    return note


def _figure(name: str, value: Decimal | None, unit: str, note: str) -> Row:
    """A measured figure with the first part of its note, or NOT RUN with the second."""
    about, _, missing = note.partition("; ")
    if value is None:
        return Row(name=name, value="-", verdict=_NOT_RUN, note=missing)
    return Row(name=name, value=f"{number(value)}{unit}", verdict=None, note=about)


def _infiniband(use: GpuUse) -> Row:
    if use.received_gb_per_s is None or use.sent_gb_per_s is None:
        note = "its nodes have no InfiniBand port, or it was not sampled"
        return Row(name="InfiniBand", value="-", verdict=_NOT_RUN, note=note)
    value = f"{use.received_gb_per_s:.2f} GB/s in, {use.sent_gb_per_s:.2f} GB/s out"
    return Row(name="InfiniBand", value=value, verdict=None, note="a node's mean over the run")


def _latency(metrics: Mapping[str, Decimal]) -> Row:
    median, worst = metrics.get("median_train_step_s"), metrics.get("p99_train_step_s")
    if median is None or worst is None:
        return _figure("Step", metrics.get("train_step_s"), " s", "mean; fewer than two steps")
    value = f"{number(median)} s, {number(worst)} s at the 99th percentile"
    return Row(name="Step", value=value, verdict=None, note="time of a train step")


def _fabric(records: Sequence[RunRecord]) -> Row:
    """What the newest acceptance measured between all GPUs."""
    found = [each for each in records if "busbw_gb_per_s" in each.metrics]
    if not found:
        note = "soperator submit accept measures all-reduce, storage and every pair"
        return Row(name="All-reduce of the cluster", value="-", verdict=_NOT_RUN, note=note)
    newest = max(found, key=lambda each: each.finished_at)
    return Row(
        name="All-reduce of the cluster",
        value=f"{number(newest.metrics['busbw_gb_per_s'])} GB/s bus bandwidth",
        verdict=None,
        note=f"acceptance job {newest.job_id}; storage and pairs stand in its acceptance.json",
    )


def _moments(found: Sequence[NodeSample]) -> Iterable[Moment]:
    """One for each interval of ten seconds in which a GPU told its utilisation."""
    slots: dict[int, list[NodeSample]] = defaultdict(list)
    start_s = min((each.at_s for each in found), default=0.0)
    for each in found:
        slots[int((each.at_s - start_s) / 10)].append(each)
    for slot in sorted(slots):
        busy = mean_utilization(gpu for each in slots[slot] for gpu in each.gpus)
        if busy is not None:
            yield Moment(
                minute=slot / 6,
                utilization_percent=busy,
                memory_percent=memory_percent(slots[slot]),
            )


def _mean_rates(found: Sequence[NodeSample]) -> tuple[float | None, float | None]:
    """GB/s in and out of a node, over its first and last sample, as the mean of all nodes."""
    by_node: dict[str, list[NodeSample]] = defaultdict(list)
    for each in found:
        by_node[each.node].append(each)
    rates = [
        rate
        for each in by_node.values()
        if (rate := rates_gb_per_s(min(each, key=_at), max(each, key=_at))) is not None
    ]
    if not rates:
        return None, None
    received = math.fsum(rate[0] for rate in rates) / len(rates)
    return received, math.fsum(rate[1] for rate in rates) / len(rates)


def _tells(gpu: Gpu) -> bool:
    return gpu.utilization_percent is not None or gpu.memory_percent is not None


def _at(sample: NodeSample) -> float:
    return sample.at_s
