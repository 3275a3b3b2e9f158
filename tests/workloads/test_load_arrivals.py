"""Arrivals and lengths have the moments that they are asked for, and the same ones for a seed."""

from __future__ import annotations

import json
import math
import statistics
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.nightly import law
from workloads.common.exit_codes import ConfigError, DataError
from workloads.load.prompts import (
    PROFILE_VARIABLE,
    Arrival,
    draw_lengths,
    poisson,
    read_profile,
    read_trace,
    with_profile,
)
from workloads.recipes.load import Lengths, LoadConfig, Prompts, Slo

SETTINGS = law(50)
SEEDS = st.integers(0, 2**31)
COUNT = 4000


@SETTINGS
@given(seed=SEEDS, rate=st.floats(0.01, 1000))
def test_poisson_gaps_have_the_mean_and_the_deviation_of_an_exponential(seed: int, rate: float):
    """Both are 1 / rate; five standard errors, and a deviation of the deviation twice as wide."""
    times = [0.0, *(each.at_s for each in poisson(rate, COUNT, seed))]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    tolerance = 5 / math.sqrt(COUNT)
    assert statistics.fmean(gaps) * rate == pytest.approx(1, rel=tolerance)
    assert statistics.pstdev(gaps) * rate == pytest.approx(1, rel=2 * tolerance)


@SETTINGS
@given(seed=SEEDS)
def test_the_number_of_arrivals_in_a_second_varies_as_much_as_its_mean(seed: int):
    """What tells a Poisson process from a clock, whose counts do not vary."""
    times = [each.at_s for each in poisson(8.0, 8 * 500, seed)]
    counts = [0] * int(times[-1])
    for moment in times:
        if moment < len(counts):
            counts[int(moment)] += 1
    assert statistics.pvariance(counts) / statistics.fmean(counts) == pytest.approx(1, abs=0.4)


@SETTINGS
@given(seed=SEEDS)
def test_a_seed_gives_the_same_arrivals_and_another_gives_others(seed: int):
    assert poisson(2.0, 20, seed) == poisson(2.0, 20, seed)
    assert poisson(2.0, 20, seed) != poisson(2.0, 20, seed + 1)


@SETTINGS
@given(
    seed=SEEDS,
    mean=st.integers(50, 5000),
    spread=st.floats(0.05, 0.5),
    distribution=st.sampled_from(["uniform", "lognormal"]),
)
def test_drawn_lengths_have_the_mean_and_spread_that_were_asked_for(
    seed: int, mean: int, spread: float, distribution: str
):
    lengths = Lengths(mean=mean, distribution=distribution, spread=spread, most=10**6)
    drawn = draw_lengths(lengths, COUNT, str(seed))
    assert statistics.fmean(drawn) == pytest.approx(mean, rel=0.05)
    assert statistics.pstdev(drawn) / mean == pytest.approx(spread, rel=0.2, abs=0.01)
    assert drawn == draw_lengths(lengths, COUNT, str(seed))


def test_fixed_lengths_are_all_the_mean_and_none_is_over_the_most():
    assert draw_lengths(Lengths(mean=7), 3, "s") == [7, 7, 7]
    drawn = draw_lengths(Lengths(mean=9, distribution="lognormal", spread=2, most=12), 500, "s")
    assert min(drawn) >= 1
    assert max(drawn) == 12


