"""What one chat, one million tokens and one training run cost: unit_costs(spec, estimate, records).

Also `Part`, what one subject (break-even, runs, policy) adds to a bill, made from `Inputs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from types import MappingProxyType
from typing import TypeVar

from cost.chat.speeds import (
    SECONDS_PER_HOUR,
    ChatCost,
    HourlyCost,
    NoOperatingPoint,
    chat_cost,
    no_operating_points,
    serving_workers,
    speeds,
)
from cost.prices.book import HOURS_PER_MONTH, PriceBook
from cost.report.layout import Table
from cost.resources.estimate import Estimate
from cost.resources.lines import Section
from cost.run_record import RunRecord, lineage
from cost.traced import named
from stacks.spec import StackSpec
from stacks.spec.cost import ChatSpec
from stacks.spec.nodes import WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """What one run of a job cost."""

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

    stack_name: str
    chat: ChatSpec
    """The reference chat that `chats` are rows of."""
    hourly: HourlyCost
    """What chats are charged with."""
    chats: tuple[ChatCost, ...] | NotKnown
    run: RunCost | NotKnown
    """The training that was evaluated last; before there is an evaluation, the newest one."""
    is_lower_bound: bool
    """Whether the bill behind the whole-cluster figures misses a line."""
    no_operating_points: tuple[NoOperatingPoint, ...] = ()
    """Load tests that found no load which keeps their SLO, so that no row is theirs."""

    @property
    def known_chats(self) -> tuple[ChatCost, ...]:
        """The rows; none where no speed is known."""
        return () if isinstance(self.chats, NotKnown) else self.chats

    @property
    def feasible_chats(self) -> tuple[ChatCost, ...]:
        """Rows whose answers come in time; all rows when nothing is promised."""
        return tuple(row for row in self.known_chats if row.meets_slo is not False)


def unit_costs(spec: StackSpec, estimate: Estimate, records: Sequence[RunRecord]) -> UnitCosts:
    """Unit costs of the stack from its bill, its assumed speeds and the records of its jobs."""
    found = speeds(spec, records)
    broken = no_operating_points(spec, records)
    hourly = hourly_cost(spec, estimate)
    return UnitCosts(
        stack_name=spec.name,
        chat=spec.chat,
        hourly=hourly,
        chats=tuple(chat_cost(spec.chat, speed, hourly) for speed in found)
        if found
        else _unknown_chats(spec, broken),
        run=_run(spec, estimate, records),
        is_lower_bound=estimate.is_lower_bound,
        no_operating_points=broken,
    )


def _unknown_chats(spec: StackSpec, broken: tuple[NoOperatingPoint, ...]) -> NotKnown:
    """Why no row is there; a server that breaks its promise at every load wants another preset."""
    if not broken:
        return NotKnown(
            reason=f"no speed of {spec.chat.model} is declared or measured on this preset",
            command=submit_command(spec, "workloads.evaluate"),
        )
    curve = broken[-1].record.curve
    bounds = [] if curve is None else curve.slo.options
    return NotKnown(
        reason="; ".join(map(str, broken)),
        command=f"soperator cost advise --model {spec.chat.model} --stack {spec.name} "
        f"{'--slo ' + ','.join(bounds) + ' ' if bounds else ''}"
        f"--chats-per-day {spec.chat.chats_per_day or 1000}",
    )


def hourly_cost(spec: StackSpec, estimate: Estimate) -> HourlyCost:
    """US dollars an hour that the stack's chats are charged with."""
    chat, absent_usd = spec.chat, Decimal(0)
    workers = () if chat.serving_nodeset is None else serving_workers(spec)
    node_usd = _node_usd_per_hour(estimate, workers)
    for worker in workers:
        # A nodeset that shrinks to nothing answers nobody: its chats pay for the nodes that they
        # need, also those that a cluster at min_nodes does not have.
        absent = max(0, chat.serving_nodes - spec.nodes.counts(worker)[0])
        for component in estimate.components:
            if component.nodeset == worker.name:
                absent_usd += component.monthly_usd_of_node * absent / HOURS_PER_MONTH
    return HourlyCost(
        cluster_low_usd=estimate.hourly_low_usd + absent_usd,
        cluster_high_usd=estimate.hourly_high_usd,
        serving_usd=None if node_usd is None else node_usd * chat.serving_nodes,
    )


