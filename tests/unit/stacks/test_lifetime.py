"""The declared end of a stack: its rules, and what is said before and after it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from stacks.load import load_stack
from stacks.schedule import end_of, reminders, why_ended
from stacks.spec import LifetimeSpec, StackSpec

NOON = datetime(2026, 12, 24, 12, tzinfo=UTC)


@pytest.fixture
def spec(public_key_file: object) -> StackSpec:
    return replace(load_stack("l40s-dev"), lifetime=LifetimeSpec(until="2026-12-24T12:00Z"))


@pytest.mark.parametrize(
    "text", ["2026-12-24T12:00Z", "2026-12-24T13:00+01:00", "2026-12-24 12:00+00:00"]
)
def test_the_same_end_can_be_written_in_every_zone(spec: StackSpec, text: str) -> None:
    assert end_of(replace(spec, lifetime=LifetimeSpec(until=text))) == NOON


def test_a_stack_without_an_end_never_ends(spec: StackSpec) -> None:
    for lifetime in (None, LifetimeSpec(idle_hours=3)):
        forever = replace(spec, lifetime=lifetime)
        assert end_of(forever) is None
        assert why_ended(forever, NOON) is None
        assert not reminders(forever, NOON)


def test_a_job_is_refused_from_the_minute_of_the_end(spec: StackSpec) -> None:
    assert why_ended(spec, NOON - timedelta(seconds=1)) is None
    text = why_ended(spec, NOON) or ""
    assert "the stack ended on 2026-12-24 12:00 UTC" in text
    assert "soperator cluster autostop --stack l40s-dev --act" in text


def test_the_end_is_said_three_days_before(spec: StackSpec) -> None:
    assert not reminders(spec, NOON - timedelta(days=3, seconds=1))
    (line,) = reminders(spec, NOON - timedelta(days=2))
    assert "ends in 48 h" in line


def test_an_end_that_has_passed_is_said_until_the_stack_is_paused(spec: StackSpec) -> None:
    late = NOON + timedelta(days=9)
    assert reminders(spec, late) == [why_ended(spec, late)]
    assert not reminders(replace(spec, nodes=replace(spec.nodes, paused=True)), late)
