"""What one chat, one million tokens and one training run cost: unit_costs(spec, estimate, records).

A speed is assumed (the stack names its source) or measured (a run record replaces it). A record
counts only for the same preset, model, engine and batch size. Owns no layout (table.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from typing import Final

from cost.components import Section
from cost.estimate import Estimate
from cost.price_book import HOURS_PER_MONTH
from cost.run_record import Kind, Outcome, RunRecord
from stacks.spec import StackSpec, WorkerSpec

SECONDS_PER_HOUR: Final = Decimal(3600)
SECONDS_PER_DAY: Final = Decimal(86400)
MILLION: Final = Decimal(1_000_000)
_SPEED_METRIC: Final = "output_tokens_per_s"
_BATCH_SPEED_METRIC: Final = "batch_output_tokens_per_s"
_BATCH_SIZE_METRIC: Final = "batch_size"


class Basis(StrEnum):
    """Where a speed comes from."""

    ASSUMED = "assumed"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """A generation speed of one serving node."""

    scenario: str
    output_tokens_per_s: Decimal
    basis: Basis
    source: str
    date: date | None
    """Day of the measurement; None for an assumption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCost:
    """One row of the scenario table, at full load all month."""

    speed: Speed
    tokens_per_day: Decimal
    chats_per_day: Decimal
    cluster_low_usd: Decimal
    """US dollars a chat when chats pay for the whole cluster at min_nodes."""
    cluster_high_usd: Decimal
    serving_usd: Decimal | None
    """US dollars a chat when they pay for one serving node only; None when that is not known."""
    cluster_usd_per_1m_tokens: Decimal
    serving_usd_per_1m_tokens: Decimal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """What the last finished training run cost."""

    job: str
    job_id: str
    duration_s: Decimal
    num_nodes: int
    cluster_usd: Decimal
    """US dollars of the whole cluster at min_nodes while the job ran."""
    nodes_usd: Decimal | None
    """US dollars of the job's own nodes; None when their price is not known."""
    date: date
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotKnown:
    """A unit cost that nothing is known about, and what to run to know it."""

    reason: str
    command: str

    def __str__(self) -> str:
        return f"NOT KNOWN: {self.reason}; run: {self.command}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCosts:
    """Unit costs of one stack."""

    chats: tuple[ChatCost, ...] | NotKnown
    run: RunCost | NotKnown
    output_tokens_per_chat: int
    context_tokens_per_chat: int
    is_lower_bound: bool
    """Whether the bill behind the whole-cluster figures misses a line."""


def unit_costs(spec: StackSpec, estimate: Estimate, records: Sequence[RunRecord]) -> UnitCosts:
    """Unit costs of the stack from its bill, its assumed speeds and the records of its jobs."""
    speeds = _speeds(spec, records)
    return UnitCosts(
        chats=tuple(_chat(spec, estimate, speed) for speed in speeds)
        if speeds
        else NotKnown(
            reason=f"no speed of {spec.chat.model} is declared or measured on this preset",
            command=f"soperator submit {_job_of(spec, 'workloads.evaluate')} --stack {spec.name}",
        ),
        run=_run(spec, estimate, records),
        output_tokens_per_chat=spec.chat.output_tokens,
        context_tokens_per_chat=spec.chat.context_tokens,
        is_lower_bound=estimate.is_lower_bound,
    )


def _speeds(spec: StackSpec, records: Sequence[RunRecord]) -> tuple[Speed, ...]:
    """Declared rows in their order, replaced where measured; then what else was measured."""
    measured = _measured(spec, records)
    speeds: list[Speed] = []
    for row in spec.chat.speeds:
        found = None if row.engine is None else measured.pop((row.engine, row.batch_size), None)
        if found is None:
            speeds.append(
                Speed(
                    scenario=row.scenario,
                    output_tokens_per_s=row.output_tokens_per_s,
                    basis=Basis.ASSUMED,
                    source=row.source,
                    date=None,
                )
            )
        else:
            speeds.append(_measured_speed(row.scenario, *found))
    for (engine, batch_size), found in measured.items():
        speeds.append(_measured_speed(f"{engine}, batch {batch_size}", *found))
    return tuple(speeds)


def _measured(
    spec: StackSpec, records: Sequence[RunRecord]
) -> dict[tuple[str, int], tuple[RunRecord, Decimal]]:
    """Newest measurement by engine and batch size, of records that count for this stack."""
    newest: dict[tuple[str, int], tuple[RunRecord, Decimal]] = {}
    for record in sorted(records, key=lambda item: (item.finished_at, item.job_id)):
        if record.engine is None or not _counts(spec, record):
            continue
        single = record.metrics.get(_SPEED_METRIC)
        batched = record.metrics.get(_BATCH_SPEED_METRIC)
        batch_size = record.metrics.get(_BATCH_SIZE_METRIC)
        if single is not None and single > 0:
            newest[record.engine, 1] = (record, single)
        if batched is not None and batched > 0 and batch_size is not None and batch_size > 1:
            newest[record.engine, int(batch_size)] = (record, batched)
    return newest