def _run(spec: StackSpec, estimate: Estimate, records: Sequence[RunRecord]) -> RunCost | NotKnown:
    found = lineage(spec.name, [each for each in records if each.hardware is not None])
    if found.training is not None:
        return run_cost(spec, estimate, found.training)
    if found.evaluation is not None and found.tuned_dir is not None:
        return NotKnown(
            reason=f"the record of the training that wrote {found.tuned_dir}, which job "
            f"{found.evaluation.job_id} evaluated, is not here",
            command=f"soperator pull ID --stack {spec.name}",
        )
    return NotKnown(
        reason="no training run of this stack has passed",
        command=submit_command(spec, "workloads.train"),
    )


def run_cost(spec: StackSpec, estimate: Estimate, record: RunRecord) -> RunCost:
    """What the run of a record that has its hardware cost, at today's bill."""
    seconds = named(
        record.duration_s,
        "seconds of the job",
        f"run record of job {record.job_id}, {record.finished_at.date().isoformat()}",
        beside=estimate.monthly_low_usd,
    )
    hours = seconds / SECONDS_PER_HOUR
    hardware = record.hardware
    assert hardware is not None
    workers = tuple(
        worker
        for worker in spec.nodes.workers
        if (worker.platform, worker.preset) == (hardware.platform, hardware.preset)
    )
    node_usd = _node_usd_per_hour(estimate, workers)
    return RunCost(
        job=record.job,
        job_id=record.job_id,
        duration_s=record.duration_s,
        num_nodes=hardware.num_nodes,
        cluster_usd=estimate.hourly_low_usd * hours,
        nodes_usd=None if node_usd is None else node_usd * hours * hardware.num_nodes,
        date=record.finished_at.date(),
        device=hardware.device,
    )


def _node_usd_per_hour(estimate: Estimate, workers: Sequence[WorkerSpec]) -> Decimal | None:
    """US dollars an hour for one node of the first of the nodesets, without its disk."""
    names = [worker.name for worker in workers]
    for component in estimate.components:
        if component.section is Section.COMPUTE and component.nodeset in names:
            rate = component.rate
            if rate is None:
                return None
            return named(rate.usd, "USD a node-hour", f"explain {component.id}")
    return None


def submit_command(spec: StackSpec, module: str) -> str:
    """What submits the last job with the module, which may have to be declared first."""
    names = [job.name for job in spec.jobs if job.module == module]
    if not names:
        return f"soperator submit JOB --stack {spec.name}, once jobs declares a JOB of {module}"
    return f"soperator submit {names[-1]} --stack {spec.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """US dollars of one unit (a chat, a run) that the next preview compares with."""

    name: str
    """Key in the outputs, such as `per_chat_usd` or `per_run_usd[finetune]`."""
    label: str
    """What people read, such as `$/chat`."""
    usd: Decimal | None
    """None when it is not known."""
    basis: str
    """Where it comes from, in one line: a declared source, or the job that measured it."""
    keys: tuple[str, ...] = ()
    """Config keys that it depends on beyond those of the bill's lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Tables and notes for people, amounts to compare, plain values for JSON."""

    name: str
    """Key in the JSON document."""
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    amounts: tuple[Amount, ...] = ()
    draw_figures: Callable[[], tuple[str, ...]] = tuple
    """Draws its charts as inline SVG; only HTML asks for them, so a preview does not wait."""
    plain: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Everything that a part may be computed from."""

    spec: StackSpec
    book: PriceBook
    estimate: Estimate
    unit_costs: UnitCosts
    records: Sequence[RunRecord] = ()
    """Run records that measured speeds may come from."""


_Item = TypeVar("_Item")


def listed(
    name: str,
    found: Sequence[_Item],
    *,
    title: str,
    headings: tuple[str, ...],
    row: Callable[[_Item], tuple[str, ...]],
    plain: Callable[[_Item], Mapping[str, object]],
    notes: Iterable[str] = (),
    amounts: Iterable[Amount] = (),
) -> Iterator[Part]:
    """A part with a row and plain values for each item; none without items."""
    if found:
        table = Table(title=title, headings=headings, rows=tuple(map(row, found)))
        yield Part(
            name=name,
            tables=(table,),
            notes=tuple(notes),
            amounts=tuple(amounts),
            plain={name: [plain(each) for each in found]},
        )


PartMaker = Callable[[Inputs], Iterable[Part]]
"""What a subject gives to bill.PARTS; no part where the stack declares nothing for it."""
