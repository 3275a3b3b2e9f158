"""From the speed of a server to what a chat costs and how long it takes: speeds, ChatCost.

A speed is assumed, with its source; a run record replaces it where it measured the same preset,
model, engine and batch size. Of a load test only loads that keep its SLO count, and its operating
point comes first. A serving node that writes r and reads p tokens a second is busy O/r + P/p
seconds with a chat of O output tokens and P prompt tokens that no cache holds; chats a day, the
wait and the dollars follow from that time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from enum import StrEnum
from typing import Final

from cost.run_record import Kind, LoadPoint, Outcome, RunRecord, Slo, operating_point_of
from cost.traced import decimal
from stacks.spec import StackSpec
from stacks.spec.cost import AssumedSpeedSpec, ChatSpec
from stacks.spec.nodes import WorkerSpec

_MEASURES: Final = (Kind.EVALUATE, Kind.LOAD)
"""Jobs whose records hold speeds: of generation alone, and of a server under load."""


class Basis(StrEnum):
    """Where a speed comes from."""

    ASSUMED = "assumed"
    MEASURED = "measured"
    ESTIMATE = "estimate"
    """By the roofline of a preset that nothing was measured on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast one serving node writes and reads, all its streams together."""

    scenario: str
    output_tokens_per_s: Decimal
    basis: Basis
    source: str
    date: date | None
    """Day of the measurement; None for an assumption."""
    batch_size: int = 1
    """Conversations generated at once."""
    prefill_tokens_per_s: Decimal | None = None
    """Prompt tokens read a second; None: reading the prompt is not counted."""
    prefill_basis: Basis | None = None
    """Where the prefill speed comes from; None without one."""
    operating: LoadPoint | None = None
    """The point of the load test that this speed is of, where it is its operating point."""
    slo: Slo | None = None
    """What that point keeps; None where the record does not say."""
    repeats: tuple[Speed, ...] = ()
    """Every measurement of the same recipe on the same device, this one last; empty: one only."""

    @property
    def stream_tokens_per_s(self) -> Decimal:
        """Output tokens a second that one conversation sees."""
        return self.output_tokens_per_s / self.batch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOperatingPoint:
    """A load test that found no load at which its SLO holds: nothing of it is priced."""

    record: RunRecord

    def __str__(self) -> str:
        curve, job = self.record.curve, self.record.job_id
        if curve is None:
            return f"the load test of job {job} has no operating point"
        if not curve.slo.is_declared:
            return f"the load test of job {job} has no load at which every request was answered"
        tried = ", ".join(str(each.concurrency) for each in curve.sweep) or "no"
        least = curve.sweep[0] if curve.sweep else None
        at = "" if least is None else f"; {least.concurrency} had {least.latencies}"
        return (
            f"the load test of job {job} found no load ({tried} streams) that keeps {curve.slo}{at}"
        )


def speeds(spec: StackSpec, records: Sequence[RunRecord]) -> tuple[Speed, ...]:
    """The newest operating point; declared rows in their order; then what else was measured."""
    measured = _newest(spec, records)
    found: list[Speed] = []
    for row in spec.chat.speeds:
        of_row = None if row.engine is None else measured.pop((row.engine, row.batch_size), None)
        found.append(_assumed(row) if of_row is None else _in_place_of(row, of_row))
    found += measured.values()
    # A stable sort: the load that a server is run at says what a chat costs, before any other row.
    return tuple(sorted(found, key=lambda speed: speed.operating is None))


def no_operating_points(
    spec: StackSpec, records: Sequence[RunRecord]
) -> tuple[NoOperatingPoint, ...]:
    """The newest load test of each engine, where it found no load that keeps its SLO."""
    newest = {
        record.engine: record
        for record in counting(spec, records)
        if record.kind == Kind.LOAD and record.engine is not None
    }
    return tuple(
        NoOperatingPoint(record=each) for each in newest.values() if _operating(each) is None
    )


def serving_workers(spec: StackSpec) -> tuple[WorkerSpec, ...]:
    """The nodeset that serves chats, or every nodeset when none is named."""
    serving = spec.chat.serving_nodeset
    return tuple(each for each in spec.nodes.workers if serving in (None, each.name))


def _newest(spec: StackSpec, records: Sequence[RunRecord]) -> dict[tuple[str, int], Speed]:
    """Newest measurement by engine and batch size, of records that count for this stack."""
    counted = counting(spec, records)
    last_load = {record.engine: record for record in counted if record.kind == Kind.LOAD}
    newest: dict[tuple[str, int], Speed] = {}
    every: dict[tuple[str, int], list[tuple[tuple[object, ...], Speed]]] = {}
    for record in counted:
        operating = _operating(record)
        if record.engine is None or (record.kind == Kind.LOAD and operating is None):
            continue
        # A curve is one thing: what an earlier one found is outlived as a whole.
        is_outlived = record.kind == Kind.LOAD and record is not last_load[record.engine]
        for speed in _measured(record, operating):
            key = record.engine, speed.batch_size
            same = (record.kind, record.recipe, _device(record), speed.operating is None)
            earlier = every.setdefault(key, [])
            former = [each for of, each in earlier if of == same]
            earlier.append((same, speed))
            if not is_outlived:
                newest[key] = replace(speed, repeats=(*former, speed)) if former else speed
    return newest


def counting(spec: StackSpec, records: Sequence[RunRecord]) -> list[RunRecord]:
    """Records that measure this stack's chat, oldest first."""
    ordered = sorted(records, key=lambda item: (item.finished_at, item.job_id))
    return [record for record in ordered if record.kind in _MEASURES and _counts(spec, record)]


