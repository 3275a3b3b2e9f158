"""`soperator report`: one self-contained HTML page about a stack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra.cli import context
from infra.cli.context import DEFAULT_STACK, StackOption
from infra.cli.errors import CliError


def command(
    stack: StackOption = DEFAULT_STACK,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write; the state folder by default.")
    ] = None,
) -> None:
    """Write report.html from what is declared and measured; prints its path."""
    from infra.jobs.records import load_whole_records
    from infra.report.collect import collect
    from infra.report.page import write

    spec, state = context.spec(stack), context.state_root()
    # A page that leaves a damaged record out looks like one of a job that never ran.
    load_whole_records(state, stack)
    file = out or state / "report.html"
    try:
        print(write(collect(spec, state), file))
    except OSError as error:
        raise CliError(
            f"--out {file}: {error.strerror}; nothing was written: give a file in a folder that "
            "is there and yours"
        ) from error
