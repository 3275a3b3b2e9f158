"""Scaling and stragglers from what was counted and timed. Pure.

Efficiency is tokens per second of more ranks over those of fewer, of the same model, batch and
sequence: a ratio of bandwidths says nothing of training.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from workloads.accept.gates import Gates
from workloads.accept.nodes import Node, name_of
from workloads.accept.outcome import Check, fact, hold, not_run

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
    loss: float | None = 0.0
    """Of the last step; None where nobody kept it."""

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all ranks together."""
        return self.tokens / self.seconds

    @property
    def tokens_per_s_per_rank(self) -> float:
        """Tokens of one rank."""
        return self.tokens_per_s / self.ranks

    def workload(self) -> dict[str, Any]:
        """Return what must be the same before two points are compared."""
        return {
            "model": self.model,
            "batch": self.batch,
            "sequence": self.sequence,
            "dtype": self.dtype,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the point as plain values."""
        return {
            **asdict(self),
            # JSON has no word for what is not finite; the check says that it was so.
            "loss": self.loss if self.loss is not None and _is_number(self.loss) else None,
            "step_s": list(self.step_s),
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_s_per_rank": self.tokens_per_s_per_rank,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """One rank's own work beside that of all."""

    rank: int
    median_s: float
    slowdown_percent: float
    """Over the median of all ranks."""
    worst_s: float = field(default=0.0)


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


def stragglers(work_s: Sequence[Sequence[float]]) -> list[Straggler]:
    """Return each rank's slowdown from the times of its own work, without waiting for others."""
    medians = [statistics.median(times) for times in work_s]
    # The lower one of an even number: of two ranks the faster one is usual.
    usual = statistics.median_low(medians)
    return [
        Straggler(
            rank=rank,
            median_s=median,
            slowdown_percent=100 * (median / usual - 1),
            worst_s=max(work_s[rank]),
        )
        for rank, median in enumerate(medians)
    ]


def judge(
    points: Sequence[Point],
    found: Sequence[Straggler],
    nodes: Sequence[Node],
    gates: Gates,
) -> list[Check]:
    """Return: the loss is a number, tokens a second of each GPU, efficiency, stragglers."""
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
        limit = gates.limit("training.scaling_efficiency", scope=scope, nodes=point.nodes)
        base = base_of(points, point)
        is_first = point.nodes == 1 and point is min(points, key=lambda each: each.ranks)
        if limit is None or is_first:
            continue
        check = "training.scaling_efficiency"
        if base is None or base.workload() != point.workload():
            why = (
                "no point with fewer ranks" if base is None else "another model, batch or sequence"
            )
            checks.append(not_run(check, f"{why}: nothing to compare with", **at))
            continue
        measured = efficiency_percent(base, point)
        if measured > _PLAUSIBLE_PERCENT:
            why = (
                f"{measured:.0f} % is more than {point.ranks} ranks can do: the {base.ranks} that "
                "it is compared with were held up; measure again"
            )
            checks.append(not_run(check, why, **at))
            continue
        said = (
            f"{point.tokens_per_s_per_rank:,.0f} tokens/s of each rank, "
            f"{base.tokens_per_s_per_rank:,.0f} with {base.ranks} ranks: "
            f"{point.ranks / base.ranks:g} times the ranks do "
            f"{point.tokens_per_s / base.tokens_per_s:.2f} times the work"
        )
        checks.append(
            hold(
                check,
                measured,
                limit,
                context={**context, "base_ranks": base.ranks},
                reason=None if limit.holds(measured) else said,
                **at,
            )
        )
    return [*checks, *_straggler_checks(found, nodes, gates)]


def _loss(points: Sequence[Point]) -> Check:
    bad = [point.ranks for point in points if point.loss is not None and not _is_number(point.loss)]
    reason = "no point was measured" if not points else f"not finite on {bad} ranks"
    return fact("training.loss", bool(points) and not bad, subject="all points", reason=reason)


def _several(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _is_number(loss: float) -> bool:
    return math.isfinite(loss)


def _straggler_checks(
    found: Sequence[Straggler], nodes: Sequence[Node], gates: Gates
) -> list[Check]:
    limit = gates.limit("training.straggler_slowdown")
    if limit is None:
        return []
    if len(found) < 2:
        return [not_run("training.straggler_slowdown", "fewer than two ranks", subject="no ranks")]
    slow = [each for each in found if not limit.holds(each.slowdown_percent)]
    worst = max(found, key=lambda each: each.slowdown_percent)
    said = ", ".join(
        f"rank {each.rank} on {name_of(nodes, each.rank)} +{each.slowdown_percent:.0f} %"
        for each in sorted(slow, key=lambda each: -each.slowdown_percent)[:8]
    )
    return [
        hold(
            "training.straggler_slowdown",
            worst.slowdown_percent,
            limit,
            subject=f"rank {worst.rank} on {name_of(nodes, worst.rank)}",
            nodes=sorted({name_of(nodes, each.rank) for each in slow or [worst]}),
            context={"median_s": worst.median_s, "worst_s": worst.worst_s},
            reason=f"{said}: drain what is slow, then look at clocks, heat and ECC"
            if slow
            else None,
        )
    ]
