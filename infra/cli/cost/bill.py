"""What a stack costs as declared, beside others, instead of it, by the chat, and why; what ran.

Owns where declarations, prices and run records are; what is damaged is refused with its file, so
that no figure is printed that a damaged file should have changed. The arithmetic is in cost/.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from html import escape
from pathlib import Path
from typing import Annotated

import typer

from cost.bill.bill import Bill, SharedBill, bill, bill_page, render, render_chats
from cost.bill.explain import explain as explanation_of
from cost.chat.unit_costs import NotKnown
from cost.choose.alternatives import alternatives, alternatives_report, parse_shortage
from cost.diff.table import (
    SIDES,
    StackChange,
    comment,
    csv_rows,
    plain_diff,
    render_compare,
    render_diff,
)
from cost.prices.book import PRICES_DIR, PriceBook, price_age_problems
from cost.report.layout import Format, csv_text, page, render_explanation, render_report
from cost.runs.invoice import Invoice, read_invoice
from cost.runs.spend import By, month_of, render_spend
from infra.cli import context
from infra.cli.context import StackOption, arg, moment, opt, put, share
from infra.cli.output import comparing, exit_code, note
from infra.jobs.records import load_whole_records, with_history
from infra.operate.prices import price_book
from infra.state import DEFAULT_STACK
from stacks.errors import Problem, UserError
from stacks.load import load_stack, stack_names
from stacks.spec import StackSpec

_MOST_ALTERNATIVES = 10


FormatOption = Annotated[Format, opt("How to print.")]


def cost(
    ctx: typer.Context,
    stack: StackOption = DEFAULT_STACK,
    compare: Annotated[
        list[str] | None,
        opt(
            "Put this stack beside it; or show the change from the stacks of another checkout.",
            "STACK|FOLDER",
        ),
    ] = None,
    alternatives: Annotated[bool, opt("Show what would do instead, best first.")] = False,
    without: Annotated[
        list[str] | None,
        opt("Hardware that cannot be had, for --alternatives.", "PLATFORM[/PRESET][@REGION]"),
    ] = None,
    format: FormatOption = Format.TABLE,
    output: context.OutputOption = None,
) -> None:
    """Show what a stack costs, beside others, instead of it, and why."""
    if ctx.invoked_subcommand is not None:
        _hand_on(ctx, ctx.invoked_subcommand, stack)
        return
    if compare and (alternatives or without):
        raise UserError("--compare and --alternatives are two questions; ask one at a time")
    if compare:
        is_given = "stack" in [each.name for each in context.given(ctx)]
        put(_compared(stack if is_given else None, compare, format), output)
    elif alternatives or without:
        put(_alternatives(stack, without or [], format), output)
    else:
        text, refused = _bill_text(stack, format)
        put(text, output)
        if refused:
            # The bill is whole: 1 is for scripts, which see no text.
            raise typer.Exit(1)


def _hand_on(ctx: typer.Context, command: str, stack: str) -> None:
    """The stack to the command; what else was given before it would have no effect."""
    for each in context.given(ctx):
        if each.name != "stack":
            ctx.fail(f"{each.opts[0]}: give the options of {command!r} after it")
        ctx.default_map = {command: {"stack": stack}}


def explain(
    item: Annotated[str, arg("A line, total, chat, run or policy rule.")],
    stack: StackOption = DEFAULT_STACK,
    format: FormatOption = Format.TABLE,
    output: context.OutputOption = None,
) -> None:
    """Show formula, inputs with their sources, and arithmetic of any figure of the bill."""
    found = of_stack(stack)
    put(render_explanation(explanation_of(found, item), format), output)


def _bill_text(stack: str, format: Format) -> tuple[str, bool]:
    """The bill and whether a limit is broken; limits and old prices go to standard error too."""
    found = of_stack(stack)
    text = bill_page(found) if format is Format.HTML else render(found, format)
    used = [price for line in found.estimate.components for price in line.prices]
    ages = price_age_problems(found.spec, used, datetime.now(UTC).date())
    note(*(*found.errors, *ages))
    return text, bool(found.errors)


def _compared(stack: str | None, targets: list[str], format: Format) -> str:
    folder = Path(targets[0])
    if folder.suffix in {".yaml", ".yml"} and not folder.is_dir():
        raise UserError(f"--compare {folder}: give its checkout, and the stack by --stack")
    if len(targets) == 1 and (folder.is_dir() or len(folder.parts) > 1):
        return _since_checkout(stack, folder, format)
    names = [stack or DEFAULT_STACK, *targets]
    for name in targets:
        if names.count(name) > 1:
            raise UserError(f"--compare {name}: named twice; name other stacks, each once")
    found = [of_stack(name) for name in names]
    return render_compare(found, format)


def _since_checkout(stack: str | None, folder: Path, format: Format) -> str:
    changes = since_checkout(folder, [stack] if stack else [])
    if format is Format.MARKDOWN:
        return comment(changes)
    pairs = [(each, each.difference) for each in changes]
    if format is Format.JSON:
        plain = {each.name: change and plain_diff(change) for each, change in pairs}
        return json.dumps({"schema_version": 1, "stacks": plain}, indent=2) + "\n"
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
    shortages = [parse_shortage(text) for text in without]
    context.refuse_attached(stack, "cost --alternatives")
    found: Bill = of_stack(stack)
    instead = alternatives(found, shortages, _MOST_ALTERNATIVES)
    return render_report(alternatives_report(found, instead), format)


_LEAST = Decimal("0.01")
_MOST = 10**12


def chat(
    stack: StackOption = DEFAULT_STACK,
    usd: Annotated[
        str | None, opt("Share this bill by the chats too, such as 19000.", "USD")
    ] = None,
    days: Annotated[str, opt("Days that the bill of --usd pays for.", "DAYS")] = "30",
    format: Annotated[Format, opt("How to print.")] = Format.TABLE,
    output: context.OutputOption = None,
) -> None:
    """Show what one reference chat costs on a stack, at which wait, and against hosted models."""
    shared = None
    if usd is not None:
        shared = SharedBill(usd=_positive("--usd", usd), days=_positive("--days", days))
    total = of_stack(stack)
    chats = total.chats
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


_STACKS = Path("stacks")
_PRICES = Path("cost/prices")


def of_stack(stack: str) -> Bill:
    """The bill of a declared stack, with the runs that were pulled here."""
    spec = context.spec(stack)
    return _bill(spec, price_book(spec, context.state_root()))


def since_checkout(folder: Path, stacks: Sequence[str] = ()) -> tuple[StackChange, ...]:
    """What became of the stacks of another checkout; every stack of either where none is named."""
    then = folder / _STACKS
    if not then.is_dir():
        raise UserError(f"--compare {folder}: no folder {_STACKS} in it; give a checkout")
    prices_dir = folder / _PRICES
    if not prices_dir.is_dir():
        note(f"--compare {folder}: no folder {_PRICES} in it; priced by the price books of today")
        prices_dir = PRICES_DIR
    was, now = set(stack_names(then)), set(stack_names())
    found: list[StackChange] = []
    for name in stacks or sorted(was | now):
        # What neither has is refused as every unknown stack is.
        after = None if name in was - now else of_stack(name)
        before, problem = None, None
        if name in was:
            try:
                spec = load_stack(name, then, environ=context.environ())
                book = PriceBook.load(spec.prices, prices_dir)
                before = _bill(spec, price_book(spec, context.state_root(), book))
            except UserError as error:
                problem = str(error).splitlines()[0]
        found.append(StackChange(name=name, before=before, after=after, problem=problem))
    return tuple(found)


def _bill(spec: StackSpec, book: PriceBook) -> Bill:
    """The bill; refused are errors other than what the stack may not afford, which a bill shows."""
    state = context.state_root()
    found = bill(with_history(spec, state, note), book, load_whole_records(state, spec.name))
    refused = [problem for problem in found.errors if not _is_unaffordable(problem, spec)]
    if refused:
        raise UserError("\n".join(str(problem) for problem in refused))
    return found


def _is_unaffordable(problem: Problem, spec: StackSpec) -> bool:
    """Whether a limit is passed; a limit that is declared wrong is refused like anything else."""
    if problem.path.startswith(f"{spec.name}.quotas["):
        return problem.path.endswith("].limit")
    return problem.path.startswith(f"{spec.name}.policy.")


def spend(
    stack: StackOption = DEFAULT_STACK,
    since: Annotated[
        str | None, opt("UTC, such as 2026-11-01; this month by default.", "TIME")
    ] = None,
    until: Annotated[str | None, opt("UTC; now by default.", "TIME")] = None,
    ledger_only: Annotated[
        bool, opt("Ask no cluster: what the ledger knows, and no more.", "--ledger")
    ] = False,
    invoice: Annotated[
        Path | None, opt("Billing export (FOCUS 1.2 CSV) to hold the bill against instead.", "FILE")
    ] = None,
    column: Annotated[
        list[str] | None, opt("With --invoice: another name of a column.", "OURS=THEIRS")
    ] = None,
    tolerance: Annotated[float, opt("With --invoice: what agrees.", "PERCENT", min=0)] = 2.0,
    by: Annotated[
        By | None, opt("The sums of jobs alone, of each of these, dearest first.")
    ] = None,
    identity: context.IdentityOption = None,
    format: Annotated[Format, opt("How to print.")] = Format.TABLE,
    output: context.OutputOption = None,
) -> None:
    """Show what ran and what it cost; with --invoice: PASS 0, FAIL 1, NOT RUN 69, trouble 2."""
    from infra.jobs.ledger import open_ledger, report_of_cluster, report_of_ledger

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
        ledger = open_ledger(context.spec(stack), context.state_root(), note)
        if ledger_only:
            report = report_of_ledger(ledger, since=first, until=last, now=now)
        else:
            outputs = context.caller(stack, identity)
            cluster = outputs.login_host_key
            with context.connect(outputs, identity) as connection:
                report = report_of_cluster(
                    ledger, connection, cluster=cluster, since=first, until=last, now=now
                )
        if billed is None:
            put(render_spend(report, format, by), output)
            return
        from cost.runs.invoice import reconcile, render_reconciliation

        found = reconcile(ledger.rates, report, billed, tolerance=close)
        put(render_reconciliation(found, format), output)
        raise typer.Exit(exit_code(found.verdict))


def _read(path: Path, columns: Sequence[str]) -> Invoice:
    """The export, its columns named as FOCUS does unless told otherwise."""
    wrong = [each for each in columns if "=" not in each.strip("=")]
    if wrong:
        raise UserError(f"--column {wrong[0]}: not OURS=THEIRS; write BilledCost=Amount")
    return read_invoice(path, dict(each.split("=", 1) for each in columns))
