"""Intervals and paired tests: against closed forms, by seed, and for corpus metrics."""

from __future__ import annotations

import math

import numpy as np
import pytest

from workloads.evaluate.resampling import (
    Sampling,
    interval,
    mean_of,
    p_text,
    paired,
    perplexity_of,
)
from workloads.evaluate.scores import bleu_of, bleu_parts

SAMPLING = Sampling(resamples=4000, seed=3)


def test_the_interval_of_a_mean_is_about_two_standard_errors_wide() -> None:
    values = np.random.default_rng(0).normal(5.0, 2.0, size=400)
    found = interval(mean_of(values), SAMPLING)
    error = values.std() / math.sqrt(len(values))
    assert found.low == pytest.approx(values.mean() - 1.96 * error, abs=0.3 * error)
    assert found.high == pytest.approx(values.mean() + 1.96 * error, abs=0.3 * error)


def test_a_share_of_none_or_all_has_an_interval_too() -> None:
    """Resamples of 24 zeros are zeros: the bootstrap's interval was 0 to 0."""
    none, every = (interval(mean_of([value] * 24), SAMPLING) for value in (0, 1))
    assert (none.low, none.high) == (0.0, pytest.approx(0.138, abs=0.0005))
    assert (every.low, every.high) == (pytest.approx(0.862, abs=0.0005), 1.0)
    some = interval(mean_of([2.5] * 24), SAMPLING)
    assert (some.low, some.high) == (2.5, 2.5), "a length that is always the same is no share"


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(1)
    held = 0
    for seed in range(200):
        made = interval(
            mean_of(rng.normal(size=60)), Sampling(resamples=400, confidence=0.9, seed=seed)
        )
        held += made.low <= 0 <= made.high
    assert 0.83 <= held / 200 <= 0.96


def test_equal_seeds_give_equal_results_and_other_seeds_others() -> None:
    metric = mean_of(np.random.default_rng(7).random(50))
    assert interval(metric, SAMPLING) == interval(metric, SAMPLING)
    assert interval(metric, SAMPLING) != interval(metric, Sampling(resamples=4000, seed=4))


def test_the_permutation_test_counts_the_arrangements() -> None:
    """Six rows that all gain: 2 of 64 exchanges differ as much, all kept and all exchanged."""
    base, tuned = mean_of([0, 0, 0, 0, 0, 0]), mean_of([1, 1, 1, 1, 1, 1])
    found = paired(base, tuned, Sampling(resamples=20_000))
    assert found.difference == 1
    assert found.p_value == pytest.approx(2 / 64, abs=0.005)


def test_rows_that_vary_together_show_a_small_gain_that_unpaired_bounds_hide() -> None:
    level = np.random.default_rng(2).normal(0, 10, size=100)
    gain = np.random.default_rng(3).normal(0.5, 0.5, size=100)
    base, tuned = mean_of(level), mean_of(level + gain)
    found = paired(base, tuned, SAMPLING)
    assert found.low > 0
    assert found.p_value < 0.001
    before, after = interval(base, SAMPLING), interval(tuned, SAMPLING)
    assert before.high > after.low, "unpaired, the bounds overlap"


@pytest.mark.parametrize(
    ("base", "tuned", "low", "high"),
    [
        ([0] * 24, [0] * 24, -0.138, 0.138),
        ([0.1] * 24, [0.1] * 24, -0.138, 0.138),
        ([0] * 24, [1] * 24, 1 - 2 * 0.138, 1.0),
        ([1] * 24, [0] * 24, -1.0, 2 * 0.138 - 1),
    ],
)
def test_pairs_that_all_differ_by_the_same_have_an_interval_too(
    base: list[float], tuned: list[float], low: float, high: float
) -> None:
    """Each resample of them has their difference: the bootstrap's interval was 0 to 0."""
    found = paired(mean_of(base), mean_of(tuned), SAMPLING)
    assert (found.low, found.high) == (
        pytest.approx(low, abs=0.0005),
        pytest.approx(high, abs=0.0005),
    )


def test_equal_models_differ_by_nothing() -> None:
    values = mean_of([1.1, 7.0, 4.0])
    found = paired(values, values, SAMPLING)
    assert (found.difference, found.p_value) == (0.0, 1.0)
    assert (found.low, found.high) == (0.0, 0.0), "lengths end nowhere"


def test_perplexity_weighs_long_rows_more() -> None:
    metric = perplexity_of([2.0, 90.0], [2, 30])
    assert metric.value == pytest.approx(math.exp(92 / 32))


def test_results_do_not_depend_on_how_many_resamples_are_held_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from workloads.evaluate import resampling

    metric = mean_of(np.arange(30.0))
    whole = interval(metric, SAMPLING)
    monkeypatch.setattr(resampling, "_CELLS", 30 * 7)
    assert interval(metric, SAMPLING) == whole


def test_models_of_other_rows_are_no_pair() -> None:
    with pytest.raises(ValueError, match="2 and 3 rows are not pairs"):
        paired(mean_of([1, 2]), mean_of([1, 2, 3]), SAMPLING)


def test_a_bootstrap_of_bleu_is_corpus_bleu_of_the_drawn_rows() -> None:
    import sacrebleu

    references = ["the cat sat on the mat", "a dog ran over the hill", "it rains in the north"]
    answers = ["the cat sat on a mat", "a dog ran up the hill", "it rains in the far north"]
    metric = bleu_of([bleu_parts(r, a) for r, a in zip(references, answers, strict=True)])
    counts = np.array([[2.0, 0.0, 1.0]])
    drawn = sacrebleu.corpus_bleu(
        [answers[0], answers[0], answers[2]], [[references[0], references[0], references[2]]]
    )
    assert metric.value_of(counts @ metric.rows)[0] == pytest.approx(drawn.score, abs=1e-9)


def test_a_p_at_its_floor_is_a_bound() -> None:
    """2,000 resamples tell nothing below 1 in 2,001: it was printed as 0.0005."""
    assert p_text(1 / 2001, resamples=2000) == "<= 0.0005"
    assert p_text(2 / 2001, resamples=2000) == "0.0010"
    assert p_text(1 / 201, resamples=200) == "<= 0.005"
