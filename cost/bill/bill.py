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
from cost.chat.unit_costs import Amount, BillPart, Inputs, PartMaker, listed, unit_costs
from cost.choose.limits import policy_part, policy_problems
from cost.prices.book import HOURS_PER_MONTH, PriceBook
from cost.report.layout import money, number, picked, usd_text
from cost.resources.estimate import Estimate, Total, estimate, price_problems
from cost.run_record import RunRecord
from cost.runs.runs import pipelines_part, runs, schedules_part
from cost.runs.searches import searches_part, shifts_part
from cost.size.shape import chat_problems
from stacks.check import check
from stacks.errors import Level, Problem
from stacks.schedule import end_of
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing, WorkerSpec


def pause_saving(spec: StackSpec, book: PriceBook) -> Total:
    """What the stack pays for its workers while it is not paused."""
    running, paused = (
        estimate(replace(spec, nodes=replace(spec.nodes, paused=value)), book)
        for value in (False, True)
    )
    return Total(
        low_usd=running.monthly_low_usd - paused.monthly_low_usd,
        high_usd=running.monthly_high_usd - paused.monthly_high_usd,
        is_lower_bound=any(line.nodeset and line.unknown for line in running.components),
    )


_DAY: Final = Decimal(24)
_WEEK: Final = 7 * _DAY


def left_running_lines(
    spec: StackSpec, book: PriceBook, found: Estimate, now: datetime
) -> tuple[str, ...]:
    """The lines of a preview: what the stack by its bill costs if nobody ends it, and what does."""
    least, usd_per_hour = "at least " if found.is_lower_bound else "", found.hourly_low_usd
    lines = [f"If you forget it: {least}{_spans(usd_per_hour)}, at min_nodes"]
    if not spec.nodes.paused:
        paused = usd_per_hour - pause_saving(spec, book).low_usd / HOURS_PER_MONTH
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


def reservations_part(inputs: Inputs) -> Iterable[BillPart]:
    """Part `reservations`; none where no nodeset has both prices."""
    # A contract has one price, whoever reserves what.
    is_attached = inputs.spec.attached is not None
    return listed(
        "reservations",
        () if is_attached else tuple(_reservations(inputs.estimate)),
        title="Reserved against on-demand nodes (US dollars a node, without disks)",
        headings=("Workers", "On demand", "Reserved", "Reserved a month", "Pays from"),
        row=_row,
        plain=_plain,
        notes=(
            (
                "Reserved nodes are paid for all 730 hours; on-demand ones only while they are "
                "there (autoscaling, a paused stack)."
            ),
        ),
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
    paths = (
        "workers=worker.name on_demand_usd_per_node_hour=on_demand_usd_per_hour "
        "reserved_usd_per_node_hour=reserved_usd_per_hour"
    )
    share = each.pays_from
    hours = None if share is None else number(share * HOURS_PER_MONTH)
    return {**picked(each, paths, money), "pays_from_hours_per_month": hours}


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
    parts: tuple[BillPart, ...] = ()

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
    problems = price_problems(check(spec), spec, book)
    found = Bill(
        spec=spec, book=book, estimate=total, unit_costs=units, records=records, problems=problems
    )
    # A part may rely on what the checks allow.
    if found.errors:
        return found
    problems += (*policy_problems(found), *model_problems(spec), *chat_problems(spec))
    problems = tuple(sorted(problems, key=lambda problem: problem.level is Level.WARNING))
    parts = tuple(part for make in PARTS for part in make(found))
    return replace(found, problems=problems, parts=parts)
