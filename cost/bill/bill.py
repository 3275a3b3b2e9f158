"""The one entry of the cost engine: bill(spec, book, records) -> Bill, which all output comes from.

text = render(bill(spec, PriceBook.load(spec.prices), records), Format.TABLE)

Printed by render(bill, format), bill_page(bill) and, what a chat costs (`soperator cost chat`),
render_chats(bill, format); figures(...) are those of the output `cost`.

Also what a stack costs that nobody touches, and what a pause or a contract saves: a reserved node
is paid for every hour of its term, an on-demand node only while it is there (`soperator cluster
pause`, autoscaling). Reserved prices are agreed in a contract, so that there is something to
compare only where `contract_prices` has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from cost.chat.break_even import break_even_part, model_problems
from cost.chat.speeds import ChatCost
from cost.chat.unit_costs import (
    Amount,
    BillPart,
    NotKnown,
    PartMaker,
    RunCost,
    UnitCosts,
    chat_notes,
    chat_table,
    listed,
    speed_text,
)
from cost.choose.limits import policy_part, policy_problems
from cost.prices.book import HOURS_PER_MONTH, PriceBook
from cost.report.layout import (
    GAP,
    Format,
    Report,
    Table,
    exact_money,
    headed,
    money,
    number,
    page,
    picked,
    render_report,
    rounded,
    small_usd_text,
    span,
    usd_text,
)
from cost.resources.estimate import Estimate, Total, estimate, price_problems, total_of
from cost.resources.lines import CostComponent, Scope
from cost.run_record import RunRecord
from cost.runs.runs import pipelines_part, runs, schedules_part
from cost.runs.searches import searches_part, shifts_part
from cost.size.shape import chat_problems
from stacks.check import check
from stacks.errors import Judged, Level, Problem
from stacks.schedule import end_of
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing, WorkerSpec


def pause_saving(spec: StackSpec, book: PriceBook) -> Total:
    """What the stack pays for its workers while it is not paused."""
    running = estimate(replace(spec, nodes=replace(spec.nodes, paused=False)), book)
    return total_of([line for line in running.components if line.nodeset is not None])


_DAY: Final = Decimal(24)
_WEEK: Final = 7 * _DAY


def left_running_lines(
    spec: StackSpec, book: PriceBook, found: Estimate, now: datetime
) -> tuple[str, ...]:
    """The lines of a preview: what the stack by its bill costs if nobody ends it, and what does."""
    least, usd_per_hour = found.total.least, found.total.hourly_low_usd
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


def reservations_part(units: UnitCosts) -> Iterable[BillPart]:
    """Part `reservations`; none where no nodeset has both prices."""
    # A contract has one price, whoever reserves what.
    is_attached = units.spec.attached is not None
    return listed(
        "reservations",
        () if is_attached else tuple(_reservations(units.estimate)),
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


@dataclass(frozen=True, kw_only=True)
class Bill(UnitCosts, Judged):
    """What a stack costs and every figure that follows from it."""

    problems: tuple[Problem, ...]
    """Checks of the stack with their US dollars, errors first."""
    parts: tuple[BillPart, ...] = ()

    @property
    def amounts(self) -> tuple[Amount, ...]:
        """Unit costs that the next preview compares with."""
        return tuple(amount for part in self.parts for amount in part.amounts)


def bill(spec: StackSpec, book: PriceBook, records: Sequence[RunRecord] = ()) -> Bill:
    """The stack's bill; records replace assumed speeds where they measure this stack."""
    total = estimate(spec, book)
    problems = price_problems(check(spec), total)
    found = Bill(estimate=total, records=records, problems=problems)
    # A part may rely on what the checks allow.
    if found.errors:
        return found
    problems += (*policy_problems(found), *model_problems(spec), *chat_problems(spec))
    problems = tuple(sorted(problems, key=lambda problem: problem.level is Level.WARNING))
    parts = tuple(part for make in PARTS for part in make(found))
    return replace(found, problems=problems, parts=parts)


SCHEMA_VERSION: Final = 2
"""Of the JSON document: cost/bill/cost.schema.json."""
UNPRICED: Final = "UNPRICED"
ALSO_BILLED: Final = "Also billed"
"""Heading of the lines that the published bill of this cluster leaves out."""
_MILL: Final = Decimal("0.001")
_HEADINGS: Final = ("Component", "Quantity", "Unit price", "$/h", "$/month")


