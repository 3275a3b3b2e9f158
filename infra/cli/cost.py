"""`soperator cost`: what a stack costs as declared, with unit costs from measured runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cost.layout import Format
from infra.cli import context
from infra.cli.context import DEFAULT_STACK, StackOption


def command(
    stack: StackOption = DEFAULT_STACK,
    compare: Annotated[
        str | None, typer.Option(metavar="STACK", help="Show the change from this stack.")
    ] = None,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,
) -> None:
    """Show what a stack costs, or compare two stacks."""
    from cost.diff import diff
    from cost.diff_table import render_diff
    from cost.snapshot import take
    from cost.table import render

    bill = context.bill(stack)
    if compare is None:
        sys.stdout.write(render(bill, format))
        return
    sys.stdout.write(render_diff(diff(take(context.bill(compare)), take(bill)), format))
