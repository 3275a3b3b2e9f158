"""What a report is made from, and how well a training run used what it was paid for.

GPUs are to be busy, memory well used, throughput as high as it gets. Reads
what the job left: its record, and gpu_<node>.csv of workloads/common/launch.py. What was not
measured is NOT RUN and says why.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from cost.bill.bill import Bill
from cost.bill.bill import bill as make_bill
from cost.chat.unit_costs import UnitCosts
from cost.run_record import Lineage, RunRecord, lineage, load_run_records
from infra.clients.errors import JobsError
from infra.jobs import top
from infra.jobs.records import losses, read_object, read_text, with_history
from infra.operate.prices import price_book
from stacks.spec import StackSpec


def usd(amount: Decimal | None) -> str:
    """Whole dollars above 100, cents below."""
    if amount is None:
        return "unknown"
    return f"${amount:,.0f}" if abs(amount) >= 100 else f"${amount:,.2f}"


def number(value: Decimal | float) -> str:
    """A figure with three or four significant digits, in plain notation."""
    value = float(value)
    if value == int(value) and abs(value) < 1e6:
        return f"{value:,.0f}"
    if abs(value) < 1:
        return f"{value:.{2 - math.floor(math.log10(abs(value)))}f}"
    places = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2
    return f"{value:,.{places}f}"


def p_text(p_value: float, resamples: int | None) -> str:
    """A p of resampling; so many resamples tell nothing below 1 in one more."""
    floor = 0 if resamples is None else 1 / (1 + resamples)
    return f"<= {floor:.2g}" if p_value <= floor else f"{p_value:.4f}"


def duration(seconds: Decimal | float) -> str:
    """Seconds as `1 h 02 min`, `3 min 04 s` or `12 s`."""
    total = round(float(seconds))
    hours, minutes, rest = total // 3600, total % 3600 // 60, total % 60
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def figure(value: float, unit: str) -> str:
    """A metric of quality.py: a share as percent with three digits, any other as a number."""
    return f"{value:.3g} {unit}" if unit else number(value)


def signed(value: float, unit: str = "") -> str:
    """A difference of a metric with its sign, that of a share in points."""
    shown = f"{value:.3g}" if unit else number(value)
    return f"+{shown}" if value > 0 else shown


def span_of_days(days: Decimal | float) -> str:
    """Days; hours and minutes below one, minutes below an hour."""
    seconds = float(days) * 86400
    if days >= 1:
        return f"{number(days)} days"
    return f"{seconds / 60:.0f} min" if 60 <= seconds < 3570 else duration(seconds)


_MODELS = ("base_model", "finetuned_model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything on the page; no text is markup yet."""

    spec: StackSpec
    bill: Bill
    """With what was measured; of a stack with errors, without its parts."""
    assumed: UnitCosts
    """Unit costs without any measurement."""
    records: tuple[RunRecord, ...]
    """Oldest first."""
    lineage: Lineage
    """The runs that the figures are of; the others are listed apart."""
    losses: tuple[tuple[int, float], ...]
    """(step, loss) of the lineage's training, steps from 1."""
    eval_losses: tuple[tuple[int, float], ...]
    """The same of its held-out rows."""
    gpus: GpuUse | None
    """What the GPUs of the training did; None without it."""
    evaluation: Mapping[str, Any] | None
    """Result of the lineage's evaluation: base_model, finetuned_model, comparison."""
    problems: tuple[str, ...]


