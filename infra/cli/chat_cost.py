"""`soperator chat-cost`: what one reference chat costs on a stack, assumed and measured."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from infra.cli import context, output
from infra.cli.context import DEFAULT_STACK, StackOption
from infra.cli.errors import CliError
from infra.cli.output import Format


def command(
    stack: StackOption = DEFAULT_STACK,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,
) -> None:
    """Show what one reference chat costs on a stack."""
    from cost.unit_costs import NotKnown

    bill, units = context.bill(stack)
    if isinstance(units.chats, NotKnown):
        raise CliError(f"{stack}: cost per chat: {units.chats}")
    if format is Format.JSON:
        output.print_json([asdict(row) for row in units.chats])
        return
    if bill.heading:
        print(bill.heading)
    output.print_table(
        ("SCENARIO", "BASIS", "TOKENS/S", "CHATS/DAY", "CLUSTER USD/CHAT", "NODE USD/CHAT"),
        [
            (
                row.speed.scenario,
                f"{row.speed.basis.value} {row.speed.date or ''}".rstrip(),
                f"{row.speed.output_tokens_per_s:.2f}",
                f"{row.chats_per_day:,.0f}",
                f"{row.cluster_low_usd:.4f}",
                None if row.serving_usd is None else f"{row.serving_usd:.4f}",
            )
            for row in units.chats
        ],
    )
