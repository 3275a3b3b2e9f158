"""What ran and what it cost, from accounting, the ledger, and an invoice."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from cost.report.layout import Format
from cost.runs.invoice import Invoice, read_invoice
from cost.runs.spend import month_of, render_spend
from infra.cli import context
from infra.cli.context import IdentityOption, OutputOption, StackOption, moment, put, share
from infra.cli.output import comparing, exit_code, note
from infra.jobs import ledger
from infra.jobs.ledger import open_books
from infra.state import DEFAULT_STACK
from stacks.errors import UserError


def spend(
    stack: StackOption = DEFAULT_STACK,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="UTC, such as 2026-11-01; this month by default."),
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="UTC; now by default.")] = None,
    ledger_only: Annotated[
        bool, typer.Option("--ledger", help="Ask no cluster: what the ledger knows, and no more.")
    ] = False,
    invoice: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Billing export (FOCUS 1.2 CSV) to hold the bill against instead."
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="OURS=THEIRS", help="With --invoice: another name of a column."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(metavar="PERCENT", min=0, help="With --invoice: what agrees.")
    ] = 2.0,
    identity: IdentityOption = None,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,
    output: OutputOption = None,
) -> None:
    """Show what ran and what it cost; with --invoice: PASS 0, FAIL 1, NOT RUN 69, trouble 2."""
    # Beside an invoice, 1 says that the bill differs from it.
    with nullcontext() if invoice is None else comparing():
        close = share("--tolerance", tolerance)
        now = datetime.now(UTC)
        billed = None if invoice is None else _read(invoice, column or ())
        first = month_of(now)[0] if billed is None else billed.since
        last = now if billed is None else min(now, billed.until)
        first = first if since is None else moment("--since", since, now)
        last = last if until is None else moment("--until", until, now)
        if last <= first:
            raise UserError(
                f"--until {last:%Y-%m-%dT%H:%M}: not after {first:%Y-%m-%dT%H:%M} (--since)"
            )
        if billed is None and (up := context.first_up(stack)) is not None and first < up < last:
            note(f"{stack}: the period starts at {up:%Y-%m-%dT%H:%M} UTC, when it first came up")
            first = up
        books = open_books(context.spec(stack), context.state_root(), note)
        if ledger_only:
            report = ledger.report_of_ledger(books, since=first, until=last, now=now)
        else:
            outputs = context.caller(stack, identity)
            cluster = outputs.login_host_key
            with context.connect(outputs, identity) as connection:
                report = ledger.report_of_cluster(
                    books, connection, cluster=cluster, since=first, until=last, now=now
                )
        if billed is None:
            put(render_spend(report, format), output)
            return
        from cost.resources.estimate import estimate
        from cost.runs.reconcile import reconcile, render_reconciliation

        found = reconcile(
            estimate(books.spec, books.rates.book), report.spend, billed, tolerance=close
        )
        put(render_reconciliation(found, format), output)
        raise typer.Exit(exit_code(found.verdict))


def _read(path: Path, columns: Sequence[str]) -> Invoice:
    """The export, its columns named as FOCUS does unless told otherwise."""
    wrong = [each for each in columns if "=" not in each.strip("=")]
    if wrong:
        raise UserError(f"--column {wrong[0]}: not OURS=THEIRS; write BilledCost=Amount")
    return read_invoice(path, dict(each.split("=", 1) for each in columns))
