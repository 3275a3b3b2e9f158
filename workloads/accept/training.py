"""Training throughput on 1, 2, 4 and so on ranks; scaling and stragglers from what was timed."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from workloads.accept.gates import Check, Gates, Node, fact, hold, name_of, not_run
from workloads.common.dist import World
from workloads.common.exit_codes import ConfigError
from workloads.recipes.accept import TrainingConfig

_PLAUSIBLE_PERCENT = 110
"""Each rank has the same work in every point: a rule of this suite, with room for noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Training on some of the ranks."""

    ranks: int
    nodes: int
    tokens: int
    """Counted in the batches that all ranks trained on."""
    seconds: float
    model: str
    batch: int
    """Sequences of one rank in a step."""
    sequence: int
    dtype: str
    step_s: tuple[float, ...] = ()
    """Rank 0's time of each step; empty where nobody kept them."""
    loss: float | None = None
    """Of the last step; None where nobody kept it."""

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all ranks together."""
        return self.tokens / self.seconds

    @property
    def tokens_per_s_per_rank(self) -> float:
        return self.tokens_per_s / self.ranks

    def workload(self) -> dict[str, Any]:
        """Return what must be the same before two points are compared."""
        return {name: getattr(self, name) for name in ("model", "batch", "sequence", "dtype")}

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            # JSON has no word for what is not finite; the check says that it was so.
            "loss": self.loss if self.loss is not None and math.isfinite(self.loss) else None,
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_s_per_rank": self.tokens_per_s_per_rank,
        }


def base_of(points: Sequence[Point], point: Point) -> Point | None:
    """Return what a point is compared with: one node for several, else the fewest ranks."""
    fewer = [each for each in points if each.ranks < point.ranks]
    if point.nodes > 1:
        whole = [each for each in fewer if each.nodes == 1]
        return max(whole, key=lambda each: each.ranks, default=None)
    return min(fewer, key=lambda each: each.ranks, default=None)


def efficiency_percent(base: Point, point: Point) -> float:
    """Return what each rank still does of what it did in the base, in percent."""
    return 100 * point.tokens_per_s_per_rank / base.tokens_per_s_per_rank


def slowdowns_percent(work_s: Sequence[Sequence[float]]) -> list[float]:
    """Return how much slower than usual each rank's own work is, without waiting for others."""
    medians = [statistics.median(times) for times in work_s]
    # The lower one of an even number: of two ranks the faster one is usual.
    usual = statistics.median_low(medians)
    return [100 * (median / usual - 1) for median in medians]


def judge(
    points: Sequence[Point],
    work_s: Sequence[Sequence[float]],
    nodes: Sequence[Node],
    gates: Gates,
) -> list[Check]:
    """Return: the loss is a number, tokens a second of each GPU, efficiency, stragglers.

    `work_s` has the times of each rank's own work.
    """
    checks = [_loss(points)]
    everywhere = [node.name for node in nodes]
    for point in points:
        at = {
            "subject": f"{_several(point.ranks, 'rank')} on {_several(point.nodes, 'node')}",
            "nodes": everywhere[: point.nodes],
        }
        scope = "node" if point.nodes == 1 else "cluster"
        context = {**point.workload(), "ranks": point.ranks, "tokens_per_s": point.tokens_per_s}
        check = "training.tokens_per_s_per_gpu"
        spoken_of = {"scope": scope, "nodes": point.nodes, "model": point.model}
        limit = gates.limit(check, **spoken_of, batch=point.batch, sequence=point.sequence)
        if limit is not None:
            checks.append(hold(check, point.tokens_per_s_per_rank, limit, context=context, **at))
        elif gates.limit(check, **spoken_of) is not None:
            why = f"the limit speaks of another batch or sequence than {point.batch} x "
            checks.append(not_run(check, f"{why}{point.sequence}", **at))
        check = "training.scaling_efficiency"
        limit = gates.limit(check, scope=scope, nodes=point.nodes)
        base = base_of(points, point)
        is_first = point.nodes == 1 and point is min(points, key=lambda each: each.ranks)
        if limit is None or is_first:
            continue
        if base is None or base.workload() != point.workload():
            why = "another model, batch or sequence" if base else "no point with fewer ranks"
            checks.append(not_run(check, f"{why}: nothing to compare with", **at))
        elif (measured := efficiency_percent(base, point)) > _PLAUSIBLE_PERCENT:
            why = (
                f"{measured:.0f} % is more than {point.ranks} ranks can do: the {base.ranks} that "
                "it is compared with were held up; measure again"
            )
            checks.append(not_run(check, why, **at))
        else:
            said = (
                f"{point.tokens_per_s_per_rank:,.0f} tokens/s of each rank, "
                f"{base.tokens_per_s_per_rank:,.0f} with {base.ranks} ranks: "
                f"{point.ranks / base.ranks:g} times the ranks do "
                f"{point.tokens_per_s / base.tokens_per_s:.2f} times the work"
            )
            also = {**context, "base_ranks": base.ranks}
            checks.append(hold(check, measured, limit, context=also, reason=said, **at))
    return [*checks, *_straggler_checks(work_s, nodes, gates)]


