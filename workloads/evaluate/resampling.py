"""Error bars and tests on rows: bootstrap intervals and paired tests, equal for equal seeds.

Owns the statistics. A metric is a function of sums over rows (a mean, exp of a mean, corpus BLEU),
so a resample is a vector of row counts and needs no second look at the texts. Sources: percentile
bootstrap, Efron and Tibshirani 1993, ch. 13; paired bootstrap and approximate randomisation of
corpus metrics, Koehn 2004 (W04-3250) and Riezler and Maxwell 2005 (W05-0908). No resample of equal
rows is another, but rows that were not seen may be: Wilson 1927.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_CELLS = 4_000_000
"""Counts held at once; bounds memory at 32 MB for any number of rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How many resamples, how wide the interval, which random numbers."""

    resamples: int = 2000
    confidence: float = 0.95
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """One metric of one model: what each row adds, and the value of the sums."""

    rows: Array
    """float64, rows x parts."""
    value_of: Callable[[Array], Array]
    """Sums (..., parts) -> values (...)."""

    @property
    def value(self) -> float:
        """Return the metric over all rows."""
        return float(self.value_of(self.rows.sum(0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Bounds that hold the metric of the population with `confidence`."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """Tuned minus base on the same rows."""

    difference: float
    low: float
    high: float
    p_value: float
    """Two-sided: how often rows with exchanged models differ at least this much."""
    num_rows: int


def mean_of(values: Any) -> Measured:
    """Return the mean of one number a row."""
    column = np.asarray(values, dtype=np.float64)
    return Measured(
        rows=np.stack([column, np.ones_like(column)], axis=1),
        value_of=lambda sums: sums[..., 0] / sums[..., 1],
    )


def perplexity_of(losses: Any, num_tokens: Any) -> Measured:
    """Return exp(summed loss / tokens): rows weigh as many as they have tokens."""
    return Measured(
        rows=np.stack([np.asarray(losses, float), np.asarray(num_tokens, float)], axis=1),
        value_of=lambda sums: np.exp(sums[..., 0] / sums[..., 1]),
    )


def interval(metric: Measured, sampling: Sampling) -> Interval:
    """Return the percentile bootstrap interval of a metric; Wilson's where all rows are equal."""
    values = [metric.value_of(counts @ metric.rows) for counts in _counts(metric, sampling)]
    return _of_equal_rows(sampling, metric) or _bounds(np.concatenate(values), sampling)


def _of_equal_rows(sampling: Sampling, *models: Measured) -> Interval | None:
    """Return Wilson's interval of a mean of 0 to 1, or of two's difference; None if rows differ."""
    rows = np.stack([each.rows for each in models])
    values = rows[..., 0]
    if rows.shape[2] != 2 or (rows[..., 1] != 1).any() or values.min() < 0 or values.max() > 1:
        return None
    seen = np.unique(np.diff(values, axis=0, prepend=0)[-1])
    square = NormalDist().inv_cdf((1 + sampling.confidence) / 2) ** 2
    other = square / (values.shape[1] + square)
    low, high = ((1 - other) * float(seen[0]) + other * each for each in (1 - len(models), 1))
    return Interval(low=low, high=high) if len(seen) == 1 else None


def paired(base: Measured, tuned: Measured, sampling: Sampling) -> Paired:
    """Return the difference with its paired bootstrap interval and permutation test."""
    if len(base.rows) != len(tuned.rows):
        raise ValueError(f"{len(base.rows)} and {len(tuned.rows)} rows are not pairs")
    observed = tuned.value - base.value
    differences = [
        tuned.value_of(counts @ tuned.rows) - base.value_of(counts @ base.rows)
        for counts in _counts(base, sampling)
    ]
    step = tuned.rows - base.rows
    total_base, total_tuned = base.rows.sum(0), tuned.rows.sum(0)
    at_least = 0
    for exchanged in _exchanges(base, sampling):
        moved = exchanged @ step
        difference = tuned.value_of(total_tuned - moved) - base.value_of(total_base + moved)
        # A difference that is equal but for rounding counts as reached.
        at_least += int((np.abs(difference) >= abs(observed) * (1 - 1e-9) - 1e-12).sum())
    found = _of_equal_rows(sampling, base, tuned) or _bounds(np.concatenate(differences), sampling)
    return Paired(
        difference=observed,
        **asdict(found),
        # The observed arrangement is one of those possible, so a p of 0 cannot come out.
        p_value=(1 + at_least) / (1 + sampling.resamples),
        num_rows=len(base.rows),
    )


def p_text(p_value: float, *, resamples: int) -> str:
    """Return a p of resampling as text; so many resamples tell nothing below 1 in one more."""
    floor = 1 / (1 + resamples)
    return f"<= {floor:.2g}" if p_value <= floor else f"{p_value:.4f}"


def _counts(metric: Measured, sampling: Sampling) -> Iterator[Array]:
    """Yield how often each row is drawn, some resamples at a time; by seed and rows alone."""
    rng = np.random.default_rng((sampling.seed, 0))
    num_rows = len(metric.rows)
    for size in _sizes(num_rows, sampling.resamples):
        yield rng.multinomial(num_rows, [1 / num_rows] * num_rows, size=size).astype(np.float64)


def _exchanges(metric: Measured, sampling: Sampling) -> Iterator[Array]:
    rng = np.random.default_rng((sampling.seed, 1))
    num_rows = len(metric.rows)
    for size in _sizes(num_rows, sampling.resamples):
        yield rng.integers(0, 2, size=(size, num_rows)).astype(np.float64)


def _sizes(num_rows: int, resamples: int) -> Iterator[int]:
    size = max(1, _CELLS // num_rows)
    for first in range(0, resamples, size):
        yield min(size, resamples - first)


def _bounds(values: Array, sampling: Sampling) -> Interval:
    tail = (1 - sampling.confidence) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return Interval(low=float(low), high=float(high))
