"""What one chat, one million tokens and one training run cost: UnitCosts of estimate and records.

Also the chats as a table, with the notes under it: chat_table(units); and `BillPart`, what one
subject (break-even, runs, policy) adds to a bill, made from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import cached_property
from typing import Final, TypeVar

from cost.chat.speeds import (
    SECONDS_PER_HOUR,
    Basis,
    ChatCost,
    HourlyCost,
    NoOperatingPoint,
    no_operating_points,
    prompt_tokens,
    serving_workers,
    speeds,
)
from cost.prices.book import HOURS_PER_MONTH
from cost.report.layout import Report, Table, rounded, short, small_usd_text, span
from cost.resources.estimate import Estimate
from cost.run_record import RunRecord, lineage
from cost.traced import named
from stacks.machines import workers_of
from stacks.spec import StackSpec
from stacks.spec.cost import ChatSpec


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


@dataclass(frozen=True, kw_only=True)
class UnitCosts:
    """A priced stack, with what a chat, a million tokens and a training run of it cost.

    Everything that a part of its bill may be computed from. Without slots, which a cached property
    cannot have.
    """

    estimate: Estimate
    records: Sequence[RunRecord] = ()
    """Run records that measured speeds may come from."""

    @property
    def spec(self) -> StackSpec:
        """What the stack declares."""
        return self.estimate.spec

    @cached_property
    def hourly(self) -> HourlyCost:
        """US dollars an hour that the stack's chats are charged with."""
        spec, estimate = self.spec, self.estimate
        chat, absent_usd = spec.chat, [Decimal(0), Decimal(0)]
        workers = () if chat.serving_nodeset is None else serving_workers(spec)
        node_usd = next((estimate.node_usd_per_hour[each.name] for each in workers), None)
        for worker in workers:
            # A nodeset that shrinks to nothing answers nobody: its chats pay for the nodes that
            # they need, also those that a cluster at min_nodes, or a paused one, does not have.
            for end, count in enumerate(spec.nodes.counts(worker)):
                absent = max(0, chat.serving_nodes - count)
                for component in estimate.components:
                    if component.nodeset == worker.name:
                        usd_per_node = component.monthly_usd_of_node
                        absent_usd[end] += usd_per_node * absent / HOURS_PER_MONTH
        return HourlyCost(
            cluster_low_usd=estimate.total.hourly_low_usd + absent_usd[0],
            cluster_high_usd=estimate.total.hourly_high_usd + absent_usd[1],
            serving_usd=None if node_usd is None else node_usd * chat.serving_nodes,
        )

    @cached_property
    def chats(self) -> tuple[ChatCost, ...] | NotKnown:
        """A row for each speed, assumed or measured, or why there is none."""
        chat, broken = self.spec.chat, self.no_operating_points
        if found := speeds(self.spec, self.records):
            return tuple(ChatCost(chat, speed, self.hourly) for speed in found)
        if not broken:
            return NotKnown(
                reason=f"no speed of {chat.model} is declared or measured on this preset",
                command=submit_command(self.spec, "workloads.evaluate"),
            )
        # A server that breaks its promise at every load wants another preset.
        curve = broken[-1].record.curve
        bounds = [] if curve is None else curve.slo.options
        return NotKnown(
            reason="; ".join(map(str, broken)),
            command=f"soperator cost advise --model {chat.model} --stack {self.spec.name} "
            f"{'--slo ' + ','.join(bounds) + ' ' if bounds else ''}"
            f"--chats-per-day {chat.chats_per_day or 1000}",
        )

    @property
    def known_chats(self) -> tuple[ChatCost, ...]:
        """The rows; none where no speed is known."""
        return () if isinstance(self.chats, NotKnown) else self.chats

    @cached_property
    def no_operating_points(self) -> tuple[NoOperatingPoint, ...]:
        """Load tests that found no load which keeps their SLO, so that no row is theirs."""
        return no_operating_points(self.spec, self.records)

    @cached_property
    def run(self) -> RunCost | NotKnown:
        """The training that was evaluated last; before there is an evaluation, the newest one."""
        stack = self.spec.name
        found = lineage(stack, [each for each in self.records if each.hardware is not None])
        if found.training is not None:
            return run_cost(self.estimate, found.training)
        if found.evaluation is not None and found.tuned_dir is not None:
            return NotKnown(
                reason=f"the record of the training that wrote {found.tuned_dir}, which job "
                f"{found.evaluation.job_id} evaluated, is not here",
                command=f"soperator pull ID --stack {stack}",
            )
        return NotKnown(
            reason="no training run of this stack has passed",
            command=submit_command(self.spec, "workloads.train"),
        )


