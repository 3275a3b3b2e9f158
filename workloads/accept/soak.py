"""Training and all-reduce for a while: what only heat and time bring out.

Owns the rounds, what they compare (the first third with the last) and the look at the GPUs after.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from workloads.accept.gates import Gates
from workloads.accept.nodes import Node
from workloads.accept.outcome import Check, fact, hold, not_run
from workloads.accept.readiness import NodeFacts
from workloads.accept.training import make_trainer
from workloads.common.dist import World

_STEPS_OF_A_ROUND = 10
_ELEMENTS = 1_000_000
_LEAST_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Soak:
    """What the rounds showed."""

    seconds: float
    round_s: tuple[float, ...]
    """Rank 0's time of each round."""
    wrong_rounds: int
    """Rounds in which a sum over all ranks was wrong or the loss was not finite."""

    @property
    def drift_percent(self) -> float | None:
        """How much longer the last third's rounds took than the first's; None: too few."""
        third = len(self.round_s) // 3
        if len(self.round_s) < _LEAST_ROUNDS:
            return None
        first = statistics.median(self.round_s[:third])
        return 100 * (statistics.median(self.round_s[-third:]) / first - 1)

    def to_json(self) -> dict[str, Any]:
        """Return the rounds as plain values."""
        return {**asdict(self), "round_s": list(self.round_s), "drift_percent": self.drift_percent}


def measure(world: World, config: Any, soak_s: float) -> Soak:
    """Return what `soak_s` seconds showed, at least three rounds; the same on every rank."""
    import torch

    trainer = make_trainer(world, config, None, world.world_size)
    trainer.step()
    times: list[float] = []
    wrong = 0
    began = time.perf_counter()
    while True:
        round_began = time.perf_counter()
        loss = torch.zeros(())
        for _ in range(_STEPS_OF_A_ROUND):
            loss, _ = trainer.step()
        value = world.sum([float(world.rank + 1), float(torch.isfinite(loss))])
        ones = torch.ones(_ELEMENTS, device=world.device)
        if world.is_distributed:
            import torch.distributed as dist

            dist.all_reduce(ones)
        is_right = bool((ones == world.world_size).all())
        is_right &= value == [world.world_size * (world.world_size + 1) / 2, world.world_size]
        # Each rank looks at its own copy: one that arrived wrong there is wrong.
        wrong += world.sum([float(not is_right)])[0] > 0
        times.append(time.perf_counter() - round_began)
        enough = time.perf_counter() - began >= soak_s and len(times) >= _LEAST_ROUNDS
        if world.broadcast(enough):
            break
    found = Soak(seconds=time.perf_counter() - began, round_s=tuple(times), wrong_rounds=wrong)
    return world.broadcast(found)


def judge(
    soak: Soak,
    before: Sequence[NodeFacts],
    after: Sequence[NodeFacts],
    nodes: Sequence[Node],
    gates: Gates,
) -> list[Check]:
    """Return: right values throughout, no drift, and no GPU that has new errors or heat."""
    everywhere = tuple(node.name for node in nodes)
    subject = f"{len(soak.round_s)} rounds in {soak.seconds:.0f} s"
    checks = [
        fact(
            "soak.values",
            soak.wrong_rounds == 0,
            subject=subject,
            nodes=everywhere,
            reason=f"{soak.wrong_rounds} rounds had a wrong sum or a loss that is not finite",
        )
    ]
    limit = gates.limit("soak.drift")
    if limit is not None:
        checks.append(
            hold("soak.drift", soak.drift_percent, limit, subject=subject, nodes=everywhere)
        )
    earlier = {(node.name, gpu.index): gpu for node in before for gpu in node.gpus}
    for node in after:
        if not node.gpus and any(name == node.name for name, _ in earlier):
            checks.append(
                not_run("soak.gpus", "; ".join(node.errors), subject=node.name, nodes=(node.name,))
            )
        said = [
            f"GPU {gpu.index}: {what}"
            for gpu in node.gpus
            if (what := _new_trouble(earlier.get((node.name, gpu.index)), gpu))
        ]
        if node.gpus:
            checks.append(
                fact(
                    "soak.gpus",
                    not said,
                    subject=node.name,
                    nodes=(node.name,),
                    reason="; ".join(said),
                )
            )
    return checks


def _new_trouble(before: Any, after: Any) -> str:
    more = (after.uncorrected or 0) - ((before.uncorrected or 0) if before else 0)
    if more > 0:
        return f"{more} new uncorrected ECC errors: drain the node"
    return f"slowed down by {', '.join(after.throttled)}" if after.throttled else ""
