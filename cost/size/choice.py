"""Which presets a model fits on, the cheapest first, with a verdict on every strategy on each.

choices(shape, need, book), verdicts(shape, training, gpus)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from math import gcd
from typing import Final

from cost.prices.book import PriceBook, UnknownPrice
from cost.report.layout import small_usd_text
from cost.resources.lines import Rate, preset_rate
from cost.size.memory import (
    GIB,
    TRAINED,
    TRAINED_DTYPES,
    Dtype,
    Memory,
    Method,
    Serving,
    Sharding,
    Strategy,
    Training,
    base_bytes,
    largest_micro_batch,
    most_streams,
    serving_memory,
    training_memory,
    usable_bytes,
    usable_host_bytes,
)
from cost.size.shape import LayersError, ModelShape, SizeError
from stacks.catalog import PLATFORMS, Preset
from stacks.spec import StackSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """GPUs of one job: equal nodes."""

    nodes: int
    per_node: int
    usable: int
    """Bytes that tensors may take on one GPU."""
    host_bytes: int | None = None
    """Memory of a node for the job; None: not known, and nothing is judged by it."""

    @property
    def count(self) -> int:
        """GPUs of the job."""
        return self.nodes * self.per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One strategy on these GPUs."""

    sharding: Sharding
    memory: Memory
    shape: ModelShape
    training: Training
    gpus: Gpus
    is_over_host: bool
    """Whether the memory of a node is too little for it."""
    runs_here: bool
    """Whether workloads/train can do it."""
    reason: str

    @property
    def fits(self) -> bool:
        """True where GPUs and nodes have the memory."""
        return self.memory.total <= self.gpus.usable and not self.is_over_host

    @property
    def largest_micro_batch(self) -> int:
        """Rows per GPU and forward pass that fit; 0 where one does not."""
        usable = 0 if self.is_over_host else self.gpus.usable
        return largest_micro_batch(self.shape, self.training, self.sharding, usable=usable)

    @property
    def usable_here(self) -> bool:
        """True where it fits and this project can run it."""
        return self.fits and self.runs_here


def verdicts(shape: ModelShape, training: Training, gpus: Gpus) -> tuple[Verdict, ...]:
    """One for each strategy that these GPUs allow, in the order of preference."""
    return tuple(_verdict(shape, training, gpus, each) for each in shardings(shape, gpus))


def best(found: tuple[Verdict, ...]) -> Verdict:
    """The first that fits and runs here, else the first that fits, else plain DDP."""
    usable = [each for each in found if each.usable_here]
    return (usable or [each for each in found if each.fits] or found)[0]


def least_recomputed(shape: ModelShape, training: Training, gpus: Gpus, strategy: object) -> int:
    """Fewest layers to compute activations of again so that the run fits; all where none is enough.

    By the named strategy; with none named by any that runs here but the last: offload.
    """
    for layers in range(shape.layers):
        found = verdicts(shape, replace(training, gradient_checkpointing=layers), gpus)
        named = [each for each in found if each.sharding.strategy == strategy]
        if any(each.usable_here for each in named or found[:-1]):
            return layers
    return shape.layers


def refuse_more_layers(shape: ModelShape, training: Training, *, at: str) -> None:
    """Refuses more layers with checkpointing than the model has; `at` is where they are given."""
    if training.gradient_checkpointing > shape.layers:
        raise LayersError(
            f"{at}: got {training.gradient_checkpointing}, but {shape.name} has {shape.layers} "
            f"layers; give 0 to {shape.layers}, or leave it out"
        )