def run_cost(estimate: Estimate, record: RunRecord) -> RunCost:
    """What the run of a record that has its hardware cost, at today's bill."""
    seconds = named(
        record.duration_s,
        "seconds of the job",
        f"run record of job {record.job_id}, {record.finished_at.date().isoformat()}",
        beside=estimate.total.low_usd,
    )
    hours = seconds / SECONDS_PER_HOUR
    hardware, spec = record.hardware, estimate.spec
    assert hardware is not None
    # Nodesets of one preset may be billed in different ways: those of the job's partition first.
    named_jobs = [job for job in spec.jobs if job.name == record.job]
    own = [worker for job in named_jobs for worker in workers_of(spec, job.partition)]
    node_usd = next(
        (
            estimate.node_usd_per_hour[worker.name]
            for worker in (*own, *spec.nodes.workers)
            if (worker.platform, worker.preset) == (hardware.platform, hardware.preset)
        ),
        None,
    )
    return RunCost(
        job=record.job,
        job_id=record.job_id,
        duration_s=record.duration_s,
        num_nodes=hardware.num_nodes,
        cluster_usd=estimate.total.hourly_low_usd * hours,
        nodes_usd=None if node_usd is None else node_usd * hours * hardware.num_nodes,
        date=record.finished_at.date(),
        device=hardware.device,
    )


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
class BillPart(Report):
    """What one subject (break-even, runs, policy) adds to a bill."""

    name: str
    """Key of its data in the JSON document."""
    amounts: tuple[Amount, ...] = ()
    """Those that the next preview compares with."""


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
) -> Iterator[BillPart]:
    """A part with a row and plain values for each item; none without items."""
    if found:
        table = Table(title=title, headings=headings, rows=tuple(map(row, found)))
        yield BillPart(
            name=name,
            tables=(table,),
            notes=tuple(notes),
            amounts=tuple(amounts),
            data=lambda: {name: [plain(each) for each in found]},
        )


PartMaker = Callable[[UnitCosts], Iterable[BillPart]]
"""What a subject gives to bill.PARTS; no part where the stack declares nothing for it."""


MISSES: Final = "MISSES SLO"
NO_POINT: Final = "NO OPERATING POINT"
_SHORT_MONTH_DAYS: Final = 30
"""Published costs per chat divide the bill of a month by the chats of 30 days."""


def chat_table(units: UnitCosts) -> Table | None:
    """A row per scenario; None when no speed is known."""
    rows = units.known_chats
    if not rows:
        return None
    reads = any(row.counts_prefill for row in rows)
    bound = ", at least" if units.estimate.total.is_lower_bound else ""
    demand, count = units.spec.chat.chats_per_day, units.spec.chat.serving_nodes
    load = "at full load" if demand is None else f"at {demand:,} chats a day"
    serving = "one serving node" if count == 1 else f"{count} serving nodes"
    return Table(
        title=f"Cost per chat{bound} {load} (whole cluster; {serving} alone)",
        headings=(
            *("Scenario", "Tokens/s", *(("Reads/s",) if reads else ()), "Tokens/Day"),
            *("Chats/Day", "Est Cost/Chat", "Serving", "Answer"),
        ),
        rows=tuple(
            (
                row.speed.scenario,
                short(row.speed.output_tokens_per_s),
                *((_reads(row),) if reads else ()),
                f"{int(row.tokens_per_day):,}",
                f"{int(row.chats_per_day):,}",
                span(small_usd_text(row.cluster_low_usd), small_usd_text(row.cluster_high_usd)),
                small_usd_text(row.serving_usd),
                answer_text(row),
            )
            for row in rows
        ),
        bad_rows=frozenset(index for index, row in enumerate(rows) if row.meets_slo is False),
    )


def _reads(row: ChatCost) -> str:
    speed = row.speed.prefill_tokens_per_s
    return "-" if speed is None else short(speed)


def chat_notes(units: UnitCosts) -> list[str]:
    """What the rows rest on, one sentence or two a note."""
    rows = units.chats
    if isinstance(rows, NotKnown):
        return [f"Cost per chat: {rows}."]
    return [
        *(f"{speed_text(row)}." for row in rows),
        *(f"{text}." for row in rows if (text := operating_text(row, units.spec.chat))),
        *(f"{NO_POINT}: {each}; no row is of that test." for each in units.no_operating_points),
        _profile_note(units, rows),
        *_load_notes(units, rows),
        *_promise_note(units, rows),
        _month_note(rows[0]),
    ]


def answer_text(row: ChatCost) -> str:
    """Seconds of one answer, marked where they are more than promised."""
    seconds = _seconds(row.answer_s)
    return f"{seconds} {MISSES}" if row.meets_slo is False else seconds


def speed_text(row: ChatCost) -> str:
    """How fast, assumed or measured, and according to what, in one line."""
    speed, prefill = row.speed, row.speed.prefill_tokens_per_s
    day = "" if speed.date is None else f" on {speed.date.isoformat()}"
    origin = f"measured{day}" if speed.basis is Basis.MEASURED else "assumed"
    reading = "" if prefill is None else f", reads {short(prefill)} tokens/s"
    reading += f" ({speed.prefill_basis})" if reading else ""
    each = f", {short(speed.stream_tokens_per_s)} for each of {speed.batch_size} conversations"
    each = "" if speed.batch_size == 1 else each
    return (
        f"{speed.scenario}: {short(speed.output_tokens_per_s)} tokens/s{each}{reading}, {origin}:"
        f" {speed.source}"
    )