def collect(spec: StackSpec, state: Path, folders: Collection[Path] | None = None) -> Report:
    """The report's content for one stack; `folders`: of the runs in these alone, None: of all."""
    found, damaged = load_run_records(state / "runs" / spec.name)
    problems = list(damaged)
    found = [each for each in found if folders is None or Path(each.path).parent in folders]
    records = tuple(sorted(found, key=lambda each: (each.finished_at, each.job_id)))
    spec, book = with_history(spec, state, problems.append), price_book(spec, state)
    bill = make_bill(spec, book, records)
    line = lineage(spec.name, records)
    training, evaluation = line.training, line.evaluation
    return Report(
        spec=spec,
        bill=bill,
        assumed=UnitCosts(estimate=bill.estimate),
        records=records,
        lineage=line,
        losses=losses(Path(training.path).parent) if training else (),
        eval_losses=losses(Path(training.path).parent, "eval_loss") if training else (),
        gpus=gpu_use(Path(training.path).parent) if training else None,
        evaluation=evaluation_of(Path(evaluation.path).parent) if evaluation else None,
        problems=tuple(problems),
    )


def evaluation_of(folder: Path) -> Mapping[str, Any] | None:
    """The result file of an evaluation, known by its shape."""
    for path in sorted(folder.glob("*.json")):
        value = read_object(path)
        if all(isinstance(value.get(name), Mapping) for name in _MODELS):
            return value
    return None


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
    each: top.EachGpu
    rates_gb_per_s: tuple[float, float] | None
    """A node's mean received and sent through InfiniBand; None without a port."""
    num_nodes: int
    """Nodes with a GPU that told its utilisation or memory."""
    problem: str | None = None

    @property
    def mean_percent(self) -> float | None:
        """Mean utilisation over the run; None without a sample."""
        busy = [each.utilization_percent for each in self.moments]
        return math.fsum(busy) / len(busy) if busy else None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the summary."""

    name: str
    value: str
    verdict: str | None
    """PASS, FAIL or NOT RUN of a gate; None for a figure without one."""
    note: str


def gpu_use(folder: Path) -> GpuUse:
    """The samples in a run's folder, of all its nodes."""
    found: list[top.NodeSample] = []
    problem = None
    for path in sorted(folder.glob("gpu_*.csv")):
        try:
            # The last line may be cut by the end of the job.
            found += top.samples(read_text(path).rpartition("\n")[0].splitlines())
        except JobsError as error:
            problem = f"{path.name}: {error}"
    each = top.each_gpu(found)
    return GpuUse(
        moments=tuple(_moments(found)),
        each=each,
        rates_gb_per_s=_mean_rates(found),
        num_nodes=len({node for node, _ in (*each.busy, *each.fullest)}),
        problem=problem,
    )