def render(bill: Bill, format: Format = Format.TABLE) -> str:
    """The bill in the format, ending in a newline."""
    return render_report(document(bill), format)


def bill_page(bill: Bill) -> str:
    """The bill with its charts and problems as a page."""
    return page(f"Cost of {bill.spec.name}", [render(bill, Format.HTML)], bill.problems)


def document(bill: Bill) -> Report:
    """The bill as tables and notes, and as values for programs."""
    chats = chat_table(bill)
    return Report(
        heading=bill.spec.bill_heading,
        tables=(
            _lines_table(bill.estimate),
            *(() if chats is None else (chats,)),
            *(table for part in bill.parts for table in part.tables),
        ),
        notes=tuple(_bill_notes(bill)),
        draw_figures=lambda: tuple(each for part in bill.parts for each in part.draw_figures()),
        data=lambda: _plain_bill(bill),
        rows=lambda: _csv_rows(bill),
    )


def _lines_table(estimate: Estimate) -> Table:
    main, also = ([line for line in estimate.components if line.scope is scope] for scope in Scope)
    rows = [*_section_rows(main)]
    if also:
        rows += [
            _total_row("Subtotal", estimate.subtotal(Scope.MAIN)),
            (ALSO_BILLED, "", "", "", ""),
            *map(_line_row, also),
            _total_row("Subtotal, also billed", estimate.subtotal(Scope.ALSO)),
        ]
    rows.append(_total_row("Total", estimate.total))
    return Table(
        title=f"Cost of {estimate.spec.name} (USD without tax, {HOURS_PER_MONTH} hours a month)",
        headings=_HEADINGS,
        rows=tuple(rows),
        num_text_columns=2,
    )


def _section_rows(lines: Sequence[CostComponent]) -> Iterator[tuple[str, ...]]:
    section = None
    for line in lines:
        if line.section is not section:
            section = line.section
            yield (str(section), "", "", "", "")
        yield _line_row(line)


def _line_row(line: CostComponent) -> tuple[str, ...]:
    low, high = line.low_usd, line.high_usd
    amounts = (UNPRICED, UNPRICED) if low is None or high is None else _amount_texts(low, high)
    return (f"{GAP}{line.name}", line.size, _rate(line), *amounts)


def _total_row(name: str, total: Total) -> tuple[str, ...]:
    bound = ", at least" if total.is_lower_bound else ""
    return (f"{name}{bound}", "", "", *_amount_texts(total.low_usd, total.high_usd))


def _amount_texts(low: Decimal, high: Decimal) -> tuple[str, str]:
    """US dollars an hour and a month, one figure where both ends are the same."""
    return span(_hourly(low), _hourly(high)), span(_cents(low), _cents(high))


def _hourly(usd_per_month: Decimal) -> str:
    return f"{rounded(usd_per_month / HOURS_PER_MONTH, _MILL):,f}"


def _cents(usd: Decimal) -> str:
    return f"{rounded(usd, Decimal('0.01')):,f}"


def _bill_notes(bill: Bill) -> list[str]:
    estimate = bill.estimate
    notes = [f"Not priced: {line.name}: {line.unknown}." for line in estimate.unpriced]
    if notes:
        notes.append("The totals miss what is not priced: they are lower bounds.")
    notes += chat_notes(bill)
    notes.append(_run_note(bill.run))
    notes += [note for part in bill.parts for note in part.notes]
    day = "none" if estimate.price_date is None else estimate.price_date.isoformat()
    notes.append(
        f"Prices: book {estimate.book.name}, oldest price used {day}; {estimate.book.caveat}."
    )
    return notes


def _run_note(run: RunCost | NotKnown) -> str:
    if isinstance(run, NotKnown):
        return f"Cost per training run: {run}."
    nodes = small_usd_text(run.nodes_usd)
    measured = (
        f"{run.job}, job {run.job_id}: {number(run.duration_s)} s on {run.device}, "
        f"measured on {run.date.isoformat()}"
    )
    return (
        f"Cost per training run: {small_usd_text(run.cluster_usd)} of the whole cluster, {nodes} "
        f"of the job's own nodes ({run.num_nodes}) alone ({measured})."
    )


