"""What a stack declares of runs and losses is checked at its path, before anything is forecast."""

from __future__ import annotations

from typing import Any

import pytest

from stacks.check import check
from stacks.errors import Level, Problem
from stacks.load import StackError
from tests.unit.stacks.conftest import Change, changed

RUN: dict[str, Any] = {
    "job": "finetune",
    "tokens_per_epoch": 7_200_000,
    "train_tokens_per_s": 2000,
    "source": "a document of 2026-11-01",
}
LOSSES = {
    "preemptions_per_node_day": 1,
    "checkpoint_stall_s": 60,
    "restart_s": 600,
    "source": "assumed",
}


def problems(change: Change) -> tuple[Problem, ...]:
    return tuple(each for each in check(changed(change)) if "quota" not in each.path)


def test_a_declared_run_within_its_time_limit_has_nothing_to_say():
    """7.2M tokens at 2,000 a second are exactly the default limit of one hour."""
    assert problems(lambda config: config.update(runs=[RUN])) == ()


@pytest.mark.parametrize(
    ("runs", "level", "path", "said"),
    [
        ([{**RUN, "job": "x"}], Level.ERROR, "runs[0].job", "(has: prepare, finetune)"),
        ([RUN, RUN], Level.ERROR, "runs[1].job", "'finetune' is used twice"),
        ([{**RUN, "source": None}], Level.ERROR, "runs[0].source", "say where and when"),
        ([{**RUN, "train_tokens_per_s": None}], Level.WARNING, "runs[0].source", "no effect"),
        ([{**RUN, "epochs": 2}], Level.WARNING, "runs[0]", "would take 2.00 hours"),
    ],
)
def test_a_run_that_cannot_be_forecast_is_named(
    runs: list[dict[str, Any]], level: Level, path: str, said: str
):
    found = problems(lambda config: config.update(runs=runs))
    assert [(each.level, each.path) for each in found] == [(level, f"demo.{path}")]
    assert said in found[0].message


def preemptible(config: dict[str, Any]) -> None:
    config["nodes"]["workers"][0]["billing"] = "preemptible"


def test_preemptible_workers_without_declared_losses_are_a_warning():
    found = problems(preemptible)
    assert [each.path for each in found if each.path == "demo.preemption"] == ["demo.preemption"]


def test_preemptible_workers_with_declared_losses_are_not():
    def both(config: dict[str, Any]) -> None:
        preemptible(config)
        config["preemption"] = LOSSES

    assert not [each for each in problems(both) if each.path == "demo.preemption"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("runs", [{**RUN, "tokens_per_epoch": 0}]),
        ("runs", [{**RUN, "epochs": -1}]),
        ("preemption", {**LOSSES, "restart_s": -1}),
        ("budget", {"usd_per_month": 0}),
        ("budget", {"usd_per_month": 10, "usd_per_week": 3}),
    ],
)
def test_numbers_that_mean_nothing_do_not_load(key: str, value: object):
    with pytest.raises(StackError, match=rf"demo\.{key}"):
        changed(lambda config: config.update({key: value}))
