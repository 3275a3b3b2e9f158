"""`soperator chat-cost`: what one reference chat costs on a stack, and against hosted models."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Annotated

import typer

from cost.layout import Format
from infra.cli import context
from infra.cli.context import DEFAULT_STACK, StackOption
from infra.cli.errors import CliError
from infra.cli.output_file import OutputOption, put


def command(
    stack: StackOption = DEFAULT_STACK,
    usd: Annotated[
        str | None,
        typer.Option(metavar="USD", help="Share this bill by the chats too, as seed 000's 19000."),
    ] = None,
    days: Annotated[
        str, typer.Option(metavar="DAYS", help="Days that the bill of --usd pays for.")
    ] = "30",
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,
    output: OutputOption = None,
) -> None:
    """Show what one reference chat costs on a stack, at which wait, and against hosted models."""
    from cost.bill import bill
    from cost.chat_report import SharedBill, render_chats
    from cost.unit_costs import NotKnown
    from infra.jobs.records import load_records
    from infra.prices.book import price_book

    shared = None
    if usd is not None:
        shared = SharedBill(usd=_positive("--usd", usd), days=_positive("--days", days))
    spec = context.spec(stack)
    state = context.state_root()
    total = bill(spec, price_book(spec, state), load_records(state, stack))
    chats = total.unit_costs.chats
    if isinstance(chats, NotKnown):
        raise CliError(f"{stack}: cost per chat: {chats}")
    put(render_chats(total, format, shared), output)


def _positive(option: str, text: str) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal("NaN")
    if not value.is_finite() or value <= 0:
        raise CliError(f"{option} {text}: expected a number over 0, such as 30")
    return value
