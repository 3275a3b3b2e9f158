"""A schedule is read as by Slurm's scrontab; its times and its number a month follow from it."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stacks.schedule import Cron, CronError, parse_cron
from tests.nightly import law

NOW = datetime(2026, 11, 21, 18, 30)  # noqa: DTZ001  a schedule has no zone; a Saturday


def times(text: str, count: int = 3) -> list[str]:
    return [f"{moment:%a %m-%d %H:%M}" for moment in parse_cron(text).next_times(NOW, count)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 2 * * *", ["Sun 11-22 02:00", "Mon 11-23 02:00", "Tue 11-24 02:00"]),
        ("0 8 * * 1-5", ["Mon 11-23 08:00", "Tue 11-24 08:00", "Wed 11-25 08:00"]),
        ("*/20 18-19 * * *", ["Sat 11-21 18:40", "Sat 11-21 19:00", "Sat 11-21 19:20"]),
        ("30 18 * * *", ["Sun 11-22 18:30", "Mon 11-23 18:30", "Tue 11-24 18:30"]),
        ("0 0 1,15 * *", ["Tue 12-01 00:00", "Tue 12-15 00:00", "Fri 01-01 00:00"]),
        ("0 0 23 * sun", ["Sun 11-22 00:00", "Mon 11-23 00:00", "Sun 11-29 00:00"]),
        ("10,35 0 * JAN SAT", ["Sat 01-02 00:10", "Sat 01-02 00:35", "Sat 01-09 00:10"]),
        ("0 8-20/4 * * *", ["Sat 11-21 20:00", "Sun 11-22 08:00", "Sun 11-22 12:00"]),
        # A step is a restriction for Slurm, so that one of the two days is enough.
        ("0 0 */15 * 2", ["Tue 11-24 00:00", "Tue 12-01 00:00", "Tue 12-08 00:00"]),
        ("0 0 */10 * 4", ["Thu 11-26 00:00", "Tue 12-01 00:00", "Thu 12-03 00:00"]),
        ("0 12 29 2 *", ["Tue 02-29 12:00"]),
        ("@weekly", ["Sun 11-22 00:00", "Sun 11-29 00:00", "Sun 12-06 00:00"]),
    ],
)
def test_the_next_times_are_those_of_cron(text: str, expected: list[str]) -> None:
    assert times(text) == expected


@pytest.mark.parametrize(
    ("text", "per_month"),
    [
        ("@hourly", Decimal(730)),
        ("@daily", Decimal(730) / 24),
        ("0 2,14 * * *", Decimal(730) / 12),
        ("0 0 31 2 *", Decimal(0)),
    ],
)
def test_a_month_has_730_hours(text: str, per_month: Decimal) -> None:
    assert parse_cron(text).times_per_month == per_month


def test_a_leap_day_comes_once_in_four_years() -> None:
    assert parse_cron("0 0 29 2 *").times_per_month == Decimal(730) / (1461 * 24)


@pytest.mark.parametrize(
    ("text", "gap"),
    [
        ("@daily", timedelta(days=1)),
        ("0 9,17 * * *", timedelta(hours=8)),
        ("0 8 * * 1-5", timedelta(days=1)),
        ("0 8 * * 1", timedelta(days=7)),
    ],
)
def test_the_shortest_gap_is_found(text: str, gap: timedelta) -> None:
    assert parse_cron(text).shortest_gap == gap


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("daily", "give five fields of cron"),
        ("@often", "give five fields of cron"),
        ("0 2 * * * *", "give five fields of cron"),
        ("60 * * * *", "'60' is no minute; Slurm takes 0 to 59"),
        ("* 24 * * *", "'24' is no hour"),
        ("* * 0 * *", "'0' is no day of month; Slurm takes 1 to 31"),
        ("* * * foo *", "'foo' is no month; Slurm takes 1 to 12, or one of JAN"),
        ("* * * * 8", "'8' is no day of week; Slurm takes 0 to 7, or one of SUN"),
        ("5-2 * * * *", "'5-2' is no minute"),
        ("*/0 * * * *", "'*/0' is no step of a minute; Slurm takes 2 to 60"),
        ("*/1 * * * *", "'*/1' is no step of a minute"),
        ("5/25 * * * *", "after '*' or one range"),
        ("1,10-20/2 * * * *", "after '*' or one range"),
        ("0 9-17/2 * * *", "which counts steps from 0, than for cron; list the numbers"),
        ("0 0 * * */2", "which counts steps from 1, than for cron"),
        ("0 0 * * mon-fri", "'mon-fri' is no day of week"),
        ("0 0 * jan,jul *", "lists and ranges are of numbers"),
        ("60 24 * * *", "'60' is no minute; Slurm takes 0 to 59; '24' is no hour"),
        (f"{'9' * 5000} * * * *", "is no minute"),
        ("-5 * * * *", "'-5' is no minute"),
        ("1,,2 * * * *", "'' is no minute"),
        ("\u0665 * * * *", "is no minute"),
    ],
)
def test_what_is_no_schedule_is_refused_with_what_is_allowed(text: str, words: str) -> None:
    with pytest.raises(CronError) as refusal:
        parse_cron(text)
    assert words in str(refusal.value)


fields = st.tuples(
    st.integers(0, 59),
    st.sampled_from(["*", "3", "1-5", "*/6"]),
    st.sampled_from(["*", "1", "15,30", "*/10"]),
    st.sampled_from(["*", "2", "6-8"]),
    st.sampled_from(["*", "0", "7", "1-5"]),
)


def is_due(cron: Cron, moment: datetime) -> bool:
    """Whether the minute is one of the schedule's."""
    return moment.minute in cron.minutes and moment.hour in cron.hours and cron.on(moment)


@law(30)
@given(fields)
def test_every_next_time_is_one_of_the_schedule_and_none_is_left_out(given_: tuple[object, ...]):
    cron = parse_cron(" ".join(str(field) for field in given_))
    found = cron.next_times(NOW, 4)
    assert all(is_due(cron, moment) for moment in found)
    assert list(found) == sorted(set(found))
    if found:
        # Only minutes of its own can be due: an hour's step at the right minute finds them all.
        first = NOW.replace(minute=int(str(given_[0])))
        hours = int((found[-1] - first) / timedelta(hours=1)) + 1
        candidates = (first + timedelta(hours=hour) for hour in range(min(hours, 24 * 400)))
        due = [moment for moment in candidates if moment > NOW and is_due(cron, moment)]
        assert list(found)[: len(due)] == due
