"""What each GPU does alone, and what only heat and time bring out."""

from __future__ import annotations

import operator
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from workloads.accept.collectives import seconds_of, varied
from workloads.accept.gates import Answer, Check, Gates, Node, fact, hold, name_of, settle
from workloads.accept.readiness import NodeFacts, compare
from workloads.accept.training import make_trainer
from workloads.common.dist import World
from workloads.recipes.accept import ComputeConfig

_CHECKS = (
    ("compute.gemm", "gemm_tflops"),
    ("compute.hbm", "hbm_gb_per_s"),
    ("compute.host_to_device", "host_to_device_gb_per_s"),
)


def measure_compute(world: World, config: ComputeConfig) -> list[dict[str, Any]]:
    """Return the rates of each rank in rank order, on every rank."""
    gemm, is_right = _gemm(world, config)
    rates = {
        "gemm_tflops": gemm,
        # Bytes read and written by a copy inside the memory of the device, over its time.
        "hbm_gb_per_s": 2 * _copied_gb_per_s(world, config, pinned=False),
        # From pinned memory; None on CPU.
        "host_to_device_gb_per_s": _copied_gb_per_s(world, config, pinned=True)
        if world.device.type == "cuda"
        else None,
        # Whether the product has the value that it must have.
        "is_right": is_right,
    }
    return [{"rank": rank, **values} for rank, values in enumerate(world.gather(rates))]


def judge_compute(
    rows: Sequence[dict[str, Any]], nodes: Sequence[Node], gates: Gates
) -> list[Check]:
    """Return: right values, the slowest rank against each limit, and the spread of all ranks."""
    wrong = [row["rank"] for row in rows if not row["is_right"]]
    checks = [
        fact(
            "compute.values",
            not wrong,
            subject=f"{len(rows)} ranks",
            nodes=sorted({name_of(nodes, rank) for rank in wrong}),
            reason=f"ranks {wrong}: a matrix product came out wrong: drain the node",
        )
    ]
    for check, name in _CHECKS:
        known = [row for row in rows if row[name] is not None]
        limit, spread_limit = gates.limit(check), gates.limit(f"{check}_spread")
        if not known:
            continue
        slow = min(known, key=lambda row: row[name])
        at = {
            "subject": f"rank {slow['rank']}, the slowest of {len(known)}",
            "nodes": (name_of(nodes, slow["rank"]),),
        }
        if limit is not None:
            checks.append(hold(check, slow[name], limit, **at))
        if spread_limit is not None and len(known) > 1:
            values = [row[name] for row in known]
            # Between the slowest and the fastest, of the mean.
            spread_percent = 100 * (max(values) - min(values)) / statistics.fmean(values)
            checks.append(hold(f"{check}_spread", spread_percent, spread_limit, **at))
    return checks


def _gemm(world: World, config: ComputeConfig) -> tuple[float, bool]:
    import torch

    size = config.matrix_size
    dtype = torch.bfloat16 if world.device.type == "cuda" else torch.float32
    left, right, product = known_product(size, dtype, world.device)
    out = torch.full_like(left, -1)
    # Parts of a sum may be whole numbers that bf16 cannot hold: they are added in fp32.
    cublas: Any = torch.backends.cuda.matmul
    usual = cublas.allow_bf16_reduced_precision_reduction
    cublas.allow_bf16_reduced_precision_reduction = False
    torch.matmul(left, right, out=out)
    cublas.allow_bf16_reduced_precision_reduction = usual
    is_right = torch.equal(out, product)
    del product
    # A GPU is faster on constants: they flip few bits and take little power.
    left.normal_()
    right.normal_()
    seconds = _seconds(world, lambda: torch.matmul(left, right, out=out), config.iterations)
    return 2 * size**3 / seconds / 1e12, is_right


