"""The one entry of the cost engine: bill(spec, book, records) -> Bill, which all output comes from.

text = render(bill(spec, PriceBook.load(spec.prices), records), Format.TABLE)

Also what a stack costs that nobody touches, and what a pause or a contract saves: a reserved node
is paid for every hour of its term, an on-demand node only while it is there (`soperator cluster
pause`, autoscaling). Reserved prices are agreed in a contract, so that there is something to
compare only where `contract_prices` has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from cost.chat.break_even import break_even_part, model_problems
from cost.chat.unit_costs import Amount, Inputs, Part, PartMaker, unit_costs
from cost.choose.limits import policy_part, policy_problems
from cost.prices.book import HOURS_PER_MONTH, PriceBook
from cost.report.layout import Table, money, number, usd_text
from cost.resources.estimate import Estimate, estimate, price_problems
from cost.run_record import RunRecord
from cost.runs.runs import pipelines_part, runs, schedules_part
from cost.runs.searches import searches_part, shifts_part
from cost.size.shape import chat_problems
from stacks.check import check
from stacks.errors import Level, Problem
from stacks.schedule import end_of
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing, WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseSaving:
    """US dollars a 730-hour month that the workers of a stack cost; `low` at min_nodes."""

    low_usd_per_month: Decimal
    high_usd_per_month: Decimal
    is_lower_bound: bool
    """Whether a line of the workers has no price."""

    @property
    def low_usd_per_hour(self) -> Decimal:
        """US dollars an hour at min_nodes."""
        return self.low_usd_per_month / HOURS_PER_MONTH

    def __str__(self) -> str:
        hour = _span(self.low_usd_per_hour, self.high_usd_per_month / HOURS_PER_MONTH)
        month = _span(self.low_usd_per_month, self.high_usd_per_month)
        least = "at least " if self.is_lower_bound else ""
        return f"{least}{hour} an hour, {month} a month of {HOURS_PER_MONTH} hours"


def pause_saving(spec: StackSpec, book: PriceBook) -> PauseSaving:
    """What the stack pays for its workers while it is not paused."""
    running, paused = (
        estimate(replace(spec, nodes=replace(spec.nodes, paused=value)), book)
        for value in (False, True)
    )
    return PauseSaving(
        low_usd_per_month=running.monthly_low_usd - paused.monthly_low_usd,
        high_usd_per_month=running.monthly_high_usd - paused.monthly_high_usd,
        is_lower_bound=any(line.nodeset and line.unknown for line in running.components),
    )


def _span(low: Decimal, high: Decimal) -> str:
    return f"${low:,.2f}" if low == high else f"${low:,.2f} to ${high:,.2f}"


_DAY: Final = Decimal(24)
_WEEK: Final = 7 * _DAY


def left_running_lines(
    spec: StackSpec, book: PriceBook, found: Estimate, now: datetime
) -> tuple[str, ...]:
    """The lines of a preview: what the stack by its bill costs if nobody ends it, and what does."""
    least, usd_per_hour = "at least " if found.is_lower_bound else "", found.hourly_low_usd
    lines = [f"If you forget it: {least}{_spans(usd_per_hour)}, at min_nodes"]
    if not spec.nodes.paused:
        paused = usd_per_hour - pause_saving(spec, book).low_usd_per_hour
        lines.append(f"  paused: {least}{_spans(paused)}")
    end, lifetime = end_of(spec), spec.lifetime
    if lifetime is None:
        lines.append(
            "  nothing ends it: declare lifetime.idle_hours or lifetime.until, and run "
            f"`soperator cluster autostop --act --stack {spec.name}` on a schedule"
        )
        return tuple(lines)
    if lifetime.idle_hours is not None:
        usd = usd_text(usd_per_hour * lifetime.idle_hours)
        lines.append(
            f"  `soperator cluster autostop --act --stack {spec.name}` pauses it after "
            f"{lifetime.idle_hours} h without a job: {least}{usd} at min_nodes for those"
        )
    if end is not None:
        left = Decimal(max(timedelta(0), end - now) // timedelta(hours=1))
        usd = usd_text(usd_per_hour * left)
        lines.append(
            f"  lifetime.until {end:%Y-%m-%d %H:%M} UTC: {least}{usd} until then, no job after it"
        )
    return tuple(lines)


def _spans(usd_per_hour: Decimal) -> str:
    return (
        f"{usd_text(usd_per_hour * _DAY)} a day, {usd_text(usd_per_hour * _WEEK)} a week, "
        f"{usd_text(usd_per_hour * HOURS_PER_MONTH)} a month of {HOURS_PER_MONTH} hours"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """One nodeset under both kinds of billing, without disks."""

    worker: WorkerSpec
    on_demand_usd_per_hour: Decimal
    """Of one node."""
    reserved_usd_per_hour: Decimal
    """Of one node."""

    @property
    def pays_from(self) -> Decimal | None:
        """Share of the hours from which a reservation is cheaper, or None: it never is."""
        if self.reserved_usd_per_hour >= self.on_demand_usd_per_hour:
            return None
        return self.reserved_usd_per_hour / self.on_demand_usd_per_hour


def reservations_part(inputs: Inputs) -> Iterable[Part]:
    """Part `reservations`; none where no nodeset has both prices."""
    if inputs.spec.attached is not None:
        return  # a contract has one price, whoever reserves what
    found = tuple(_reservations(inputs.estimate))
    if not found:
        return
    yield Part(
        name="reservations",
        tables=(
            Table(
                title="Reserved against on-demand nodes (US dollars a node, without disks)",
                headings=("Workers", "On demand", "Reserved", "Reserved a month", "Pays from"),
                rows=tuple(_row(each) for each in found),
            ),
        ),
        notes=(
            (
                "Reserved nodes are paid for all 730 hours; on-demand ones only while they are "
                "there (autoscaling, a paused stack)."
            ),
        ),
        plain={"reservations": [_plain(each) for each in found]},
    )


def _reservations(rates: Estimate) -> Iterable[Reservation]:
    for worker in rates.spec.nodes.workers:
        on_demand = rates.billed_as(worker, Billing.ON_DEMAND)
        reserved = rates.billed_as(worker, Billing.RESERVED)
        if isinstance(on_demand, str) or isinstance(reserved, str):
            continue
        if worker.gpus and on_demand > 0:
            yield Reservation(
                worker=worker, on_demand_usd_per_hour=on_demand, reserved_usd_per_hour=reserved
            )


def _row(each: Reservation) -> tuple[str, ...]:
    share = each.pays_from
    return (
        each.worker.name,
        f"{usd_text(each.on_demand_usd_per_hour)}/h",
        f"{usd_text(each.reserved_usd_per_hour)}/h",
        usd_text(each.reserved_usd_per_hour * HOURS_PER_MONTH),
        "never" if share is None else f"{share * HOURS_PER_MONTH:.0f} h a month ({share:.0%})",
    )


def _plain(each: Reservation) -> dict[str, object]:
    share = each.pays_from
    return {
        "workers": each.worker.name,
        "on_demand_usd_per_node_hour": money(each.on_demand_usd_per_hour),
        "reserved_usd_per_node_hour": money(each.reserved_usd_per_hour),
        "pays_from_hours_per_month": None if share is None else number(share * HOURS_PER_MONTH),
    }


PARTS: Final[tuple[PartMaker, ...]] = (
    break_even_part, runs, reservations_part, pipelines_part, searches_part, schedules_part,
    shifts_part, policy_part
)  # fmt: skip
"""Every subject beyond the lines and the unit costs, in the order in which they are printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill(Inputs):
    """What a stack costs and every figure that follows from it."""

    problems: tuple[Problem, ...]
    """Checks of the stack with their US dollars, errors first."""
    parts: tuple[Part, ...] = ()

    @property
    def errors(self) -> tuple[Problem, ...]:
        """Problems that refuse the stack."""
        return tuple(problem for problem in self.problems if problem.level is Level.ERROR)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """Problems that cost money or comfort."""
        return tuple(problem for problem in self.problems if problem.level is Level.WARNING)

    @property
    def amounts(self) -> tuple[Amount, ...]:
        """Unit costs that the next preview compares with."""
        return tuple(amount for part in self.parts for amount in part.amounts)


def bill(spec: StackSpec, book: PriceBook, records: Sequence[RunRecord] = ()) -> Bill:
    """The stack's bill; records replace assumed speeds where they measure this stack."""
    total = estimate(spec, book)
    units = unit_costs(spec, total, records)
    inputs = Inputs(spec=spec, book=book, estimate=total, unit_costs=units, records=records)
    problems = price_problems(check(spec), spec, book)
    # A part may rely on what the checks allow.
    is_valid = not any(problem.level is Level.ERROR for problem in problems)
    if is_valid:
        problems += (*policy_problems(inputs), *model_problems(spec), *chat_problems(spec))
        problems = tuple(sorted(problems, key=lambda problem: problem.level is Level.WARNING))
    return Bill(
        spec=spec,
        book=book,
        estimate=total,
        unit_costs=units,
        problems=problems,
        parts=tuple(part for make in PARTS for part in make(inputs)) if is_valid else (),
        records=records,
    )