def why_it_prices_nothing(spec: StackSpec, record: RunRecord) -> str | None:
    """Why a load test that passed says nothing of this stack's chat; None where it does."""
    if record.engine is None:
        return "its server named no engine: set load.target.engine"
    if record.model is None or model_name(record.model) != model_name(spec.chat.model):
        return f"its model is {record.model}, chat.model is {spec.chat.model}"
    if not _counts(spec, record):
        where = record.hardware and record.hardware.preset
        return f"its server ran on {where or 'an unknown preset'}, which serves no chats here"
    return None


def _operating(record: RunRecord) -> LoadPoint | None:
    """The operating point of a load test; None of another job, or where no load is feasible."""
    if record.kind != Kind.LOAD:
        return None
    if record.curve is not None:
        return record.curve.operating_point
    return operating_point_of(record.metrics)


def _measured(record: RunRecord, operating: LoadPoint | None) -> Iterator[Speed]:
    """What the record measured, a speed for each batch size."""
    metrics, sweep = record.metrics, () if record.curve is None else record.curve.sweep
    found: list[tuple[int | Decimal, str]] = []
    # A load test's own loop of one stream may break its SLO, as a cold server's does.
    if not any(each.concurrency == 1 and not each.is_feasible for each in sweep):
        found.append((1, ""))
    batch_size = positive(metrics, "batch_size")
    if batch_size is not None and batch_size > 1:
        found.append((batch_size, "batch_"))
    for size, name in found:
        output = positive(metrics, f"{name}output_tokens_per_s")
        # Reading is bound by arithmetic, which one prompt fills: its speed stands in for a
        # batch's where the record has no other.
        prefill = positive(metrics, f"{name}prefill_tokens_per_s")
        prefill = prefill or positive(metrics, "prefill_tokens_per_s")
        at = operating if operating and operating.concurrency == size else None
        if output is not None:
            yield Speed(
                scenario=f"{record.engine}, batch {int(size)}",
                output_tokens_per_s=output,
                basis=Basis.MEASURED,
                source=f"job {record.job_id} of stack {record.stack or '?'} on {_device(record)}",
                date=record.finished_at.date(),
                batch_size=int(size),
                prefill_tokens_per_s=prefill,
                prefill_basis=None if prefill is None else Basis.MEASURED,
                operating=at,
                slo=None if at is None or record.curve is None else record.curve.slo,
            )


def _counts(spec: StackSpec, record: RunRecord) -> bool:
    """Whether the record measures this stack's chat: same model on the same preset."""
    hardware = record.hardware
    return (
        record.outcome is Outcome.PASS
        and hardware is not None
        and record.model is not None
        and model_name(record.model) == model_name(spec.chat.model)
        and any(
            (worker.platform, worker.preset) == (hardware.platform, hardware.preset)
            for worker in serving_workers(spec)
        )
    )