def shardings(shape: ModelShape, gpus: Gpus) -> tuple[Sharding, ...]:
    """Every strategy with the degrees that suit the model and the nodes, least traffic first."""
    count = gpus.count
    found = [Sharding(strategy=Strategy.DDP, data=count)]
    if count > 1:
        found += [Sharding(strategy=each, data=count) for each in (Strategy.ZERO1, Strategy.ZERO2)]
        # Between nodes hsdp moves gradients alone: little, with adapters.
        nodes = {Strategy.HSDP: gpus.nodes} if gpus.nodes > 1 and gpus.per_node > 1 else {}
        found += [
            Sharding(strategy=each, data=count, replicas=replicas, reshard_after_forward=reshard)
            for each, replicas in (nodes | {Strategy.FSDP: 1}).items()
            for reshard in (False, True)
        ]
    # Heads are handed out whole, and an all-reduce a layer stays inside a node.
    tensor = gcd(shape.heads, shape.kv_heads, gpus.per_node)
    if tensor > 1:
        found.append(Sharding(strategy=Strategy.TENSOR, tensor=tensor, data=count // tensor))
    stages = gcd(shape.layers, count)
    if stages > 1:
        found.append(Sharding(strategy=Strategy.PIPELINE, pipeline=stages, data=count // stages))
    rest = gcd(shape.layers, count // tensor)
    if tensor > 1 and rest > 1:
        found.append(
            Sharding(
                strategy=Strategy.THREE_D,
                tensor=tensor,
                pipeline=rest,
                data=count // tensor // rest,
            )
        )
    found.append(Sharding(strategy=Strategy.OFFLOAD, data=count))
    return tuple(found)


def _verdict(shape: ModelShape, training: Training, gpus: Gpus, sharding: Sharding) -> Verdict:
    memory = training_memory(shape, training, sharding)
    # The trainer reads a model into the node's memory first, once for each of its GPUs.
    is_loaded = sharding.strategy is Strategy.DDP
    host = (base_bytes(shape, training) if is_loaded else memory.host) * gpus.per_node
    over_host = gpus.host_bytes is not None and host > gpus.host_bytes
    cannot = _cannot_run(training, sharding)
    need = f"needs {gib_text(memory.total)} of {gib_text(gpus.usable)} a GPU"
    if memory.total > gpus.usable:
        part, most = max(memory.parts.items(), key=lambda item: item[1])
        reason = f"{need}; most of it {part.replace('_', ' ')} ({gib_text(most)})"
    elif over_host:
        what = "to load the model" if is_loaded else "for its state"
        reason = f"needs {gib_text(host)} of {gib_text(gpus.host_bytes or 0)} a node {what}"
    else:
        reason = need
    if cannot:
        reason = f"{reason}; not run by this project: {cannot}"
    return Verdict(
        sharding=sharding,
        memory=memory,
        shape=shape,
        training=training,
        gpus=gpus,
        is_over_host=over_host,
        runs_here=not cannot,
        reason=reason,
    )


def _cannot_run(training: Training, sharding: Sharding) -> str:
    """What of it workloads/train does not do; empty where it does all."""
    missing: list[str] = []
    if sharding.strategy not in TRAINED:
        missing.append(f"strategy {sharding.strategy}")
    if sharding.strategy in (Strategy.FSDP, Strategy.HSDP, Strategy.OFFLOAD):
        # 4-bit weights are not divided, and the loss scale of fp16 is kept for whole gradients.
        if training.method is Method.QLORA:
            missing.append(f"{training.method} under {sharding.strategy}")
        elif training.dtype is Dtype.FP16:
            missing.append(f"{training.dtype} under {sharding.strategy}")
    return ", ".join(missing)


def gib_text(amount: int) -> str:
    """Bytes as GiB with one decimal."""
    return f"{amount / GIB:,.1f} GiB"


def cheapest_rate(
    book: PriceBook, platform: str, preset: str, region: str | None
) -> tuple[Rate | UnknownPrice, str]:
    """US dollars an hour of a node without its disks, and its region: the first of equal ones.

    On demand, in the region, or where it is cheapest of all that have the platform.
    """
    regions = PLATFORMS[platform].regions if region is None else (region,)
    found = [(preset_rate(platform, preset, book.in_region(each)), each) for each in regions]
    known = [(rate, each) for rate, each in found if not isinstance(rate, UnknownPrice)]
    return min(known, key=lambda each: each[0].usd) if known else found[0]


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
    reason: str
    usd_per_hour: Decimal | None = None
    """All its nodes, without disks; None where the book has no price."""
    region: str = ""
    """Where that price holds: the cheapest region of the platform."""


def choices(
    shape: ModelShape,
    need: Training | Serving,
    book: PriceBook,
    *,
    gpus: int | None = None,
    spec: StackSpec | None = None,
) -> tuple[Choice, ...]:
    """Every GPU preset, those that fit and run here first and by price, or those of a stack.

    Training takes as few nodes as fit, or the `gpus` asked for; a serving process is on one node,
    over as many of its GPUs as heads allow. A stack's presets have its region's price.
    """
    found = [
        _training_choice(shape, need, *each, gpus)
        if isinstance(need, Training)
        else _serving_choice(shape, need, *each)
        for each in gpu_presets(spec)
    ]
    if not found and spec is not None:
        raise SizeError(f"{spec.name}: no worker with GPUs; give the --stack of one that has some")
    return _ranked([_priced(each, book, spec) for each in found])


def gpu_presets(spec: StackSpec | None = None) -> Iterator[tuple[str, Preset, int]]:
    """Platform, preset and GB of memory a GPU, for every preset with GPUs, or those of a stack."""
    for platform in PLATFORMS.values():
        if platform.gpu_memory_gb is not None:
            for preset in platform.presets.values():
                if spec is None or _most_nodes(spec, platform.name, preset.name):
                    yield platform.name, preset, platform.gpu_memory_gb


def server_ways(shape: ModelShape, preset: Preset) -> list[int]:
    """GPUs that one server may divide each layer over: a part of the node's, with whole heads."""
    return [ways for ways in range(1, preset.gpus + 1) if gcd(preset.gpus, shape.heads) % ways == 0]


def _most_nodes(spec: StackSpec, platform: str, preset: str) -> int:
    """Nodes of the largest nodeset of this preset; 0 where the stack has none."""
    found = [
        each for each in spec.nodes.workers if (each.platform, each.preset) == (platform, preset)
    ]
    return max((each.max_nodes for each in found), default=0)


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
    platform: str,
    preset: Preset,
    memory_gb: int,
    gpus: int | None,
) -> Choice:
    counts = NODE_COUNTS if gpus is None else (-(-gpus // preset.gpus),)
    least = Gpus(
        nodes=counts[0],
        per_node=preset.gpus,
        usable=usable_bytes(memory_gb),
        host_bytes=usable_host_bytes(preset.memory_gib),
    )
    tried = (best(verdicts(shape, training, replace(least, nodes=nodes))) for nodes in counts)
    # Where nothing fits, the fewest nodes with plain DDP say best what is missing.
    first = next(tried)
    verdict = first if first.fits else next((each for each in tried if each.fits), first)
    return Choice(
        platform=platform,
        preset=preset.name,
        nodes=verdict.gpus.nodes,
        gpus=verdict.gpus.count,
        fits=verdict.fits,
        runs_here=verdict.runs_here,
        strategy=verdict.sharding.label,
        need_bytes=verdict.memory.total,
        usable_bytes=least.usable,
        largest_batch=verdict.largest_micro_batch,
        reason=verdict.reason
        if verdict.fits
        else f"{verdict.reason}; no strategy fits on up to {counts[-1] * preset.gpus} GPUs",
    )


def _serving_choice(
    shape: ModelShape, serving: Serving, platform: str, preset: Preset, memory_gb: int
) -> Choice:
    usable = usable_bytes(memory_gb)
    tried = [replace(serving, tensor=ways) for ways in server_ways(shape, preset)]
    chosen = next(
        (each for each in tried if serving_memory(shape, each).total <= usable), tried[-1]
    )
    memory = serving_memory(shape, chosen)
    need = f"needs {gib_text(memory.total)} of {gib_text(usable)} a GPU"
    fits = memory.total <= usable
    # workloads/evaluate generates in one process on one GPU, with weights as they are trained.
    missing = [f"one model over {chosen.tensor} GPUs"] if chosen.tensor > 1 else []
    missing += [] if serving.dtype in TRAINED_DTYPES else [f"dtype {serving.dtype}"]
    cannot = ", ".join(missing)
    return Choice(
        platform=platform,
        preset=preset.name,
        nodes=1,
        gpus=preset.gpus,
        fits=fits,
        runs_here=not cannot,
        strategy=f"{Strategy.TENSOR} {chosen.tensor}" if chosen.tensor > 1 else "one GPU",
        need_bytes=memory.total,
        usable_bytes=usable,
        largest_batch=most_streams(shape, chosen, usable=usable),
        reason=f"{need}; not run by this project: {cannot}" if cannot else need,
    )


def _priced(choice: Choice, book: PriceBook, spec: StackSpec | None) -> Choice:
    if spec is not None:
        most = _most_nodes(spec, choice.platform, choice.preset)
        if choice.nodes > most:
            why = f"{choice.reason}; needs {choice.nodes} nodes, and {spec.name} has {most}"
            choice = replace(choice, fits=False, reason=why)
    of_stack = None if spec is None else spec.nebius.region
    rate, region = cheapest_rate(book, choice.platform, choice.preset, of_stack)
    if isinstance(rate, UnknownPrice):
        return replace(choice, region=region, reason=f"{choice.reason}; price: {rate.reason}")
    return replace(choice, region=region, usd_per_hour=choice.nodes * rate.usd)


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
