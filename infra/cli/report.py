"""`soperator report`: one self-contained HTML page about a stack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra.cli import context
from infra.cli.context import DEFAULT_STACK, StackOption


def command(
    stack: StackOption = DEFAULT_STACK,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write; the state folder by default.")
    ] = None,
) -> None:
    """Write report.html from what is declared and measured; prints its path."""
    from infra.report.collect import collect
    from infra.report.page import write

    report = collect(context.spec(stack), context.state_root())
    print(write(report, out or context.state_root() / "report.html"))
