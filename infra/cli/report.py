"""What is declared, as a page and as a drawing, and what was measured of it."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

from cost.report.layout import Format
from infra.cli import context
from infra.cli.context import OutputOption, StackOption, opt, put
from infra.jobs.records import load_whole_records
from infra.render.stack_drawing import stack_svg
from infra.reports.page.loop import close_loop, loop_text, plain_loop
from infra.reports.page.page import render
from infra.reports.page.training import collect
from infra.state import DEFAULT_STACK


class ReportFormat(StrEnum):
    """The whole page, or what the finetune brought."""

    HTML = "html"
    TABLE = "table"
    MARKDOWN = "markdown"
    JSON = "json"


def report(
    stack: StackOption = DEFAULT_STACK,
    format: Annotated[
        ReportFormat,
        opt("The page; or its answers and what the finetune brought, as text or JSON."),
    ] = ReportFormat.HTML,
    output: OutputOption = None,
) -> None:
    """Write what is declared and measured as a page, report.html in the state folder by default."""
    spec, state = context.spec(stack), context.state_root()
    # A page that leaves a damaged record out looks like one of a job that never ran.
    load_whole_records(state, stack)
    found = collect(spec, state)
    if format is not ReportFormat.HTML:
        loop = close_loop(found)
        plain = format is ReportFormat.JSON
        text = json.dumps(plain_loop(loop), indent=2) if plain else loop_text(loop, Format(format))
        put(text.rstrip("\n") + "\n", output)
        return
    if output is None:
        state.mkdir(parents=True, exist_ok=True)
    put(render(found), output or state / "report.html")


def draw(stack: StackOption = DEFAULT_STACK, file: OutputOption = None) -> None:
    """Draw a declared stack as SVG: nodes, network, filesystems, queues, doors; asks nothing."""
    put(stack_svg(context.spec(stack)), file)
