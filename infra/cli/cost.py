"""`soperator cost`: what a stack costs as declared, beside others, instead of it, and why.

Owns what people type. The arithmetic and the words are in cost/, where bills come from in bills.py.
    soperator cost [--compare STACK | FILE | CHECKOUT] [--alternatives]; soperator cost explain ITEM
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cost.report.layout import Document, Format, lay_out
from infra.cli import bills
from infra.cli.context import StackOption
from infra.cli.output import note
from infra.cli.output_file import OutputOption, put
from infra.state import DEFAULT_STACK
from stacks.errors import UserError

if TYPE_CHECKING:
    from cost.bill.bill import Bill

_MOST_ALTERNATIVES = 10

app = typer.Typer(
    name="cost",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

FormatOption = Annotated[Format, typer.Option(help="How to print.")]


@app.callback()
def command(
    ctx: typer.Context,
    stack: StackOption = DEFAULT_STACK,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STACK|FILE|FOLDER",
            help="Put this stack beside it; or show the change from a stack file, or from every "
            "stack of another checkout.",
        ),
    ] = None,
    alternatives: Annotated[
        bool, typer.Option("--alternatives", help="Show what would do instead, best first.")
    ] = False,
    without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PLATFORM[/PRESET][@REGION]",
            help="Hardware that cannot be had, for --alternatives.",
        ),
    ] = None,
    format: FormatOption = Format.TABLE,
    output: OutputOption = None,
) -> None:
    """Show what a stack costs, beside others, instead of it, and why."""
    ctx.obj = stack
    if ctx.invoked_subcommand is not None:
        return
    if compare and (alternatives or without):
        raise UserError("--compare and --alternatives are two questions; ask one at a time")
    if compare:
        given = ctx.get_parameter_source("stack")
        is_given = given is not None and given.name == "COMMANDLINE"
        put(_compared(stack if is_given else None, compare, format), output)
    elif alternatives or without:
        put(_alternatives(stack, without or [], format), output)
    else:
        text, refused = _bill(stack, format)
        put(text, output)
        if refused:
            # The bill is whole: 1 is for scripts, which see no text.
            raise typer.Exit(1)


@app.command("explain")
def explain(
    ctx: typer.Context,
    item: Annotated[str, typer.Argument(help="A line, total, chat, run or policy rule.")],
    stack: Annotated[
        str | None, typer.Option("--stack", "-s", help="Stack to use.", show_default=False)
    ] = None,
    format: FormatOption = Format.TABLE,
    output: OutputOption = None,
) -> None:
    """Show formula, inputs with their sources, and arithmetic of any figure of the bill."""
    from cost.bill.explain import explain as explanation_of
    from cost.report.explanation import render_explanation

    found = bills.of_stack(stack or ctx.obj)
    put(render_explanation(explanation_of(found, item), format), output)


def _bill(stack: str, format: Format) -> tuple[str, bool]:
    """The bill and whether a limit is broken; limits and old prices go to standard error too."""
    from cost.bill.table import bill_page, render
    from cost.prices.book import price_age_problems

    found = bills.of_stack(stack)
    text = bill_page(found) if format is Format.HTML else render(found, format)
    used = [price for line in found.estimate.components for price in line.prices]
    ages = price_age_problems(found.spec, used, datetime.now(UTC).date())
    for problem in (*found.errors, *ages):
        note(str(problem))
    return text, bool(found.errors)


def _compared(stack: str | None, targets: list[str], format: Format) -> str:
    from cost.diff.comment import SIDES
    from cost.diff.compare import render_compare
    from cost.diff.diff import diff
    from cost.diff.snapshot import take
    from cost.diff.table import render_diff

    first = Path(targets[0])
    is_path = first.suffix == ".yaml" or len(first.parts) > 1
    if len(targets) == 1 and first.is_dir():
        return _since_checkout(stack, first, format)
    if is_path and len(targets) == 1:
        before = bills.of_file(first)
        after = bills.of_stack(stack or before.spec.name)
        change = diff(take(before), take(after))
        return _paged(render_diff(change, format, SIDES), format, "Change")
    names = [stack or DEFAULT_STACK, *targets]
    for name in targets:
        if names.count(name) > 1:
            raise UserError(f"--compare {name}: named twice; name other stacks, each once")
    found = [bills.of_stack(name) for name in names]
    return _paged(render_compare(found, format), format, f"Cost of {', '.join(names)}")


def _since_checkout(stack: str | None, folder: Path, format: Format) -> str:
    from html import escape

    from cost.diff.comment import SIDES, comment
    from cost.diff.table import csv_rows, plain_diff, render_diff
    from cost.report.layout import csv_text, page

    changes = bills.since_checkout(folder, [stack] if stack else [])
    if format is Format.MARKDOWN:
        return comment(changes)
    found = [each.difference for each in changes]
    if format is Format.JSON:
        plain = {
            each.name: None if difference is None else plain_diff(difference)
            for each, difference in zip(changes, found, strict=True)
        }
        return json.dumps({"schema_version": 1, "stacks": plain}, indent=2) + "\n"
    pairs = [*zip(changes, found, strict=True)]
    if format is Format.CSV:
        known = [(each.name, list(csv_rows(change))) for each, change in pairs if change]
        rows = [("stack", *headings) for _, (headings, *_) in known[:1]]
        return csv_text([*rows, *((name, *row) for name, (_, *more) in known for row in more)])
    if format is Format.HTML:
        fragments = [
            f"<h2>{escape(each.name)}</h2>"
            + (
                f"<p>{escape(each.state)}</p>"
                if change is None
                else render_diff(change, format, SIDES)
            )
            for each, change in pairs
        ]
        return page("Cost of this change", fragments)
    return "\n".join(
        f"{each.name}: {each.state}\n" if change is None else render_diff(change, sides=SIDES)
        for each, change in pairs
    )


def _alternatives(stack: str, without: list[str], format: Format) -> str:
    from cost.choose.alternatives import alternatives, alternatives_part, parse_shortage
    from cost.report.layout import csv_text

    shortages = [parse_shortage(text) for text in without]
    found: Bill = bills.of_stack(stack)
    part = alternatives_part(
        found.inputs, alternatives(found.inputs, shortages, _MOST_ALTERNATIVES)
    )
    if format is Format.JSON:
        plain = {"schema_version": 1, "stack": stack, **part.plain}
        return json.dumps(plain, indent=2) + "\n"
    if format is Format.CSV:
        return csv_text([row for table in part.tables for row in (table.headings, *table.rows)])
    document = Document(heading=None, tables=part.tables, notes=part.notes)
    return _paged(lay_out(document, format), format, f"Instead of {stack}")


def _paged(text: str, format: Format, title: str) -> str:
    """A whole page where the text is a fragment of HTML."""
    from cost.report.layout import page

    return page(title, [text]) if format is Format.HTML else text
