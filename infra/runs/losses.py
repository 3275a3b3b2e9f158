"""Whether two runs learned the same: agreement(a, b, tolerance) of their losses, step by step.

Owns the verdict. Both to the bit is what the same code, data, seed, ranks and GPUs give; the order
in which a GPU adds numbers is not the same everywhere, so a difference up to the tolerance agrees.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

TOLERANCE: Final = 0.01
"""Ours: one part in a hundred, below what another seed changes."""

Curve = Sequence[tuple[int, float]]


class Verdict(StrEnum):
    """What became of the comparison."""

    EQUAL = "EQUAL"
    AGREE = "AGREE"
    DIFFER = "DIFFER"
    NOT_RUN = "NOT RUN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Two loss curves held against each other."""

    verdict: Verdict
    detail: str
    num_steps: int
    largest_share: float | None
    """The largest difference at a step, as a part of the first run's loss there.

    None where no step is in common, infinite where one loss is no number and the other is.
    """

    def __str__(self) -> str:
        return f"{self.verdict}: {self.detail}"


def agreement(first: Curve, second: Curve, tolerance: float = TOLERANCE) -> Agreement:
    """The second curve held against the first."""
    before, after = dict(first), dict(second)
    steps = sorted(before.keys() & after.keys())
    if not steps:
        which = "the first" if not before else "the second" if not after else "neither, in common,"
        return Agreement(
            verdict=Verdict.NOT_RUN,
            detail=f"{which} has no loss of a train step",
            num_steps=0,
            largest_share=None,
        )
    shares = {step: _share(before[step], after[step]) for step in steps}
    largest = max(shares.values())
    only = len(before.keys() ^ after.keys())
    said = f"{len(steps)} train steps" + (f" in common, {only} in one run only" if only else "")
    if not any(shares.values()):
        verdict, detail = Verdict.EQUAL, f"losses of {said} are equal to the last bit"
    elif largest <= tolerance:
        verdict = Verdict.AGREE
        detail = f"losses of {said} are at most {100 * largest:.3g} % apart"
    else:
        verdict = Verdict.DIFFER
        step = next(step for step in steps if shares[step] > tolerance)
        detail = (
            f"losses of {said}: at step {step} {before[step]:.6g} and {after[step]:.6g}, more than "
            f"{100 * tolerance:g} % apart"
            + (f"; at most {100 * largest:.3g} %" if math.isfinite(largest) else "")
        )
    return Agreement(verdict=verdict, detail=detail, num_steps=len(steps), largest_share=largest)


def _share(before: float, after: float) -> float:
    if before == after or (math.isnan(before) and math.isnan(after)):
        return 0.0
    if not before or not (math.isfinite(before) and math.isfinite(after)):
        return math.inf
    # The smallest number that is not 0, where the division would give 0: they are not equal.
    return abs(after - before) / abs(before) or math.ulp(0.0)
