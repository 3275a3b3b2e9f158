"""Training throughput on 1, 2, 4 and so on ranks, and each rank's own work.

Tokens are counted in the batches. Owns the loop; what the numbers mean is in scaling.py.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from workloads.accept.config import TrainingConfig
from workloads.accept.decoder import Decoder
from workloads.accept.nodes import Node
from workloads.accept.scaling import Point
from workloads.common.dist import World
from workloads.common.exit_codes import ConfigError

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
        with autocast(self.world):
            loss = self.model(batch[:, :-1], batch[:, 1:])
        loss.backward()
        return loss.detach(), batch[:, 1:].numel()

    def step(self) -> tuple[torch.Tensor, int]:
        """One train step."""
        loss, tokens = self.work()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss, tokens


@contextlib.contextmanager
def autocast(world: World) -> Iterator[None]:
    """bf16 arithmetic on a GPU, fp32 on CPU."""
    if world.device.type == "cuda":
        with torch.autocast("cuda", dtype=torch.bfloat16):
            yield
    else:
        yield


def dtype_name(world: World) -> str:
    """Return what a point says of its arithmetic."""
    return "bf16" if world.device.type == "cuda" else "fp32"


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
    found = {1, world_size}
    ranks = 2
    while ranks < ranks_per_node:
        found.add(ranks)
        ranks *= 2
    ranks = ranks_per_node
    while ranks <= world_size:
        found.add(ranks)
        ranks *= 2
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
    seconds = last - began
    if num_ranks > 1:
        # The slowest rank's time, and the tokens of all.
        total = torch.tensor([float(tokens)], dtype=torch.float64, device=world.device)
        longest = torch.tensor([seconds], dtype=torch.float64, device=world.device)
        dist.all_reduce(total, group=group)
        dist.all_reduce(longest, op=dist.ReduceOp.MAX, group=group)
        tokens, seconds = int(total.item()), float(longest.item())
    return Point(
        ranks=num_ranks,
        nodes=sum(min(node.ranks) < num_ranks for node in nodes),
        tokens=tokens,
        seconds=seconds,
        model=config.name,
        batch=config.batch,
        sequence=config.sequence,
        dtype=dtype_name(world),
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