def test_a_trace_is_read_in_the_order_of_time(tmp_path: Path):
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"at_s": 2.5, "output_tokens": 9}\n\n'
        '{"at_s": 0.5, "prompt_tokens": 10, "output_tokens": 20}\n'
    )
    assert read_trace(path) == (
        Arrival(at_s=0.5, prompt_tokens=10, output_tokens=20),
        Arrival(at_s=2.5, output_tokens=9),
    )


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "a.jsonl",
            '{"at_s": NaN}\n{"at_s": -1}\n{"at_s": 3}\n',
            r"a.jsonl:1.at_s: got NaN.*; .*a.jsonl:2.at_s: got -1",
        ),
        ("a.jsonl", '{"at_s": -1}\nnope\n', "a.jsonl:1.at_s: got -1.*a.jsonl:2: not JSON"),
        ("a.jsonl", '{"at_s": "x"}\n', 'a.jsonl:1.at_s: got "x", expected a number'),
        ("a.jsonl", '{"output_tokens": 1}\n', "a.jsonl:1.at_s: missing"),
        ("a.jsonl", '{"at_s": 1, "tokens": 3}\n', "a.jsonl:1.tokens: unknown key; "),
        ("a.jsonl", "[1]\n", "a.jsonl:1: got .1., expected a mapping"),
        ("a.jsonl", '{"at_s": 1, "output_tokens": 0}\n', "output_tokens: got 0, expected 1 to"),
        ("a.jsonl", '{"at_s": true}\n', "at_s: got true"),
        ("a.jsonl", '{"at_s": 1}\n', "1 arrivals; a trace needs 2"),
        ("a.csv", "at_s\n1\n", r'a.csv: a trace is a .jsonl file, one {"at_s": ...} a line$'),
        ("missing.jsonl", None, "missing.jsonl: cannot be read"),
    ],
)
def test_a_trace_that_says_no_times_is_refused_by_its_rows(
    tmp_path: Path, name: str, text: str | None, words: str
):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=words) as refusal:
        read_trace(tmp_path / name)
    assert str(refusal.value).startswith(f"load.open_loop.trace: {tmp_path}")


PROFILE = {
    "SOPERATOR_CHAT_PROFILE": json.dumps(
        {
            "context_tokens": 8000,
            "output_tokens": 2000,
            "turns": 5,
            "cached_share": 0.8,
            "max_answer_s": 30.0,
        }
    )
}


def test_the_chat_profile_fills_what_the_recipe_leaves_open():
    """An answer is a turn's share of the chat's output."""
    config = with_profile(LoadConfig(), read_profile(PROFILE))
    assert config.prompt_tokens.mean == 8000
    assert config.output_tokens.mean == 400
    assert config.slo.e2e_s == 30.0
    assert config.prompts.cached_share == 0.8


def test_a_chat_of_a_context_of_millions_is_tested_too():
    """A stack may declare it: a profile that was refused took every load test of its stack."""
    profile = read_profile({PROFILE_VARIABLE: '{"context_tokens": 10000000, "output_tokens": 8}'})
    assert with_profile(LoadConfig(), profile).prompt_tokens.mean == 10_000_000


def test_what_the_recipe_says_wins_over_the_chat_profile():
    said = LoadConfig(
        prompt_tokens=Lengths(mean=10),
        output_tokens=Lengths(mean=20),
        slo=Slo(e2e_s=1.0),
        prompts=Prompts(cached_share=0.0),
    )
    assert with_profile(said, read_profile(PROFILE)) == said


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("context_tokens", 20_000_000, "1 to 10000000"),
        ("cached_share", -0.5, ">= 0"),
        ("max_answer_s", 0.0, "> 0"),
    ],
)
def test_a_profile_that_no_recipe_takes_is_refused_by_its_name(
    name: str, value: float, expected: str
) -> None:
    """It went into the settings of the test, where nobody refused it in a line."""
    text = json.dumps({"context_tokens": 8, "output_tokens": 8, name: value})
    with pytest.raises(
        ConfigError, match=f"{PROFILE_VARIABLE}.{name}: got .*, expected {expected}"
    ):
        with_profile(LoadConfig(), read_profile({PROFILE_VARIABLE: text}))


def test_without_lengths_and_profile_nothing_runs():
    with pytest.raises(ConfigError, match=r"load.prompt_tokens and load.output_tokens: no mean"):
        with_profile(LoadConfig(), read_profile({}))
    with pytest.raises(ConfigError, match="SOPERATOR_CHAT_PROFILE: not JSON"):
        read_profile({"SOPERATOR_CHAT_PROFILE": "{"})