def known_product(size: int, dtype: Any, device: Any) -> tuple[Any, Any, Any]:
    """Return two matrices of varied whole numbers and their product, known without multiplying.

    The left one is drawn, but for two columns that bring the sum of each row, weighed as the right
    one's rows are, to a number from 1 to 15; the right one's columns have factors from 1 to 17. The
    product is at most 255 and all sums are whole, so bf16 and fp32 hold it in whatever order it is
    added: an element, a tile or an order that is wrong shows.
    """
    import torch

    draw = torch.Generator(device).manual_seed(0)

    def odd(*shape: int) -> torch.Tensor:
        return 2 * torch.randint(-2, 2, shape, generator=draw, device=device).to(dtype) + 1

    sums, factors = (
        torch.randint(1, most + 1, (size,), generator=draw, device=device).to(dtype)
        for most in (15, 17)
    )
    left, weights = odd(size, size), odd(size)
    weights[-2], weights[-1] = 64, 1
    rest = sums - (left[:, :-2] * weights[:-2]).sum(1, dtype=torch.float32)
    left[:, -1] = rest % 64
    left[:, -2] = (rest / 64).floor()
    return left, weights.outer(factors), sums.outer(factors)


def _copied_gb_per_s(world: World, config: ComputeConfig, *, pinned: bool) -> float:
    import torch

    into = torch.empty(config.copy_mb * 10**6 // 4, device=world.device)
    source = torch.empty(into.shape, pin_memory=True) if pinned else torch.ones_like(into)
    seconds = _seconds(world, lambda: into.copy_(source, non_blocking=pinned), config.iterations)
    return into.numel() * 4 / seconds / 1e9


def _seconds(world: World, call: Callable[[], object], iterations: int) -> float:
    call()  # the first is not warm
    return seconds_of(world, call, iterations, world.barrier)


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
        return {**asdict(self), "drift_percent": self.drift_percent}


def measure_soak(world: World, config: Any, soak_s: float) -> Soak:
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
        message = varied(_ELEMENTS, world.device)
        summed = message * world.world_size
        if world.is_distributed:
            import torch.distributed as dist

            dist.all_reduce(message)
        is_right = torch.equal(message, summed)
        is_right &= value == [world.world_size * (world.world_size + 1) / 2, world.world_size]
        # Each rank looks at its own copy: one that arrived wrong there is wrong.
        wrong += world.sum([float(not is_right)])[0] > 0
        times.append(time.perf_counter() - round_began)
        enough = time.perf_counter() - began >= soak_s and len(times) >= _LEAST_ROUNDS
        if world.broadcast(enough):
            break
    found = Soak(seconds=time.perf_counter() - began, round_s=tuple(times), wrong_rounds=wrong)
    return world.broadcast(found)


def judge_soak(
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
    used = {node.name for node in nodes if node.gpus}
    return checks + [
        settle("soak.gpus", _lasted(earlier, node, gates), subject=node.name)
        for earlier, node in zip(before, after, strict=True)
        if node.name in used
    ]


def _lasted(before: NodeFacts, after: NodeFacts, gates: Gates) -> list[Answer]:
    """Whether each GPU of a node is still there, without new errors or heat."""
    earlier, expected = {gpu.index: gpu for gpu in before.gpus}, gates.hardware.expected
    found, were = len(after.gpus), len(earlier)
    silent = [*(() if were else before.errors), *(() if found else after.errors)]
    if silent or not (found or were):
        return [(None, "; ".join(silent) or "nvidia-smi lists no GPU")]
    answers: list[Answer] = [(found >= were, f"{found} of {were} GPUs are left: drain the node")]
    for gpu in after.gpus:
        was = earlier[gpu.index].uncorrected if gpu.index in earlier else None
        new = (gpu.uncorrected or 0) - (was or 0)
        if was is None and new:
            why = f"GPU {gpu.index}: {new} uncorrected ECC errors, of the soak or from before it"
            answers.append((None, why))
        else:
            said = f"{new} new uncorrected ECC errors: drain the node"
            answers += compare(gpu, "uncorrected", expected, lambda *_, new=new: new <= 0, said)
        answers += compare(gpu, "throttled", expected, operator.eq, "slowed down by {said}")
    return answers
