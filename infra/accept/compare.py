"""Two runs of the same throughput job beside each other: overhead in percent, with its interval.

Overhead is what the second run loses of the first one's tokens a second; negative: it is faster.
Owns the statistics and the verdict. Step times of one run are not independent, so blocks of them
are compared (Welch's test on the logarithm).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from infra.accept.throughput import Point, Run

LIMIT_PERCENT: Final = 3.0
"""Gate of seed 004: Kubernetes costs less than this; the worst that it printed is 2.78."""
_BLOCKS: Final = 10
_LEAST_BLOCKS: Final = 3
_TAIL: Final = 0.975
"""Of a two-sided interval of 95 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One pair of comparable points."""

    nodes: int
    ranks: int
    workload: str
    first: float
    """Tokens a second."""
    second: float
    overhead_percent: float
    low_percent: float | None
    """Of the interval; None where a run kept no step times."""
    high_percent: float | None
    outcome: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All pairs of two runs."""

    first: Run
    second: Run
    limit_percent: float
    rows: tuple[Row, ...]

    @property
    def outcome(self) -> str:
        """FAIL if one pair failed, NOT_RUN if one cannot be told or there is none, else PASS."""
        found = {row.outcome for row in self.rows}
        if "FAIL" in found:
            return "FAIL"
        return "PASS" if found == {"PASS"} else "NOT_RUN"


def compare(first: Run, second: Run, *, limit_percent: float = LIMIT_PERCENT) -> Comparison:
    """The points that both runs have, by workload and nodes."""
    others = {point.key: point for point in second.points}
    pairs = [(point, others[point.key]) for point in first.points if point.key in others]
    rows = [_row(one, other, limit_percent) for one, other in pairs]
    return Comparison(
        first=first,
        second=second,
        limit_percent=limit_percent,
        rows=tuple(sorted(rows, key=lambda row: (row.workload, row.ranks))),
    )


def _row(first: Point, second: Point, limit: float) -> Row:
    overhead = 100 * (1 - second.tokens_per_s / first.tokens_per_s)
    interval = _interval(first, second)
    if interval is None:
        outcome = "PASS" if overhead < limit else "FAIL"
        reason = "single numbers: no interval can be given"
    elif interval[1] < limit:
        outcome, reason = "PASS", ""
    elif interval[0] >= limit:
        outcome, reason = "FAIL", ""
    else:
        outcome, reason = "NOT_RUN", f"the interval straddles {limit:g} %: run more steps"
    low, high = interval or (None, None)
    return Row(
        nodes=first.nodes,
        ranks=first.ranks,
        workload=first.name,
        first=first.tokens_per_s,
        second=second.tokens_per_s,
        overhead_percent=overhead,
        low_percent=low,
        high_percent=high,
        outcome=outcome,
        reason=reason,
    )


def _interval(first: Point, second: Point) -> tuple[float, float] | None:
    """Low and high overhead in percent, at 95 %."""
    one, other = _blocks(first.step_s), _blocks(second.step_s)
    if min(len(one), len(other)) < _LEAST_BLOCKS:
        return None
    parts = [statistics.variance(each) / len(each) for each in (one, other)]
    total = sum(parts)
    ratio = math.log(second.tokens_per_s / first.tokens_per_s)
    if total == 0:
        exact = 100 * (1 - math.exp(ratio))
        return exact, exact
    freedom = total**2 / sum(
        part**2 / (len(each) - 1) for part, each in zip(parts, (one, other), strict=True)
    )
    reach = t_quantile(freedom) * math.sqrt(total)
    return 100 * (1 - math.exp(ratio + reach)), 100 * (1 - math.exp(ratio - reach))


def _blocks(step_s: Sequence[float]) -> list[float]:
    """The logarithm of the mean step time of each block, in order."""
    size = max(1, len(step_s) // _BLOCKS)
    whole = len(step_s) // size
    return [
        math.log(statistics.fmean(step_s[index * size : (index + 1) * size]))
        for index in range(whole)
    ]


def t_quantile(freedom: float) -> float:
    """Student's t at 97.5 %, from the normal one (Abramowitz and Stegun 26.7.5)."""
    z = statistics.NormalDist().inv_cdf(_TAIL)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms))