def operating_text(row: ChatCost, chat: ChatSpec) -> str:
    """The load that the row's server is run at and what it keeps; empty for any other row."""
    point, slo = row.speed.operating, row.speed.slo
    if point is None:
        return ""
    kept = "the highest load that answered everything; no SLO was declared"
    if slo is None:
        kept = "its SLO is in the load test's own result"
    elif slo.is_declared:
        kept = f"keeps {slo}"
    streams = "1 stream" if point.concurrency == 1 else f"{point.concurrency} streams"
    return (
        f"Operating point of {row.speed.scenario}: {streams}, "
        f"{short(point.output_tokens_per_s)} tokens/s, {short(point.requests_per_s)} "
        f"requests/s (goodput {short(point.goodput_requests_per_s)}), {point.latencies}; {kept}"
        f"{lengths_text(row, chat)}"
    )


def lengths_text(row: ChatCost, chat: ChatSpec) -> str:
    """The lengths that the row's load was measured with, where they are not the chat's."""
    point = row.speed.operating
    if point is None or point.mean_prompt_tokens is None:
        return ""
    read, written = short(point.mean_prompt_tokens), short(point.mean_output_tokens)
    if (read, written) == (f"{chat.context_tokens:,}", f"{chat.output_tokens // chat.turns:,}"):
        return ""
    return f" with prompts of {read} and answers of {written} tokens, taken to the chat's lengths"


def _profile_note(units: UnitCosts, rows: Sequence[ChatCost]) -> str:
    chat = units.spec.chat
    turns = "" if chat.turns == 1 else f" in {chat.turns} turns"
    each = "" if chat.turns == 1 else f", {prompt_tokens(chat):,} prompt tokens in all"
    cached = f", {percent(chat.cached_share)} of them from a prefix cache"
    free = [row.speed.scenario for row in rows if not row.counts_prefill]
    note = (
        f"A chat is {chat.output_tokens:,} output tokens{turns} in a context of "
        f"{chat.context_tokens:,}{each}{cached if chat.cached_share else ''}."
    )
    if not free:
        return f"{note} Reading the prompt is counted."
    whose = "" if len(free) == len(rows) else f" for {', '.join(free)}"
    return (
        f"{note} Reading the prompt is not counted{whose}: no prefill speed is declared or "
        "measured."
    )


def _load_notes(units: UnitCosts, rows: Sequence[ChatCost]) -> list[str]:
    demand = units.spec.chat.chats_per_day
    if demand is None:
        return []
    nodeset = units.spec.chat.serving_nodeset
    of = "" if nodeset is None else f" of nodeset {nodeset}"
    return [
        f"{row.speed.scenario}: {demand:,} chats a day need {row.serving_nodes_needed} serving "
        f"nodes{of}, chat.serving_nodes is {units.spec.chat.serving_nodes} (utilisation "
        f"{percent(row.utilisation)}); the row is at full load."
        if row.is_over_capacity
        else f"{row.speed.scenario}: utilisation {percent(row.utilisation)}; the idle "
        f"{percent(row.idle_share)} is charged to the {demand:,} chats a day."
        for row in rows
    ]


def _promise_note(units: UnitCosts, rows: Sequence[ChatCost]) -> list[str]:
    promise = units.spec.chat.max_answer_s
    if promise is None:
        return []
    kept, missed = (
        [row.speed.scenario for row in rows if row.meets_slo is verdict]
        for verdict in (True, False)
    )
    verdict = f"kept by {', '.join(kept) or 'no row'}"
    verdict += f"; {MISSES}: {', '.join(missed)}" if missed else ""
    return [f"Promise (chat.max_answer_s): an answer in {_seconds(promise)}; {verdict}."]


def _month_note(first: ChatCost) -> str:
    """What the first row would cost where a month is 30 days, as finance reports count."""
    factor = HOURS_PER_MONTH / Decimal(_SHORT_MONTH_DAYS * 24)
    low, high = first.cluster_low_usd * factor, first.cluster_high_usd * factor
    return (
        f"A month of {_SHORT_MONTH_DAYS} days of chats instead of {HOURS_PER_MONTH} hours gives "
        f"{span(small_usd_text(low), small_usd_text(high))} for {first.speed.scenario}."
    )


def percent(ratio: Decimal) -> str:
    """A ratio as percent with one digit behind the point where it has one."""
    text = f"{rounded(ratio * 100, Decimal('0.1')):,f}"
    return f"{text.removesuffix('.0')} %"


def _seconds(value: Decimal) -> str:
    """Whole seconds from ten up, tenths below."""
    step = Decimal(1) if value >= 10 else Decimal("0.1")
    return f"{rounded(value, step):,f} s"
