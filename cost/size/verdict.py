"""A verdict on every strategy for one model on a number of GPUs: fits, and whether it runs here.

Owns the degrees that each strategy gets and the reasons. Prices are in choice.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from cost.size.batch import largest_micro_batch
from cost.size.gpu import GIB
from cost.size.memory import Memory, base_bytes, training_memory
from cost.size.shape import ModelShape
from cost.size.sharding import TRAINED, Sharding, Strategy
from cost.size.training import TRAINED_DTYPES, TRAINED_METHODS, Dtype, Method, Training


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
    fits: bool
    runs_here: bool
    """Whether workloads/train can do it."""
    largest_micro_batch: int
    reason: str

    @property
    def usable_here(self) -> bool:
        """True where it fits and this project can run it."""
        return self.fits and self.runs_here


def verdicts(shape: ModelShape, training: Training, gpus: Gpus) -> tuple[Verdict, ...]:
    """One for each strategy that these GPUs allow, in the order of preference."""
    return tuple(_verdict(shape, training, gpus, each) for each in shardings(shape, gpus))


def best(found: tuple[Verdict, ...]) -> Verdict:
    """The first that fits and runs here, else the first that fits, else plain DDP."""
    for wanted in ("usable_here", "fits"):
        chosen = next((each for each in found if getattr(each, wanted)), None)
        if chosen is not None:
            return chosen
    return found[0]


def shardings(shape: ModelShape, gpus: Gpus) -> tuple[Sharding, ...]:
    """Every strategy with the degrees that suit the model and the nodes, least traffic first."""
    count = gpus.count
    found = [Sharding(strategy=Strategy.DDP, data=count)]
    if count > 1:
        found += [
            Sharding(strategy=strategy, data=count)
            for strategy in (Strategy.ZERO1, Strategy.ZERO2, Strategy.FSDP)
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
    over_gpu = memory.total > gpus.usable
    over_host = gpus.host_bytes is not None and host > gpus.host_bytes
    cannot = _cannot_run(training, sharding)
    need = f"needs {gib_text(memory.total)} of {gib_text(gpus.usable)} a GPU"
    if over_gpu:
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
        fits=not over_gpu and not over_host,
        runs_here=not cannot,
        largest_micro_batch=0
        if over_host
        else largest_micro_batch(shape, training, sharding, usable=gpus.usable),
        reason=reason,
    )


def _cannot_run(training: Training, sharding: Sharding) -> str:
    """What of it workloads/train does not do; empty where it does all."""
    missing: list[str] = []
    if sharding.strategy not in TRAINED:
        missing.append(f"strategy {sharding.strategy}")
    if training.method not in TRAINED_METHODS:
        missing.append(f"method {training.method}")
    if training.dtype not in TRAINED_DTYPES:
        missing.append(f"dtype {training.dtype}")
    if sharding.strategy in (Strategy.FSDP, Strategy.OFFLOAD):
        # 4-bit weights are not divided, and the loss scale of fp16 is kept for whole gradients.
        if training.method is Method.QLORA:
            missing.append(f"{training.method} under {sharding.strategy}")
        elif training.dtype is Dtype.FP16:
            missing.append(f"{training.dtype} under {sharding.strategy}")
    return ", ".join(missing)


def gib_text(amount: int) -> str:
    """Bytes as GiB with one decimal."""
    return f"{amount / GIB:,.1f} GiB"