def summary(run: RunRecord, use: GpuUse, records: Sequence[RunRecord]) -> tuple[Row, ...]:
    """Time, throughput, memory, InfiniBand, storage and latency of the run, gates judged."""
    metrics = run.metrics
    device = run.hardware.device if run.hardware else "unknown device"
    busy, which = use.each.least_busy or (None, "")
    missing = _missing(use, run.hardware.num_nodes if run.hardware else 1)
    return (
        Row("Training time", duration(metrics.get("train_time_s", run.duration_s)), None,
            f"the job took {duration(run.duration_s)}, model and data included"),
        _throughput(run, records),
        _figure("Model FLOP utilisation", metrics.get("useful_token_mfu_percent"), " %",
                f"of the dense bf16 peak; {device} is not in its table"),
        _gated("GPU utilisation", busy, top.GATE_PERCENT, missing,
               f"of the least busy GPU, {which}; mean of all {use.mean_percent or 0:.1f} %"),
        _gated("GPU memory", use.each.memory_percent, top.MEMORY_GATE_PERCENT, missing,
               _memory_note(metrics)),
        _infiniband(use),
        _figure("Storage: checkpoint", metrics.get("checkpoint_stall_s"), " s",
                "training stands still for one; no checkpoint was due"),
        _figure("Storage: waiting for rows", metrics.get("data_wait_time_percent"), " %",
                "of the time; not measured by this run"),
        _latency(metrics),
        _fabric(records, run.stack or "STACK"),
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
        return Row("Throughput", "-", _NOT_RUN, "fewer than two steps were trained")
    value = f"{number(speed)} tokens/s"
    if (per_gpu := run.metrics.get("train_tokens_per_s_per_gpu")) is not None:
        value += f", {number(per_gpu)} a rank"
    best = best_of_kind(run, records)
    if best is None:
        note = "the first run of this recipe on these nodes: nothing to hold it against"
        return Row("Throughput", value, _NOT_RUN, note)
    share = float(speed / best.metrics[_SPEED])
    return Row(
        "Throughput",
        value,
        "PASS" if share >= BEST_SHARE else "FAIL",
        f"{100 * share:.0f} % of the fastest other run on such nodes, job {best.job_id}; gate "
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
        return Row(name, "-", _NOT_RUN, missing or _NO_GPU)
    if missing is not None:
        # A part of a run passes and fails no gate: what is not there may be the rest of it.
        shown = f"{value:.1f} %"
        return Row(name, shown, _NOT_RUN, f"{note}; {missing}")
    return Row(
        name, f"{value:.1f} %", "PASS" if value > gate else "FAIL", f"{note}; gate above {gate:g} %"
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
        return Row(name, "-", _NOT_RUN, missing)
    return Row(name, f"{number(value)}{unit}", None, about)


def _infiniband(use: GpuUse) -> Row:
    if use.rates_gb_per_s is None:
        note = "its nodes have no InfiniBand port, or it was not sampled"
        return Row("InfiniBand", "-", _NOT_RUN, note)
    received, sent = use.rates_gb_per_s
    value = f"{received:.2f} GB/s in, {sent:.2f} GB/s out"
    return Row("InfiniBand", value, None, "a node's mean over the run")


def _latency(metrics: Mapping[str, Decimal]) -> Row:
    median, worst = metrics.get("median_train_step_s"), metrics.get("p99_train_step_s")
    if median is None or worst is None:
        return _figure("Step", metrics.get("train_step_s"), " s", "mean; fewer than two steps")
    value = f"{number(median)} s, {number(worst)} s at the 99th percentile"
    return Row("Step", value, None, "time of a train step")


def _fabric(records: Sequence[RunRecord], stack: str) -> Row:
    """What the newest acceptance measured between all GPUs."""
    found = [each for each in records if "busbw_gb_per_s" in each.metrics]
    if not found:
        note = f"soperator submit accept -s {stack} measures all-reduce, storage and every pair"
        return Row("All-reduce of the cluster", "-", _NOT_RUN, note)
    newest = max(found, key=lambda each: each.finished_at)
    return Row(
        "All-reduce of the cluster",
        f"{number(newest.metrics['busbw_gb_per_s'])} GB/s bus bandwidth",
        None,
        f"acceptance job {newest.job_id}; storage and pairs stand in its acceptance.json",
    )


def _moments(found: Sequence[top.NodeSample]) -> Iterable[Moment]:
    """One for each interval of ten seconds in which a GPU told its utilisation."""
    slots: dict[int, list[top.NodeSample]] = defaultdict(list)
    start_s = min((each.at_s for each in found), default=0.0)
    for each in found:
        slots[int((each.at_s - start_s) / 10)].append(each)
    for slot in sorted(slots):
        busy = top.mean_utilization(gpu for each in slots[slot] for gpu in each.gpus)
        if busy is not None:
            yield Moment(
                minute=slot / 6,
                utilization_percent=busy,
                memory_percent=top.each_gpu(slots[slot]).memory_percent,
            )


def _mean_rates(found: Sequence[top.NodeSample]) -> tuple[float, float] | None:
    """GB/s in and out of a node, over its first and last sample, as the mean of all nodes."""
    by_node: dict[str, list[top.NodeSample]] = defaultdict(list)
    for each in found:
        by_node[each.node].append(each)
    at = attrgetter("at_s")
    told = [top.rates_gb_per_s(min(own, key=at), max(own, key=at)) for own in by_node.values()]
    rates = [each for each in told if each is not None]
    if not rates:
        return None
    received, sent = (math.fsum(each) / len(rates) for each in zip(*rates, strict=True))
    return received, sent
