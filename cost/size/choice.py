"""Which presets a model fits on, the cheapest first: choices(shape, training, book).

Owns the number of nodes that each preset needs and the order. What fits is in verdict.py, what a
node costs in cost/resources/nodes.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

from cost.layout import small_usd_text
from cost.price_book import PriceBook, UnknownPrice
from cost.size.gpu import usable_bytes, usable_host_bytes
from cost.size.node_price import cheapest_rate
from cost.size.serving import Serving, most_streams, serving_memory
from cost.size.shape import ModelShape
from cost.size.sharding import Strategy
from cost.size.training import TRAINED_DTYPES, Training
from cost.size.verdict import Gpus, Verdict, best, gib_text, verdicts
from stacks.catalog import PLATFORMS, Preset
from stacks.node_spec import Billing

NODE_COUNTS: Final = (1, 2, 4, 8)
"""Nodes that are tried for a preset, until something fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One preset with the least number of nodes that hold the model."""

    platform: str
    preset: str
    nodes: int
    gpus: int
    fits: bool
    runs_here: bool
    strategy: str
    need_bytes: int
    usable_bytes: int
    largest_batch: int
    """Rows a GPU in training, streams a process in serving."""
    usd_per_hour: Decimal | None
    """All its nodes, without disks; None where the book has no price."""
    region: str
    """Where that price holds: the cheapest region of the platform."""
    reason: str


def training_choices(
    shape: ModelShape,
    training: Training,
    book: PriceBook,
    *,
    gpus: int | None = None,
    billing: Billing = Billing.ON_DEMAND,
) -> tuple[Choice, ...]:
    """Every GPU preset, those that fit and run here first and by price; `gpus` asks for as many."""
    found = [
        _training_choice(shape, training, book, platform, preset, memory_gb, gpus, billing)
        for platform, preset, memory_gb in gpu_presets()
    ]
    return _ranked(found)


def serving_choices(
    shape: ModelShape,
    serving: Serving,
    book: PriceBook,
    *,
    billing: Billing = Billing.ON_DEMAND,
) -> tuple[Choice, ...]:
    """Every GPU preset for one process on one node, over as many of its GPUs as heads allow."""
    found = [
        _serving_choice(shape, serving, book, platform, preset, memory_gb, billing)
        for platform, preset, memory_gb in gpu_presets()
    ]
    return _ranked(found)


def gpu_presets() -> Iterator[tuple[str, Preset, int]]:
    """Platform, preset and GB of memory a GPU, for every preset with GPUs."""
    for platform in PLATFORMS.values():
        if platform.gpu_memory_gb is not None:
            for preset in platform.presets.values():
                yield platform.name, preset, platform.gpu_memory_gb


def _order(choice: Choice) -> tuple[bool, bool, bool, Decimal, int, str, str]:
    price = choice.usd_per_hour
    return (
        not _is_good(choice),
        not choice.fits,
        price is None,
        price or Decimal(0),
        choice.gpus,
        choice.platform,
        choice.preset,
    )


def _training_choice(
    shape: ModelShape,
    training: Training,
    book: PriceBook,
    platform: str,
    preset: Preset,
    memory_gb: int,
    gpus: int | None,
    billing: Billing,
) -> Choice:
    counts = NODE_COUNTS if gpus is None else (-(-gpus // preset.gpus),)
    usable = usable_bytes(memory_gb)
    tried: list[tuple[int, Verdict]] = []
    for nodes in counts:
        found = verdicts(
            shape,
            training,
            Gpus(
                nodes=nodes,
                per_node=preset.gpus,
                usable=usable,
                host_bytes=usable_host_bytes(preset.memory_gib),
            ),
        )
        tried.append((nodes, best(found)))
        if tried[-1][1].fits:
            break
    # Where nothing fits, one node with plain DDP says best what is missing.
    nodes, verdict = tried[-1] if tried[-1][1].fits else tried[0]
    return _choice(
        book,
        platform,
        preset,
        billing,
        nodes=nodes,
        fits=verdict.fits,
        runs_here=verdict.runs_here,
        strategy=verdict.sharding.label,
        need_bytes=verdict.memory.total,
        usable=usable,
        largest=verdict.largest_micro_batch,
        reason=verdict.reason
        if verdict.fits
        else f"{verdict.reason}; no strategy fits on up to {counts[-1] * preset.gpus} GPUs",
    )


def _serving_choice(
    shape: ModelShape,
    serving: Serving,
    book: PriceBook,
    platform: str,
    preset: Preset,
    memory_gb: int,
    billing: Billing,
) -> Choice:
    usable = usable_bytes(memory_gb)
    ways = [
        ways
        for ways in range(1, preset.gpus + 1)
        if preset.gpus % ways == 0 and shape.heads % ways == 0
    ]
    tried = [
        Serving(
            dtype=serving.dtype,
            streams=serving.streams,
            context_tokens=serving.context_tokens,
            tensor=tensor,
        )
        for tensor in ways
    ]
    chosen = next(
        (each for each in tried if serving_memory(shape, each).total <= usable), tried[-1]
    )
    memory = serving_memory(shape, chosen)
    need = f"needs {gib_text(memory.total)} of {gib_text(usable)} a GPU"
    fits = memory.total <= usable
    # workloads/evaluate generates in one process on one GPU, with weights as they are trained.
    cannot = "" if chosen.tensor == 1 else f"one model over {chosen.tensor} GPUs"
    if serving.dtype not in TRAINED_DTYPES:
        cannot = ", ".join([cannot] * bool(cannot) + [f"dtype {serving.dtype}"])
    return _choice(
        book,
        platform,
        preset,
        billing,
        nodes=1,
        fits=fits,
        runs_here=not cannot,
        strategy=f"{Strategy.TENSOR} {chosen.tensor}" if chosen.tensor > 1 else "one GPU",
        need_bytes=memory.total,
        usable=usable,
        largest=most_streams(shape, chosen, usable=usable),
        reason=f"{need}; not run by this project: {cannot}" if cannot else need,
    )


def _choice(
    book: PriceBook,
    platform: str,
    preset: Preset,
    billing: Billing,
    *,
    nodes: int,
    fits: bool,
    runs_here: bool,
    strategy: str,
    need_bytes: int,
    usable: int,
    largest: int,
    reason: str,
) -> Choice:
    rate, region = cheapest_rate(book, platform, preset.name, billing)
    is_known = not isinstance(rate, UnknownPrice)
    return Choice(
        platform=platform,
        preset=preset.name,
        nodes=nodes,
        gpus=nodes * preset.gpus,
        fits=fits,
        runs_here=runs_here,
        strategy=strategy,
        need_bytes=need_bytes,
        usable_bytes=usable,
        largest_batch=largest,
        usd_per_hour=nodes * rate.usd if is_known else None,
        region=region,
        reason=reason if is_known else f"{reason}; price: {rate.reason}",
    )


def _ranked(found: list[Choice]) -> tuple[Choice, ...]:
    """In order, each but the first with what keeps it behind."""
    first, *rest = sorted(found, key=_order)
    best_usd = first.usd_per_hour
    if not _is_good(first) or best_usd is None:
        return (first, *rest)
    ranked = [first]
    for choice in rest:
        usd = choice.usd_per_hour
        if _is_good(choice) and usd is not None:
            more = usd - best_usd
            why = f"{small_usd_text(more)}/h more" if more else "no cheaper"
            choice = replace(choice, reason=f"{choice.reason}; {why} than the first")
        ranked.append(choice)
    return tuple(ranked)


def _is_good(choice: Choice) -> bool:
    return choice.fits and choice.runs_here
