"""`soperator spend`: what ran and what it cost, from accounting and the ledger."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from cost.layout import Format
from infra.cli import context
from infra.cli.context import DEFAULT_STACK, IdentityOption, StackOption
from infra.cli.errors import CliError
from infra.cli.output import note
from infra.cli.output_file import OutputOption, put


def command(
    stack: StackOption = DEFAULT_STACK,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="UTC, such as 2026-11-01; this month by default."),
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="UTC; now by default.")] = None,
    ledger_only: Annotated[
        bool, typer.Option("--ledger", help="Ask no cluster: what the ledger knows, and no more.")
    ] = False,
    identity: IdentityOption = None,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,
    output: OutputOption = None,
) -> None:
    """Show what ran on a stack and what it cost; idle nodes, control plane and storage too."""
    from cost.budget import month_of
    from cost.spend_table import render_spend
    from infra.jobs import spent
    from infra.jobs.books import open_books

    now = datetime.now(UTC)
    first = month_of(now)[0] if since is None else moment("--since", since, now)
    last = now if until is None else moment("--until", until, now)
    if last <= first:
        raise CliError(f"--until {last:%Y-%m-%dT%H:%M}: not after {first:%Y-%m-%dT%H:%M} (--since)")
    books = open_books(context.spec(stack), context.state_root(), note)
    if ledger_only:
        report = spent.report_of_ledger(books, since=first, until=last, now=now)
    else:
        outputs = context.read(stack)
        cluster = outputs.login_host_key
        with context.connect(outputs, identity) as connection:
            report = spent.report_of_cluster(
                books, connection, cluster=cluster, since=first, until=last, now=now
            )
    put(render_spend(report, format), output)


def moment(option: str, text: str, now: datetime) -> datetime:
    """The time in UTC; one that is no time, or in the future, is refused."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise CliError(
            f"{option} {text}: not a time; write 2026-11-01 or 2026-11-01T08:00"
        ) from error
    found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    if found > now:
        raise CliError(
            f"{option} {text}: in the future (now is {now:%Y-%m-%dT%H:%M} UTC); spend is what ran, "
            "`soperator cost` is what is declared"
        )
    return found
