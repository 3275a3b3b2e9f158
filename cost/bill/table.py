"""Prints a bill: render(bill, format), bill_page(bill), and figures(...) of the output `cost`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Final

from cost.bill.bill import Bill
from cost.chat.speeds import ChatCost
from cost.chat.table import chat_notes, chat_table, speed_text
from cost.chat.unit_costs import NotKnown, RunCost, UnitCosts
from cost.prices.price import HOURS_PER_MONTH
from cost.report.layout import (
    GAP,
    Format,
    Report,
    Table,
    exact_money,
    money,
    number,
    page,
    render_report,
    rounded,
    small_usd_text,
    span,
)
from cost.resources.component import CostComponent, Scope
from cost.resources.estimate import Estimate, Total

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
    return page(f"Cost of {bill.spec.name}", [_problems(bill), render(bill, Format.HTML)])


def document(bill: Bill) -> Report:
    """The bill as tables and notes, and as values for programs."""
    chats = chat_table(bill.unit_costs)
    return Report(
        heading=bill.estimate.heading,
        tables=(
            _lines(bill.estimate),
            *(() if chats is None else (chats,)),
            *(table for part in bill.parts for table in part.tables),
        ),
        notes=tuple(_notes(bill)),
        draw_figures=lambda: tuple(each for part in bill.parts for each in part.draw_figures()),
        data=lambda: _plain(bill),
        rows=lambda: _csv_rows(bill),
    )


def _lines(estimate: Estimate) -> Table:
    scopes = {
        scope: [line for line in estimate.components if line.scope is scope] for scope in Scope
    }
    rows = [
        *_section_rows(scopes[Scope.MAIN]),
        *_also_rows(scopes[Scope.ALSO], estimate),
        _total_row(
            "Total",
            Total(
                low_usd=estimate.monthly_low_usd,
                high_usd=estimate.monthly_high_usd,
                is_lower_bound=estimate.is_lower_bound,
            ),
        ),
    ]
    return Table(
        title=f"Cost of {estimate.stack_name} (USD without tax, {HOURS_PER_MONTH} hours a month)",
        headings=_HEADINGS,
        rows=tuple(rows),
        num_text_columns=2,
    )


def _also_rows(lines: Sequence[CostComponent], estimate: Estimate) -> list[tuple[str, ...]]:
    """Both subtotals and the lines between them; nothing where all lines are of one scope."""
    if not lines:
        return []
    return [
        _total_row("Subtotal", estimate.subtotal(Scope.MAIN)),
        (ALSO_BILLED, "", "", "", ""),
        *(_line_row(line) for line in lines),
        _total_row("Subtotal, also billed", estimate.subtotal(Scope.ALSO)),
    ]


def _section_rows(lines: Sequence[CostComponent]) -> Iterator[tuple[str, ...]]:
    section = None
    for line in lines:
        if line.section is not section:
            section = line.section
            yield (str(section), "", "", "", "")
        yield _line_row(line)


def _line_row(line: CostComponent) -> tuple[str, ...]:
    low, high = line.monthly_low_usd, line.monthly_high_usd
    amounts = (UNPRICED, UNPRICED) if low is None or high is None else _amounts(low, high)
    return (f"{GAP}{line.name}", line.size, _rate(line), *amounts)


def _total_row(name: str, total: Total) -> tuple[str, ...]:
    bound = ", at least" if total.is_lower_bound else ""
    return (f"{name}{bound}", "", "", *_amounts(total.low_usd, total.high_usd))


def _amounts(low: Decimal, high: Decimal) -> tuple[str, str]:
    """US dollars an hour and a month, one figure where both ends are the same."""
    return span(_hourly(low), _hourly(high), ".."), span(_cents(low), _cents(high), "..")


def _hourly(usd_per_month: Decimal) -> str:
    return f"{rounded(usd_per_month / HOURS_PER_MONTH, _MILL):,f}"


def _cents(usd: Decimal) -> str:
    return f"{rounded(usd, Decimal('0.01')):,f}"


def _notes(bill: Bill) -> list[str]:
    estimate = bill.estimate
    notes = [f"Not priced: {line.name}: {line.unknown}." for line in estimate.unpriced]
    if notes:
        notes.append("The totals miss what is not priced: they are lower bounds.")
    notes += chat_notes(bill.unit_costs)
    notes.append(_run_note(bill.unit_costs.run))
    notes += [note for part in bill.parts for note in part.notes]
    day = "none" if estimate.price_date is None else estimate.price_date.isoformat()
    notes.append(
        f"Prices: book {estimate.book_name}, oldest price used {day}; {estimate.book_caveat}."
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
        amounts = (money(line.monthly_low_usd), money(line.monthly_high_usd))
        yield (
            line.section, line.name, line.size, *rate, *amounts, line.unknown, line.scope,
            " ".join(line.keys),
        )  # fmt: skip
    listed = estimate.subtotal(Scope.MAIN)
    whole = (money(estimate.monthly_low_usd), money(estimate.monthly_high_usd))
    for name, amounts, is_bound, scope in (
        ("Subtotal", (money(listed.low_usd), money(listed.high_usd)), listed.is_lower_bound,
         Scope.MAIN),
        ("Total", whole, estimate.is_lower_bound, None),
    ):  # fmt: skip
        bound = "lower bound" if is_bound else None
        yield (name, None, None, None, "month", *amounts, bound, scope, None)
    if bill.unit_costs.known_chats:
        yield ()
        yield (
            "scenario", "tokens_per_s", "tokens_per_day", "chats_per_day", "cluster_low_usd",
            "cluster_high_usd", "serving_usd", "answer_s", "meets_slo", "basis",
        )  # fmt: skip
        for chat in bill.unit_costs.known_chats:
            yield tuple(_plain_chat(chat).values())


def _plain(bill: Bill) -> dict[str, object]:
    return {
        "schema_version": SCHEMA_VERSION,
        "stack": bill.spec.name,
        "heading": bill.estimate.heading,
        "price_book": bill.estimate.book_name,
        "components": [_plain_line(line) for line in bill.estimate.components],
        "cost": figures(bill.estimate, bill.unit_costs),
        "chats": [_plain_chat(chat) for chat in bill.unit_costs.known_chats] or None,
        "parts": {part.name: dict(part.plain) for part in bill.parts},
        "problems": [str(problem) for problem in bill.problems],
        "notes": _notes(bill),
    }


def _plain_line(line: CostComponent) -> dict[str, object]:
    return {
        "id": line.id,
        "section": str(line.section),
        "scope": str(line.scope),
        "resource": line.name,
        "size": line.size,
        "price_usd": None if line.rate is None else number(line.rate.usd),
        "per": None if line.rate is None else line.rate.per,
        "monthly_low_usd": money(line.monthly_low_usd),
        "monthly_high_usd": money(line.monthly_high_usd),
        "unknown": line.unknown,
        "keys": list(line.keys),
        "prices": [
            {"sku": price.sku, "source": price.source, "date": price.date.isoformat()}
            for price in line.prices
        ],
    }


def _plain_chat(chat: ChatCost) -> dict[str, object]:
    return {
        "scenario": chat.speed.scenario,
        "tokens_per_s": number(chat.speed.output_tokens_per_s),
        "tokens_per_day": number(chat.tokens_per_day),
        "chats_per_day": number(chat.chats_per_day),
        "cluster_low_usd": number(chat.cluster_low_usd),
        "cluster_high_usd": number(chat.cluster_high_usd),
        "serving_usd": number(chat.serving_usd),
        "answer_s": number(chat.answer_s),
        "meets_slo": chat.meets_slo,
        "basis": speed_text(chat),
    }


def _rate(line: CostComponent) -> str:
    if line.rate is None:
        return UNPRICED
    if line.rate.usd == 0:
        return "free"
    text = number(line.rate.usd)
    cents = max(0, 2 - len(text.partition(".")[2]))
    return f"{text if '.' in text else text + '.'}{'0' * cents}/{line.rate.per}"


def _problems(bill: Bill) -> str:
    # Its table of entities takes longer to import than a preview's text to print.
    import html

    items = [
        f'<li class="{problem.level}">{html.escape(str(problem))}</li>' for problem in bill.problems
    ]
    return f'<ul class="problems">{"".join(items)}</ul>' if items else ""


def figures(estimate: Estimate, unit_costs: UnitCosts) -> dict[str, object]:
    """Figures of the bill; unit costs are the first scenario's, for the whole cluster."""
    listed = estimate.subtotal(Scope.MAIN)
    chat = next(iter(unit_costs.known_chats), None)
    run = None if isinstance(unit_costs.run, NotKnown) else unit_costs.run
    reasons = {
        **({"per_run_usd": str(unit_costs.run)} if run is None else {}),
        **(
            {"per_chat_usd": str(unit_costs.chats), "per_1m_tokens_usd": str(unit_costs.chats)}
            if chat is None
            else {}
        ),
    }
    return {
        "hourly_usd": exact_money(estimate.hourly_low_usd),
        "hourly_high_usd": exact_money(estimate.hourly_high_usd),
        "monthly_low_usd": money(estimate.monthly_low_usd),
        "monthly_high_usd": money(estimate.monthly_high_usd),
        "subtotal_low_usd": money(listed.low_usd),
        "subtotal_high_usd": money(listed.high_usd),
        "is_lower_bound": estimate.is_lower_bound,
        "unpriced": [f"{line.name}: {line.unknown}" for line in estimate.unpriced],
        "per_run_usd": None if run is None else exact_money(run.cluster_usd),
        "per_1m_tokens_usd": None if chat is None else exact_money(chat.cluster_usd_per_1m_tokens),
        "per_chat_usd": None if chat is None else exact_money(chat.cluster_low_usd),
        "serving_node_per_chat_usd": None
        if chat is None or chat.serving_usd is None
        else exact_money(chat.serving_usd),
        "basis": "NOT KNOWN" if chat is None else speed_text(chat),
        "reasons": reasons,
        "price_book": estimate.book_name,
        "price_date": None if estimate.price_date is None else estimate.price_date.isoformat(),
        "heading": estimate.heading,
    }