def _csv_rows(bill: Bill) -> Iterator[Sequence[object]]:
    estimate = bill.estimate
    yield (
        "section", "resource", "size", "price_usd", "per", "low_usd", "high_usd", "unknown",
        "scope", "keys",
    )  # fmt: skip
    for line in estimate.components:
        rate = (None, None) if line.rate is None else (number(line.rate.usd), line.rate.per)
        amounts = (money(line.low_usd), money(line.high_usd))
        yield (
            line.section, line.name, line.size, *rate, *amounts, line.unknown, line.scope,
            " ".join(line.keys),
        )  # fmt: skip
    for name, total, scope in (
        ("Subtotal", estimate.subtotal(Scope.MAIN), Scope.MAIN),
        ("Total", estimate.total, None),
    ):
        amounts = (money(total.low_usd), money(total.high_usd))
        bound = "lower bound" if total.is_lower_bound else None
        yield (name, None, None, None, "month", *amounts, bound, scope, None)
    if bill.known_chats:
        yield ()
        yield from headed([_plain_chat(chat) for chat in bill.known_chats])


def _plain_bill(bill: Bill) -> dict[str, object]:
    return {
        "schema_version": SCHEMA_VERSION,
        **picked(bill, "stack=spec.name heading=spec.bill_heading price_book=estimate.book.name"),
        "components": [_plain_line(line) for line in bill.estimate.components],
        "cost": figures(bill),
        "chats": [_plain_chat(chat) for chat in bill.known_chats] or None,
        "parts": {part.name: part.data() for part in bill.parts},
        **picked(bill, "problems"),
        "notes": _bill_notes(bill),
    }


def _plain_line(line: CostComponent) -> dict[str, object]:
    paths = (
        "id section scope resource=name size price_usd=rate.usd rate.per monthly_low_usd=low_usd "
        "monthly_high_usd=high_usd unknown keys"
    )
    return {
        **picked(line, paths, money),
        "price_usd": line.rate and number(line.rate.usd),
        "prices": [picked(price, "sku source date") for price in line.prices],
    }


def _plain_chat(chat: ChatCost) -> dict[str, object]:
    paths = (
        "speed.scenario tokens_per_s=speed.output_tokens_per_s tokens_per_day chats_per_day "
        "cluster_low_usd cluster_high_usd serving_usd answer_s meets_slo"
    )
    return {**picked(chat, paths, number), "basis": speed_text(chat)}


def _rate(line: CostComponent) -> str:
    if line.rate is None:
        return UNPRICED
    if line.rate.usd == 0:
        return "free"
    text = number(line.rate.usd)
    cents = max(0, 2 - len(text.partition(".")[2]))
    return f"{text if '.' in text else text + '.'}{'0' * cents}/{line.rate.per}"


def figures(units: UnitCosts) -> dict[str, object]:
    """Figures of the bill; unit costs are the first scenario's, for the whole cluster."""
    estimate = units.estimate
    total, listed = estimate.total, estimate.subtotal(Scope.MAIN)
    chat = next(iter(units.known_chats), None)
    run = None if isinstance(units.run, NotKnown) else units.run
    reasons = {} if run else {"per_run_usd": str(units.run)}
    if chat is None:
        reasons |= dict.fromkeys(("per_chat_usd", "per_1m_tokens_usd"), str(units.chats))
    return {
        **picked(total, "hourly_usd=hourly_low_usd hourly_high_usd"),
        **picked(total, "monthly_low_usd=low_usd monthly_high_usd=high_usd", money),
        **picked(listed, "subtotal_low_usd=low_usd subtotal_high_usd=high_usd", money),
        **picked(total, "is_lower_bound"),
        "unpriced": [f"{line.name}: {line.unknown}" for line in estimate.unpriced],
        **picked(run, "per_run_usd=cluster_usd"),
        **picked(
            chat,
            "per_1m_tokens_usd=cluster_usd_per_1m_tokens per_chat_usd=cluster_low_usd "
            "serving_node_per_chat_usd=serving_usd",
        ),
        "basis": "NOT KNOWN" if chat is None else speed_text(chat),
        "reasons": reasons,
        **picked(estimate, "price_book=book.name price_date heading=spec.bill_heading"),
    }


