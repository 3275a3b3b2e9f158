"""When a schedule of cron is due: parse(text) -> Cron; its next times and how often it comes. Pure.

Five fields or a word, as crontab(5) and Slurm's scrontab read them. Owns no time zone: times are
those of the clock that reads the schedule.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Final

WORDS: Final[Mapping[str, str]] = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_MONTHS: Final = (
    *("JAN", "FEB", "MAR", "APR", "MAY", "JUN"),
    *("JUL", "AUG", "SEP", "OCT", "NOV", "DEC"),
)
_FIELDS: Final = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, tuple(enumerate(_MONTHS, 1))),
    ("day of week", 0, 7, tuple(enumerate(_DAYS))),
)
_HOURS_PER_MONTH: Final = 730
# Any four years in a row have one leap day: what never comes in them never comes.
_FIRST_DAY: Final = date(2026, 1, 1)
_NUM_DAYS: Final = 4 * 365 + 1


class CronError(ValueError):
    """A text that is no schedule, with what is wrong and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron:
    """A schedule as sets of numbers."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    either_day: bool
    """Whether a day of the month or one of the week is enough: both are given (crontab(5))."""

    def on(self, day: date) -> bool:
        """Whether it comes on this day."""
        if day.month not in self.months:
            return False
        found = (day.day in self.days, day.isoweekday() % 7 in self.weekdays)
        return any(found) if self.either_day else all(found)

    def at(self, moment: datetime) -> bool:
        """Whether the minute is one of its own."""
        return moment.minute in self.minutes and moment.hour in self.hours and self.on(moment)

    def next_times(self, after: datetime, count: int) -> tuple[datetime, ...]:
        """So many next minutes; fewer where it does not come so often in four years."""
        found: list[datetime] = []
        midnight = after.replace(hour=0, minute=0, second=0, microsecond=0)
        for offset in range(_NUM_DAYS + 1):
            day = midnight + timedelta(days=offset)
            if not self.on(day):
                continue
            for hour in sorted(self.hours):
                for minute in sorted(self.minutes):
                    moment = day + timedelta(hours=hour, minutes=minute)
                    if moment > after:
                        found.append(moment)
                    if len(found) == count:
                        return tuple(found)
        return tuple(found)

    @property
    def times_per_month(self) -> Decimal:
        """Mean times in a month of 730 hours, the month of the bill; 0: it never comes."""
        days = sum(self.on(_FIRST_DAY + timedelta(days=offset)) for offset in range(_NUM_DAYS))
        times = days * len(self.hours) * len(self.minutes)
        return Decimal(times * _HOURS_PER_MONTH) / (_NUM_DAYS * 24)

    @property
    def shortest_gap(self) -> timedelta | None:
        """The least time from one to the next, in the first weeks; None: it comes once or never."""
        start = datetime.combine(_FIRST_DAY, datetime.min.time()) - timedelta(minutes=1)
        times = self.next_times(start, _enough(self))
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        return min(gaps, default=None)


def parse(text: str) -> Cron:
    """The schedule of five fields or of a word such as `@daily`."""
    fields = WORDS.get(text, text).split()
    if len(fields) != len(_FIELDS):
        raise CronError(
            f"'{text}' is no schedule; give five fields of cron (minute, hour, day of month, "
            f"month, day of week), such as '0 2 * * 1-5', or {', '.join(WORDS)}"
        )
    minutes, hours, days, months, weekdays = (
        _numbers(field, name, first, last, {word: number for number, word in names}, text)
        for field, (name, first, last, names) in zip(fields, _FIELDS, strict=True)
    )
    return Cron(
        minutes=minutes,
        hours=hours,
        days=days,
        months=months,
        weekdays=frozenset(number % 7 for number in weekdays),
        either_day=not fields[2].startswith("*") and not fields[4].startswith("*"),
    )


def _enough(cron: Cron) -> int:
    """Times that hold every gap of two weeks, and of schedules that are rarer."""
    return min(len(cron.hours) * len(cron.minutes) * 14 + 1, 3_000)


def _numbers(
    field: str, name: str, first: int, last: int, names: Mapping[str, int], text: str
) -> frozenset[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, slash, step_text = part.partition("/")
        low, dash, high = span.partition("-")
        start = first if span == "*" else _number(low, names)
        end = start
        if span == "*":
            end = last
        elif dash:
            end = _number(high, names)
        elif slash:
            end = last
        step = _number(step_text, {}) if slash else 1
        if start is None or end is None or not step or not first <= start <= end <= last:
            allowed = f"{first} to {last}" + (f", {', '.join(names)}" if names else "")
            raise CronError(f"'{text}': '{part}' is no {name}; cron takes {allowed}")
        found.update(range(start, end + 1, step))
    return frozenset(found)


def _number(text: str, names: Mapping[str, int]) -> int | None:
    if text.isascii() and text.isdecimal():
        return int(text)
    return names.get(text.upper())