def _counts(spec: StackSpec, record: RunRecord) -> bool:
    """Whether the record measures this stack's chat: same model on the same preset."""
    hardware = record.hardware
    return (
        record.outcome is Outcome.PASS
        and record.kind == Kind.EVALUATE
        and hardware is not None
        and record.model is not None
        and _model_name(record.model) == _model_name(spec.chat.model)
        and any(
            (worker.platform, worker.preset) == (hardware.platform, hardware.preset)
            for worker in _serving_workers(spec)
        )
    )


def _measured_speed(scenario: str, record: RunRecord, tokens_per_s: Decimal) -> Speed:
    device = "unknown device" if record.hardware is None else record.hardware.device
    return Speed(
        scenario=scenario,
        output_tokens_per_s=tokens_per_s,
        basis=Basis.MEASURED,
        source=f"job {record.job_id} of stack {record.stack or '?'} on {device}",
        date=record.finished_at.date(),
    )


def _chat(spec: StackSpec, estimate: Estimate, speed: Speed) -> ChatCost:
    tokens_per_hour = speed.output_tokens_per_s * SECONDS_PER_HOUR
    output_tokens = Decimal(spec.chat.output_tokens)
    tokens_per_day = speed.output_tokens_per_s * SECONDS_PER_DAY
    node_usd = _serving_node_usd_per_hour(spec, estimate)
    return ChatCost(
        speed=speed,
        tokens_per_day=tokens_per_day,
        chats_per_day=tokens_per_day / output_tokens,
        cluster_low_usd=estimate.hourly_low_usd * output_tokens / tokens_per_hour,
        cluster_high_usd=estimate.hourly_high_usd * output_tokens / tokens_per_hour,
        serving_usd=None if node_usd is None else node_usd * output_tokens / tokens_per_hour,
        cluster_usd_per_1m_tokens=estimate.hourly_low_usd * MILLION / tokens_per_hour,
        serving_usd_per_1m_tokens=None
        if node_usd is None
        else node_usd * MILLION / tokens_per_hour,
    )


def _run(spec: StackSpec, estimate: Estimate, records: Sequence[RunRecord]) -> RunCost | NotKnown:
    runs = [
        record
        for record in records
        if record.kind == Kind.TRAIN
        and record.outcome is Outcome.PASS
        and record.stack == spec.name
        and record.hardware is not None
    ]
    if not runs:
        return NotKnown(
            reason="no training run of this stack has passed",
            command=f"soperator submit {_job_of(spec, 'workloads.train')} --stack {spec.name}",
        )
    last = max(runs, key=lambda record: (record.finished_at, record.job_id))
    hours = last.duration_s / SECONDS_PER_HOUR
    hardware = last.hardware
    assert hardware is not None
    workers = tuple(
        worker
        for worker in spec.nodes.workers
        if (worker.platform, worker.preset) == (hardware.platform, hardware.preset)
    )
    node_usd = _node_usd_per_hour(estimate, workers)
    return RunCost(
        job=last.job,
        job_id=last.job_id,
        duration_s=last.duration_s,
        num_nodes=hardware.num_nodes,
        cluster_usd=estimate.hourly_low_usd * hours,
        nodes_usd=None if node_usd is None else node_usd * hours * hardware.num_nodes,
        date=last.finished_at.date(),
        device=hardware.device,
    )


def _serving_workers(spec: StackSpec) -> tuple[WorkerSpec, ...]:
    """The nodeset that serves chats, or every nodeset when none is named."""
    serving = spec.chat.serving_nodeset
    return tuple(
        worker for worker in spec.nodes.workers if serving is None or worker.name == serving
    )


def _serving_node_usd_per_hour(spec: StackSpec, estimate: Estimate) -> Decimal | None:
    if spec.chat.serving_nodeset is None:
        return None
    return _node_usd_per_hour(estimate, _serving_workers(spec))


def _node_usd_per_hour(estimate: Estimate, workers: Sequence[WorkerSpec]) -> Decimal | None:
    """US dollars an hour for one node of the first of the nodesets, without its disk."""
    names = [worker.name for worker in workers]
    for component in estimate.components:
        if component.section is Section.COMPUTE and component.nodeset in names:
            rate = component.rate
            return None if rate is None else rate.usd_per_month / HOURS_PER_MONTH
    return None


def _job_of(spec: StackSpec, module: str) -> str:
    """The last job with the module; its default name when the stack declares none."""
    names = [job.name for job in spec.jobs if job.module == module]
    return names[-1] if names else {"workloads.train": "finetune"}.get(module, "evaluate")


def _model_name(model: str) -> str:
    """`Qwen/Qwen3-14B` and `Qwen3-14B` are one model."""
    return model.rsplit("/", 1)[-1].lower()