def positive(metrics: Mapping[str, Decimal], name: str) -> Decimal | None:
    """The metric; None where it is missing, or not over 0."""
    value = metrics.get(name)
    return value if value is not None and value > 0 else None


def _assumed(row: AssumedSpeedSpec) -> Speed:
    return Speed(
        scenario=row.scenario,
        output_tokens_per_s=row.output_tokens_per_s,
        basis=Basis.ASSUMED,
        source=row.source,
        date=None,
        batch_size=row.batch_size,
        prefill_tokens_per_s=row.prefill_tokens_per_s,
        prefill_basis=None if row.prefill_tokens_per_s is None else Basis.ASSUMED,
    )


def _in_place_of(row: AssumedSpeedSpec, measured: Speed) -> Speed:
    """The measurement under the row's name; it keeps a declared prefill that was not measured."""
    repeats = tuple(_in_place_of(row, each) for each in measured.repeats)
    found = replace(measured, scenario=row.scenario, batch_size=row.batch_size, repeats=repeats)
    if found.prefill_tokens_per_s is not None or row.prefill_tokens_per_s is None:
        return found
    return replace(
        found, prefill_tokens_per_s=row.prefill_tokens_per_s, prefill_basis=Basis.ASSUMED
    )


def _device(record: RunRecord) -> str:
    return "unknown device" if record.hardware is None else record.hardware.device


def model_name(model: str) -> str:
    """`Qwen/Qwen3-14B` and `Qwen3-14B` are one model."""
    return model.rsplit("/", 1)[-1].lower()


_T_975: Final = tuple(
    Decimal(thousandths) / 1000
    for thousandths in (
        *(12706, 4303, 3182, 2776, 2571, 2447, 2365, 2306, 2262, 2228),
        *(2201, 2179, 2160, 2145, 2131, 2120, 2110, 2101, 2093),
    )
)
"""Student's t, 97.5 %, of 1 to 19 degrees of freedom."""


def mean_interval(values: Sequence[Decimal]) -> tuple[Decimal, Decimal] | None:
    """95 % interval of the mean of the newest 20 values over 0; None of fewer than two.

    By Student's t of their logarithms, so that it holds for a cost as for a speed.
    """
    logs = [value.ln() for value in values[-len(_T_975) - 1 :]]
    if len(logs) < 2:
        return None
    mean = sum(logs, Decimal(0)) / len(logs)
    variance = sum(((each - mean) ** 2 for each in logs), Decimal(0)) / (len(logs) - 1)
    half = _T_975[len(logs) - 2] * (variance / len(logs)).sqrt()
    return (mean - half).exp(), (mean + half).exp()


SECONDS_PER_HOUR: Final = Decimal(3600)
HOURS_PER_DAY: Final = Decimal(24)
SECONDS_PER_DAY: Final = SECONDS_PER_HOUR * HOURS_PER_DAY
MILLION: Final = Decimal(1_000_000)


class View(StrEnum):
    """What the chats pay for."""

    CLUSTER = "whole cluster"
    SERVING = "serving nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class HourlyCost:
    """US dollars an hour of what chats can be charged with."""

    cluster_low_usd: Decimal
    """The whole cluster at its smallest size that has the serving nodes."""
    cluster_high_usd: Decimal
    serving_usd: Decimal | None
    """The serving nodes alone, without their disks; None when that is not known."""

    @property
    def views(self) -> Iterator[tuple[View, Decimal, Decimal]]:
        """What is known of each view, at min_nodes and at max_nodes."""
        yield View.CLUSTER, self.cluster_low_usd, self.cluster_high_usd
        if self.serving_usd is not None:
            yield View.SERVING, self.serving_usd, self.serving_usd