def _loss(points: Sequence[Point]) -> Check:
    kept = [(point.ranks, point.loss) for point in points if point.loss is not None]
    if points and not kept:
        return not_run("training.loss", "nobody kept the loss", subject="all points")
    bad = [ranks for ranks, loss in kept if not math.isfinite(loss)]
    reason = "no point was measured" if not points else f"not finite on {bad} ranks"
    return fact("training.loss", bool(points) and not bad, subject="all points", reason=reason)


def _several(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _straggler_checks(
    work_s: Sequence[Sequence[float]], nodes: Sequence[Node], gates: Gates
) -> list[Check]:
    limit = gates.limit("training.straggler_slowdown")
    if limit is None:
        return []
    if len(work_s) < 2 or not all(work_s):
        why = "fewer than two ranks" if len(work_s) < 2 else "no point is of all ranks"
        return [not_run("training.straggler_slowdown", why, subject="no ranks")]
    slower = slowdowns_percent(work_s)
    worst, *_ = ranks = sorted(range(len(slower)), key=lambda rank: -slower[rank])
    slow = [rank for rank in ranks if not limit.holds(slower[rank])]
    said = ", ".join(
        f"rank {rank} on {name_of(nodes, rank)} +{slower[rank]:.0f} %" for rank in slow[:8]
    )
    return [
        hold(
            "training.straggler_slowdown",
            slower[worst],
            limit,
            subject=f"rank {worst} on {name_of(nodes, worst)}",
            nodes=sorted({name_of(nodes, rank) for rank in slow or [worst]}),
            context={"median_s": statistics.median(work_s[worst]), "worst_s": max(work_s[worst])},
            reason=f"{said}: drain what is slow, then look at clocks, heat and ECC",
        )
    ]


class Decoder(nn.Module):
    """Embeddings, blocks that norm first, and a head; returns the loss of the next token."""

    def __init__(self, config: TrainingConfig) -> None:
        super().__init__()
        width = config.width
        self.tokens = nn.Embedding(config.vocabulary, width)
        self.positions = nn.Embedding(config.sequence, width)
        block = nn.TransformerEncoderLayer(
            width, config.heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        norm = nn.LayerNorm(width)
        self.blocks = nn.TransformerEncoder(block, config.layers, norm, enable_nested_tensor=False)
        self.head = nn.Linear(width, config.vocabulary, bias=False)

    def forward(self, tokens_BT: torch.Tensor, labels_BT: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy over all positions."""
        length = tokens_BT.shape[1]
        x_BTD = self.tokens(tokens_BT) + self.positions.weight[:length]
        mask_TT = nn.Transformer.generate_square_subsequent_mask(length, tokens_BT.device)
        logits_BTV = self.head(self.blocks(x_BTD, mask_TT, is_causal=True))
        return functional.cross_entropy(logits_BTV.flatten(0, 1), labels_BT.flatten())


_OWN_STEPS = 10


@dataclass(slots=True)
class Trainer:
    """One rank's model and optimizer."""

    world: World
    config: TrainingConfig
    model: Any
    optimizer: torch.optim.Optimizer

    def work(self) -> tuple[torch.Tensor, int]:
        """One forward and backward pass over a fresh batch; the loss and its tokens."""
        shape = (self.config.batch, self.config.sequence + 1)
        batch = torch.randint(self.config.vocabulary, shape, device=self.world.device)
        # bf16 arithmetic on a GPU, fp32 on CPU.
        kind = self.world.device.type
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda"):
            loss = self.model(batch[:, :-1], batch[:, 1:])
        loss.backward()
        return loss.detach(), batch[:, 1:].numel()

    def step(self) -> tuple[torch.Tensor, int]:
        loss, tokens = self.work()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss, tokens


def make_trainer(world: World, config: TrainingConfig, group: Any, num_ranks: int) -> Trainer:
    """Return a trainer whose gradients are averaged over the group."""
    torch.manual_seed(0)
    model: Any = Decoder(config).to(world.device)
    if num_ranks > 1:
        model = DistributedDataParallel(model, process_group=group)
    on_gpu = world.device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=on_gpu)
    return Trainer(world, config, model, optimizer)


def points_of(config: TrainingConfig, world_size: int, ranks_per_node: int) -> tuple[int, ...]:
    """Return how many ranks to train on: 1, 2, 4 in a node, 1, 2, 4 nodes, and all."""
    if config.points:
        wrong = [each for each in config.points if not 1 <= each <= world_size]
        if wrong:
            raise ConfigError(
                f"accept.training.points: {wrong} with {world_size} ranks; give 1 to {world_size}"
            )
        return tuple(sorted(set(config.points)))
    powers = [2**n for n in range(world_size.bit_length())]
    found = {1, world_size, *(each for each in powers if each < ranks_per_node)}
    found |= {ranks_per_node * each for each in powers}
    return tuple(sorted(each for each in found if each <= world_size))


def measure(
    world: World, config: TrainingConfig, nodes: Sequence[Node]
) -> tuple[list[Point], list[list[float]]]:
    """Return the points, and on the last one the times of each rank's own work, on every rank."""
    found: list[Point] = []
    own: list[float] = []
    for num_ranks in points_of(config, world.world_size, len(nodes[0].ranks)):
        is_all = num_ranks == world.world_size
        group = None if is_all else dist.new_group(list(range(num_ranks)))
        point: Point | None = None
        if world.rank < num_ranks:
            trainer = make_trainer(world, config, group, num_ranks)
            point = _point(trainer, num_ranks, nodes, group)
            if is_all:
                own = own_work(trainer)
            del trainer
        # The others wait here; the default group holds everybody.
        found.append(world.broadcast(point))
    return found, world.gather(own)


def _point(trainer: Trainer, num_ranks: int, nodes: Sequence[Node], group: Any) -> Point:
    world, config = trainer.world, trainer.config
    for _ in range(config.warmup):
        trainer.step()
    world.synchronize()
    if num_ranks > 1:
        dist.barrier(group=group)
    times: list[float] = []
    tokens = 0
    loss = torch.zeros(())
    began = last = time.perf_counter()
    for _ in range(config.steps):
        loss, count = trainer.step()
        tokens += count
        world.synchronize()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    found = replace(world, group=group, world_size=num_ranks).gather((tokens, last - began))
    return Point(
        ranks=num_ranks,
        nodes=sum(min(node.ranks) < num_ranks for node in nodes),
        tokens=sum(tokens for tokens, _ in found),
        seconds=max(seconds for _, seconds in found),  # the slowest rank's
        model=config.name,
        batch=config.batch,
        sequence=config.sequence,
        dtype="bf16" if world.device.type == "cuda" else "fp32",
        step_s=tuple(times),
        loss=float(loss),
    )


def own_work(trainer: Trainer, steps: int = _OWN_STEPS) -> list[float]:
    """Return the seconds of forward and backward passes that wait for no other rank."""
    times: list[float] = []
    # With gradients averaged, every rank's step takes as long as the slowest one's.
    alone = (
        trainer.model.no_sync()
        if isinstance(trainer.model, DistributedDataParallel)
        else contextlib.nullcontext()
    )
    with alone:
        for _ in range(steps + 1):
            trainer.world.synchronize()
            began = time.perf_counter()
            trainer.work()
            trainer.world.synchronize()
            times.append(time.perf_counter() - began)
    trainer.optimizer.zero_grad(set_to_none=True)
    return times[1:]
