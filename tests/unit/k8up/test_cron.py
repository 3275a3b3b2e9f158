"""Schedules of k8up: cron, its words, and random times that never change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.local.k8up import effective, is_due

SATURDAY = datetime(2026, 11, 21, 3, 30, tzinfo=UTC)
WHERE = {"namespace": "soperator", "name": "jail-backup"}


def due_at(cron: str, at: datetime) -> bool:
    return is_due(cron, at - timedelta(minutes=1), at)


@pytest.mark.parametrize(
    "cron",
    [
        "30 3 * * *",
        "*/15 * * * *",
        "0,30 1-5 * * *",
        "30 3 21 11 *",
        "30 3 * NOV SAT",
        "30 3 * * 6",
        "30 3 1 * sat",
        "25-35/5 3 * * *",
        "* * * * *",
    ],
)
def test_a_minute_of_the_schedule_is_due(cron: str) -> None:
    assert due_at(cron, SATURDAY)


@pytest.mark.parametrize(
    "cron",
    ["31 3 * * *", "30 4 * * *", "30 3 22 * *", "30 3 * 12 *", "30 3 * * 0", "30 3 22 * 5"],
)
def test_another_minute_is_not(cron: str) -> None:
    assert not due_at(cron, SATURDAY)


@pytest.mark.parametrize("cron", ["30  3 * * *", " 30 3 *\t* * "])
def test_any_white_space_stands_between_the_fields(cron: str) -> None:
    assert due_at(cron, SATURDAY)


@pytest.mark.parametrize(
    "cron",
    ["x 3 * * *", "*/0 * * * *", "30 3 * * MONDAY", "30 3 * *", f"{'3' * 5000} 3 * * *"],
)
def test_a_schedule_that_no_cron_reads_is_never_due_and_ends_no_other(cron: str) -> None:
    assert not due_at(cron, SATURDAY)


def test_sunday_has_one_number_and_7_is_read_by_no_cron_of_k8ups() -> None:
    """Its days of a week end at 6, and one field that cannot be read ends the whole schedule."""
    sunday = SATURDAY + timedelta(days=1)
    assert due_at("30 3 * * 0", sunday)
    assert not due_at("30 3 * * 7", sunday)


@pytest.mark.parametrize(("days", "comes"), [("*", False), ("*/1", False), ("*/2", True)])
def test_a_star_with_a_step_is_a_restriction_beside_a_day_of_the_week(
    days: str, comes: bool
) -> None:
    """Two restricted fields mean either; the 21st is a Saturday."""
    assert due_at(f"30 3 {days} * 1", SATURDAY) is comes


def test_a_minute_is_due_once_and_not_made_up_for_after_a_long_stop() -> None:
    assert is_due("30 3 * * *", SATURDAY - timedelta(minutes=5), SATURDAY + timedelta(minutes=2))
    assert not is_due("30 3 * * *", SATURDAY, SATURDAY + timedelta(minutes=2))
    assert not is_due("30 3 * * *", SATURDAY - timedelta(days=1), SATURDAY + timedelta(hours=1))


def test_words_are_what_cron_calls_them() -> None:
    assert effective("@daily", job="backup", **WHERE) == "0 0 * * *"
    assert effective("@annually", job="backup", **WHERE) == "0 0 1 1 *"
    assert effective("5 4 * * *", job="backup", **WHERE) == "5 4 * * *"


def test_a_random_time_is_k8ups_own_and_differs_by_job() -> None:
    """By its algorithm: sha1 of `soperator/jail-backup@backup`, modulo 60 and 24."""
    daily = effective("@daily-random", job="backup", **WHERE)
    number = int("4a07d69637093c9090a9148c1bc39b28ecede05e", 16)
    assert daily == f"{number % 60} {number % 24} * * *"
    assert daily != effective("@daily-random", job="prune", **WHERE)


def test_a_word_that_k8ups_cron_does_not_know_is_never_due() -> None:
    """Its randomizer leaves @annually-random as it is."""
    cron = effective("@annually-random", job="backup", **WHERE)
    assert cron == "@annually-random"
    assert not is_due(cron, SATURDAY - timedelta(minutes=9), SATURDAY)


@given(
    st.sampled_from(["hourly", "daily", "weekly", "monthly", "yearly"]),
    st.text("abcdefgh-", min_size=1),
)
def test_every_random_word_comes_due_within_its_time(word: str, name: str) -> None:
    cron = effective(f"@{word}-random", namespace="n", name=name, job="backup")
    fields = cron.split()
    assert len(fields) == 5
    at = datetime(
        2026,
        int(fields[3]) if fields[3] != "*" else 6,
        int(fields[2]) if fields[2] != "*" else 7,
        int(fields[1]) if fields[1] != "*" else 0,
        int(fields[0]),
        tzinfo=UTC,
    )
    days = (at + timedelta(days=more) for more in range(7))
    assert any(due_at(cron, day) for day in days)