@dataclass(frozen=True, slots=True)
class ChatCost:
    """One row of the scenario table: at full load, or at the demand where that is less."""

    chat: ChatSpec
    speed: Speed
    hourly: HourlyCost

    @property
    def tokens_per_s(self) -> Decimal:
        """Output tokens a second of one node once reading the prompts has taken its time."""
        prefill = self.speed.prefill_tokens_per_s
        if prefill is None:
            return self.speed.output_tokens_per_s
        output = self.chat.output_tokens
        read_s = prompt_tokens(self.chat) * (1 - self.chat.cached_share) / prefill
        return output / (output / self.speed.output_tokens_per_s + read_s)

    @property
    def tokens_per_day(self) -> Decimal:
        """Output tokens a day of the serving nodes at full load."""
        return self.tokens_per_s * SECONDS_PER_DAY * self.chat.serving_nodes

    @property
    def chats_per_day_of_node(self) -> Decimal:
        """Chats a day that one serving node has room for."""
        return self.tokens_per_s * SECONDS_PER_DAY / self.chat.output_tokens

    @property
    def chats_per_day(self) -> Decimal:
        """Chats a day that the serving nodes have room for."""
        return self.chats_per_day_of_node * self.chat.serving_nodes

    @property
    def demand_per_day(self) -> Decimal | None:
        """Chats a day that are asked for; None: as many as there is room for."""
        return None if self.chat.chats_per_day is None else decimal(self.chat.chats_per_day)

    @property
    def serving_nodes_needed(self) -> int:
        """Nodes that the demand needs, at least one; those declared when no demand is."""
        if self.demand_per_day is None:
            return self.chat.serving_nodes
        return max(1, math.ceil(self.demand_per_day / self.chats_per_day_of_node))

    @property
    def answer_s(self) -> Decimal:
        """Seconds until one answer is there as a whole, with the batch full.

        Little's law: conversations in flight over answers a second, whatever the engine's schedule.
        """
        tokens_per_answer = decimal(self.chat.output_tokens) / self.chat.turns
        return self.speed.batch_size * tokens_per_answer / self.tokens_per_s

    @property
    def cluster_low_usd(self) -> Decimal:
        """US dollars a chat when chats pay for the whole cluster at min_nodes."""
        return self._usd(self.hourly.cluster_low_usd)

    @property
    def cluster_high_usd(self) -> Decimal:
        """The same at max_nodes."""
        return self._usd(self.hourly.cluster_high_usd)

    @property
    def serving_usd(self) -> Decimal | None:
        """US dollars a chat when they pay for the serving nodes only; None when not known."""
        return None if self.hourly.serving_usd is None else self._usd(self.hourly.serving_usd)

    @property
    def cluster_usd_per_1m_tokens(self) -> Decimal:
        """US dollars for a million output tokens, whole cluster at min_nodes."""
        return self.cluster_low_usd * MILLION / self.chat.output_tokens

    @property
    def serving_usd_per_1m_tokens(self) -> Decimal | None:
        """The same of the serving nodes only."""
        usd = self.serving_usd
        return None if usd is None else usd * MILLION / self.chat.output_tokens

    @property
    def utilisation(self) -> Decimal:
        """Demand over room, a ratio; over 1 when more is asked for than fits; 1 without demand."""
        demand = self.demand_per_day
        return Decimal(1) if demand is None else demand / self.chats_per_day

    @property
    def idle_share(self) -> Decimal:
        """Share of the serving time that nobody asks for and the chats still pay, 0 to 1."""
        return max(Decimal(0), 1 - self.utilisation)

    @property
    def is_over_capacity(self) -> bool:
        """Whether more chats are asked for than the serving nodes have room for."""
        return self.serving_nodes_needed > self.chat.serving_nodes

    @property
    def meets_slo(self) -> bool | None:
        """Whether an answer is there in time; None when nothing is promised."""
        promise = self.chat.max_answer_s
        return None if promise is None else self.answer_s <= promise

    @property
    def counts_prefill(self) -> bool:
        """Whether the time to read the prompts is in the figures."""
        return self.speed.prefill_tokens_per_s is not None

    def _usd(self, usd_per_hour: Decimal) -> Decimal:
        """US dollars a chat of so many an hour."""
        demand = self.demand_per_day
        if demand is not None and demand < self.chats_per_day:
            return usd_per_hour * HOURS_PER_DAY / demand
        tokens_per_hour = self.tokens_per_s * self.chat.serving_nodes * SECONDS_PER_HOUR
        return usd_per_hour * self.chat.output_tokens / tokens_per_hour


def prompt_tokens(chat: ChatSpec) -> int:
    """Prompt tokens of one chat over all its turns, cached or not."""
    return chat.context_tokens * chat.turns
