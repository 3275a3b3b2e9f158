"""`soperator chat-cost`: what one reference chat costs on a stack, and against hosted models."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Annotated

import typer

from cost.report.layout import Format
from infra.cli import bills
from infra.cli.context import StackOption
from infra.cli.output_file import OutputOption, put
from infra.state import DEFAULT_STACK
from stacks.errors import UserError

_LEAST = Decimal("0.01")
_MOST = 10**12


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
    from cost.bill.chat_report import SharedBill, render_chats
    from cost.chat.unit_costs import NotKnown

    shared = None
    if usd is not None:
        shared = SharedBill(usd=_positive("--usd", usd), days=_positive("--days", days))
    total = bills.of_stack(stack)
    chats = total.unit_costs.chats
    if isinstance(chats, NotKnown):
        raise UserError(f"{stack}: cost per chat: {chats}")
    put(render_chats(total, format, shared), output)


def _positive(option: str, text: str) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal("NaN")
    if not value.is_finite() or not _LEAST <= value <= _MOST:
        raise UserError(
            f"{option} {text}: expected a number from {_LEAST} to {_MOST:,}, such as 30"
        )
    return value
