"""What a model needs, which preset answers so many chats a day for the least, prices in use."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Annotated, Any

import typer

from cost.choose.advise import advise as advice_on
from cost.choose.advise import explain_candidate, render_advice
from cost.choose.servers import SLO_NAMES, Ask, Promise, measured_curves
from cost.prices.book import Price, PriceBook, price_age_problems
from cost.report.layout import Format, picked, render_explanation, render_report
from cost.resources.estimate import estimate
from cost.run_record import RunRecord
from cost.size import answer
from cost.size.memory import Dtype, Method, Serving, Training
from cost.size.shape import load_shape
from infra.cli import context, output
from infra.cli.context import OutputOption, StackOption, arg, opt, put
from infra.jobs.records import load_whole_records
from infra.operate import prices as live
from infra.operate.prices import LivePriceError, price_book
from infra.providers.nebius.sdk import EndpointError
from infra.state import DEFAULT_STACK
from stacks.errors import UserError
from stacks.load import stack_names
from stacks.spec import StackSpec


class Rule(StrEnum):
    """A rule of thumb that may be shown beside the planner."""

    DECK_2024 = "2024-deck"


def size(
    ctx: typer.Context,
    model: Annotated[
        str | None,
        arg(
            "Name in the catalog, a config.json, or a folder that holds one; "
            "without it every model of the catalog that the stack holds."
        ),
    ] = None,
    stack: Annotated[
        str | None, opt("Only presets of its workers, as many as it has.", "--stack", "-s")
    ] = None,
    method: Annotated[Method, opt("What training changes.")] = Method.LORA,
    rank: Annotated[int, opt("Rank of the adapters.")] = 16,
    seq: Annotated[int, opt("Tokens of a row; in serving, of a conversation.")] = 4096,
    batch: Annotated[int, opt("Rows per GPU and forward pass.")] = 1,
    gpus: Annotated[int | None, opt("GPUs of the job; as few as fit by default.")] = None,
    gpu_mem: Annotated[int | None, opt("Memory of one GPU, for the strategies.", "GB")] = None,
    dtype: Annotated[Dtype | None, opt("Type of the weights.")] = None,
    checkpointing: Annotated[bool, opt("Compute activations again in the backward pass.")] = True,
    layers: Annotated[
        int | None,
        opt(
            "Recompute activations of the first N layers only; where no model "
            "is named, one with fewer has all recomputed.",
            "--checkpointing-layers",
            "N",
            min=0,
        ),
    ] = None,
    serve: Annotated[bool, opt("Size for chats instead.")] = False,
    streams: Annotated[int, opt("Conversations at once, with --serve.")] = 1,
    prices: Annotated[str, opt("Price book in cost/prices.", "BOOK")] = "nebius",
    rule: Annotated[Rule | None, opt("Show a deck's rule beside it.")] = None,
    format: Annotated[output.Format, opt("How to print.")] = output.Format.TABLE,
) -> None:
    """Show the memory that a model needs and where it fits, the cheapest preset first."""
    if layers is not None and not checkpointing:
        both = "--no-checkpointing and --checkpointing-layers"
        raise typer.BadParameter(f"{both} exclude each other; give one of them")
    training = {"method", "rank", "batch", "checkpointing", "layers"}
    flag, idle = "without --serve", {"streams"}
    if rule is not None:
        flag, idle = "--rule", training | {"stack", "seq", "gpus", "serve", "streams", "prices"}
    elif serve:
        flag, idle = "--serve", training | {"gpu_mem"}
    elif model is None:
        flag, idle = "of a whole catalog", {"streams", "gpu_mem"}
    elif method is Method.FULL:
        flag, idle = "--method full without --serve", {"streams", "rank"}
    given = [each for each in context.given(ctx) if each.name in idle]
    if unused := ["/".join((*each.opts, *each.secondary_opts)) for each in given]:
        ctx.fail(f"{flag}: {', '.join(unused)} would change nothing; leave it out")
    if rule is not None:
        found = answer.deck_answer(model, dtype=dtype, gpu_memory_gb=gpu_mem)
    else:
        need = (
            Serving(
                dtype=dtype or Dtype.BF16,
                streams=streams,
                context_tokens=seq,
                tensor=1 if gpus is None else gpus,
            )
            if serve
            else Training(
                method=method,
                dtype=dtype or Dtype.BF16,
                rank=rank,
                sequence_length=seq,
                micro_batch_size=batch,
                gradient_checkpointing=checkpointing if layers is None else layers,
            )
        )
        book, spec = PriceBook.load(prices), None if stack is None else context.spec(stack)
        if model is None:
            spec = spec or context.spec(DEFAULT_STACK)
            found = answer.models_answer(need, book, spec, gpus=gpus)
        elif isinstance(need, Serving):
            found = answer.serving_answer(model, need, book, spec=spec)
        else:
            found = answer.training_answer(
                model, need, book, gpus=gpus, gpu_memory_gb=gpu_mem, spec=spec
            )
    put(render_report(found, Format(format)), None)


def advise(
    model: Annotated[str, opt("Name in the catalog, a config.json, or a folder that holds one.")],
    slo: Annotated[
        str | None,
        opt("What 99 of 100 answers keep: ttft_p99_s, tpot_p99_ms; none by default.", "NAME=N,..."),
    ] = None,
    chats_per_day: Annotated[int | None, opt("Demand; the stack's by default.", "N")] = None,
    input_tokens: Annotated[
        int | None, opt("Tokens read before an answer; the stack's by default.", "N")
    ] = None,
    output_tokens: Annotated[
        int | None, opt("Tokens written in a chat; the stack's by default.", "N")
    ] = None,
    turns: Annotated[
        int | None, opt("Answers in a chat; the stack's, or 1 with other tokens.", "N")
    ] = None,
    peak_factor: Annotated[str, opt("Chats at the busiest time over the day's mean.", "X")] = "2",
    region: Annotated[
        str | None, opt("Only presets there; each where it is cheapest by default.")
    ] = None,
    explain: Annotated[
        str | None, opt("Show the arithmetic of this one instead.", "PLATFORM/PRESET")
    ] = None,
    stack: StackOption = DEFAULT_STACK,
    prices: Annotated[str, opt("Price book in cost/prices.", "BOOK")] = "nebius",
    format: Annotated[Format, opt("How to print.")] = Format.TABLE,
    output: OutputOption = None,
) -> None:
    """Rank presets and numbers of servers by cost per chat, measured or estimated, and say why."""
    declared = context.spec(stack)
    chat = declared.chat
    demand = chat.chats_per_day if chats_per_day is None else chats_per_day
    if demand is None:
        raise UserError(
            f"--chats-per-day: missing, and {declared.name} declares no chat.chats_per_day"
        )
    is_declared = input_tokens is None and output_tokens is None
    ask = Ask(
        shape=load_shape(model),
        input_tokens=chat.context_tokens if input_tokens is None else input_tokens,
        output_tokens=chat.output_tokens if output_tokens is None else output_tokens,
        turns=turns if turns is not None else chat.turns if is_declared else 1,
        cached_share=chat.cached_share if is_declared else Decimal(0),
        chats_per_day=demand,
        peak_factor=_number("--peak-factor", peak_factor),
        promise=_promise(slo),
        region=region,
    )
    source = f"Chats are {f'those of stack {declared.name}' if is_declared else 'as given'}."
    curves = measured_curves(ask.shape.name, _records(declared))
    found = advice_on(ask, PriceBook.load(prices), curves)
    if explain is not None:
        put(render_explanation(explain_candidate(found, explain), format), output)
        return
    heading = declared.bill_heading
    emulated = [f"Curves of stack {stack}: {heading}"] if heading else []
    put(render_advice(found, format, [source, *emulated]), output)
    if found.winner is None:
        raise UserError(
            f"no preset keeps {ask.promise} for {ask.shape.name}; relax --slo, shorten the chats, "
            "or take a smaller model"
        )


def _records(declared: StackSpec) -> list[RunRecord]:
    """What was pulled of the stack, and of every other one whose hardware is real."""
    state = context.state_root()
    found = list(load_whole_records(state, declared.name))
    for name in stack_names():
        is_pulled = (state / "runs" / name).is_dir()
        if name == declared.name or not is_pulled or context.spec(name).bill_heading is not None:
            continue
        found += load_whole_records(state, name)
    return found


def _promise(text: str | None) -> Promise:
    bounds: dict[str, Decimal] = {}
    problems: list[str] = []
    for part in text.split(",") if text else []:
        name, equals, value = (each.strip() for each in part.partition("="))
        if name not in SLO_NAMES or not equals:
            problems.append(f"--slo {part}: expected NAME=N, NAME one of {', '.join(SLO_NAMES)}")
            continue
        if name in bounds:
            problems.append(f"--slo {part}: {name} is given twice")
        try:
            bounds[name] = _number(f"--slo {name}", value)
        except UserError as error:
            problems.append(str(error))
    if problems:
        raise UserError("\n".join(problems))
    return Promise(**bounds)


def _number(option: str, text: str) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal("NaN")
    if not value.is_finite() or not Decimal("1e-9") <= value <= 10**9:
        raise UserError(f"{option}: got {text!r}, expected a number over 0, such as 2.5")
    return value


_HEADERS = ("SKU", "USD", "Per", "Region", "Layer", "Date", "Age", "Source")


def prices(
    stack: StackOption = DEFAULT_STACK,
    refresh: Annotated[bool, opt("Ask the provider's calculator first.")] = False,
    whole_book: Annotated[
        bool, opt("List every SKU, not only those that the stack uses.", "--all")
    ] = False,
    format: Annotated[output.Format, opt("How to print.")] = output.Format.TABLE,
) -> None:
    """Show the prices of a stack with source, date and age, and the readings that are not used."""
    spec = context.spec(stack)
    today = _today()
    is_current = not refresh or _refresh(spec, today)
    book = price_book(spec, context.state_root())
    # Those of the bill stand in the order of its lines.
    used = (price for line in estimate(spec, book).components for price in line.prices)
    prices = list(book.prices.values() if whole_book else dict.fromkeys(used))
    unused = [other for price in prices for other in book.unused(price.sku)]
    if format is output.Format.JSON:
        output.print_json(
            {
                "stack": spec.name,
                "book": book.name,
                "currency": "USD",
                "prices": [_plain(price, today) for price in prices],
                "not_used": [_plain(price, today) for price in unused],
            }
        )
    else:
        _print(spec, book, prices, unused)
        output.note(*price_age_problems(spec, prices, today))
    if not is_current:
        raise typer.Exit(1)


def _print(spec: StackSpec, book: PriceBook, prices: list[Price], unused: list[Price]) -> None:
    today = _today()
    print(f"Prices of {spec.name}: book {book.name}, {spec.nebius.region}, USD without tax")
    output.print_table(_HEADERS, _rows(prices, today))
    if unused:
        print("\nReadings that are not used:")
        output.print_table(_HEADERS, _rows(unused, today))


def _refresh(spec: StackSpec, today: date) -> bool:
    """Keeps today's estimates; where there are none, says so in a line and is False."""
    try:
        prices, not_recognised = live.estimate(spec, today)
    except (LivePriceError, EndpointError) as error:
        for line in str(error).splitlines():
            output.note(f"soperator: {line}; the prices stay as they were")
        return False
    path = live.save(context.state_root(), spec.nebius.region, prices)
    output.note(f"{len(prices)} prices of {prices[0].source}: {path}")
    for line in not_recognised:
        output.note(f"not refreshed: {line}")
    if not spec.live_prices:
        output.note(f"{spec.name} does not use them: set live_prices: true in its stack file")
    return True


def _today() -> date:
    return datetime.now(UTC).date()


def _rows(prices: Iterable[Price], today: date) -> list[tuple[object, ...]]:
    return [
        (
            price.sku,
            f"{price.usd:f}",
            price.unit,
            price.region or "all",
            price.layer,
            price.dated,
            f"{(today - price.date).days} d",
            price.source,
        )
        for price in prices
    ]


def _plain(price: Price, today: date) -> dict[str, Any]:
    return {
        **picked(price, "sku usd unit region layer date is_undated", "{:f}".format),
        "age_days": (today - price.date).days,
        "source": price.source,
    }