_CHAT_SCHEMA_VERSION: Final = 1
_PART: Final = "break_even"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBill:
    """Another bill to share by the chats that fit: so many US dollars for so many days."""

    usd: Decimal
    days: Decimal

    def usd_per_chat(self, row: ChatCost) -> Decimal:
        """US dollars a chat at full load."""
        return self.usd / self.days / row.chats_per_day


def render_chats(
    bill: Bill, format: Format = Format.TABLE, shared: SharedBill | None = None
) -> str:
    """What a chat of the stack costs, in the format, ending in a newline."""
    parts = [part for part in bill.parts if part.name == _PART]
    rows = bill.known_chats
    table = chat_table(bill)
    notes = (*chat_notes(bill), *(note for part in parts for note in part.notes))
    per_chat = [(row, shared.usd_per_chat(row)) for row in rows if shared is not None]

    def data() -> dict[str, object]:
        chat = "model context_tokens output_tokens turns cached_share chats_per_day max_answer_s"
        found = [plain for row in rows if (plain := plain_operating(row)) is not None]
        usd = {row.speed.scenario: exact_money(usd) for row, usd in per_chat}
        return {
            "schema_version": _CHAT_SCHEMA_VERSION,
            **picked(
                bill, "stack=spec.name heading=spec.bill_heading estimate.total.is_lower_bound"
            ),
            "chat": picked(bill.spec.chat, chat),
            "chats": [plain_chat(row) for row in rows],
            "operating_points": found,
            **picked(bill, "no_operating_points"),
            "shared_bill": shared and {**picked(shared, "usd days", number), "per_chat_usd": usd},
            **{part.name: part.data() for part in parts},
            "notes": notes,
        }

    return render_report(
        Report(
            heading=bill.spec.bill_heading,
            tables=(
                *((table,) if table is not None else ()),
                *((_shared_table(per_chat, shared),) if shared is not None else ()),
                *(table for part in parts for table in part.tables),
            ),
            notes=notes,
            draw_figures=lambda: tuple(each for part in parts for each in part.draw_figures()),
            data=data,
            rows=lambda: headed([plain_chat(row) for row in rows]),
            title=f"Cost per chat of {bill.spec.name}",
        ),
        format,
    )


def plain_chat(row: ChatCost) -> dict[str, object]:
    """One row as plain values: numbers as text, None where there is none."""
    paths = (
        "speed.scenario speed.basis speed.date speed.source speed.output_tokens_per_s "
        "speed.batch_size speed.stream_tokens_per_s speed.prefill_tokens_per_s speed.prefill_basis "
        "tokens_per_day chats_per_day demand_per_day=chat.chats_per_day utilisation "
        "chat.serving_nodes serving_nodes_needed answer_s meets_slo cluster_low_usd "
        "cluster_high_usd serving_usd cluster_usd_per_1m_tokens serving_usd_per_1m_tokens"
    )
    return {**picked(row, paths), "tokens_per_day": int(row.tokens_per_day)}


def plain_operating(row: ChatCost) -> dict[str, object] | None:
    """The load test's point that the row is of; None for any other row."""
    if row.speed.operating is None:
        return None
    paths = (
        "operating.concurrency operating.output_tokens_per_s operating.requests_per_s "
        "operating.goodput_requests_per_s median_ttft_ms=operating.ttft.p50_ms "
        "p99_ttft_ms=operating.ttft.p99_ms median_tpot_ms=operating.tpot.p50_ms "
        "p99_tpot_ms=operating.tpot.p99_ms slo"
    )
    return picked(row.speed, f"scenario {paths}")


def _shared_table(per_chat: Sequence[tuple[ChatCost, Decimal]], shared: SharedBill) -> Table:
    return Table(
        title=f"Cost per chat when {usd_text(shared.usd)} pays for {number(shared.days)} days "
        "at full load",
        headings=("Scenario", "Chats/Day", "Cost/Chat"),
        rows=tuple(
            (row.speed.scenario, f"{int(row.chats_per_day):,}", small_usd_text(usd))
            for row, usd in per_chat
        ),
    )
