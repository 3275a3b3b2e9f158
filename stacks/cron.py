"""When a schedule of cron is due: parse(text) -> Cron; its next times and how often it comes. Pure.

Five fields or a word, as Slurm's scrontab reads them (src/scrontab/parse.c and src/common/cron.c of
Slurm 25.11), which is less than crontab(5); what the two read differently is refused. Owns no time
zone: times are those of the clock that reads the schedule.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
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
_MOST_DIGITS: Final = 4
_HOURS_PER_MONTH: Final = 730
# Any four years in a row have one leap day: what never comes in them never comes.
_FIRST_DAY: Final = date(2026, 1, 1)
_NUM_DAYS: Final = 4 * 365 + 1


class CronError(ValueError):
    """A text that is no schedule, with what is wrong and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """One of the five fields."""

    name: str
    first: int
    last: int
    longest_step: int
    first_step: int
    """Where Slurm counts steps from."""
    names: tuple[str, ...] = ()
    """Of its numbers, from 0 for a weekday and from 1 for a month."""


_FIELDS: Final = (
    _Field(name="minute", first=0, last=59, longest_step=60, first_step=0),
    _Field(name="hour", first=0, last=23, longest_step=24, first_step=0),
    _Field(name="day of month", first=1, last=31, longest_step=31, first_step=1),
    _Field(name="month", first=1, last=12, longest_step=12, first_step=1, names=_MONTHS),
    _Field(name="day of week", first=0, last=7, longest_step=7, first_step=1, names=_DAYS),
)


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
    """Whether a day of the month or one of the week is enough: both are given."""

    def on(self, day: date) -> bool:
        """Whether it comes on this day."""
        if day.month not in self.months:
            return False
        found = (day.day in self.days, day.isoweekday() % 7 in self.weekdays)
        return any(found) if self.either_day else all(found)

    def at(self, moment: datetime) -> bool:
        """Whether the minute is one of its own."""
        return moment.minute in self.minutes and moment.hour in self.hours and self.on(moment)

    def times(self, after: datetime) -> Iterator[datetime]:
        """Its minutes after this moment, for four years."""
        midnight = after.replace(hour=0, minute=0, second=0, microsecond=0)
        for offset in range(_NUM_DAYS + 1):
            day = midnight + timedelta(days=offset)
            if not self.on(day):
                continue
            for hour in sorted(self.hours):
                for minute in sorted(self.minutes):
                    moment = day + timedelta(hours=hour, minutes=minute)
                    if moment > after:
                        yield moment

    def next_times(self, after: datetime, count: int) -> tuple[datetime, ...]:
        """So many next minutes; fewer where it does not come so often in four years."""
        return tuple(itertools.islice(self.times(after), count))

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
    found: list[frozenset[int]] = []
    problems: list[str] = []
    for text_of, field in zip(fields, _FIELDS, strict=True):
        try:
            found.append(_numbers(text_of, field))
        except CronError as error:
            problems.append(str(error))
    if problems:
        raise CronError(f"'{text}': {'; '.join(problems)}")
    minutes, hours, days, months, weekdays = found
    return Cron(
        minutes=minutes,
        hours=hours,
        days=days,
        months=months,
        weekdays=frozenset(number % 7 for number in weekdays),
        # A step makes of the star a restriction: Slurm has the flag of the bare one only.
        either_day="*" not in (fields[2], fields[4]),
    )


def _enough(cron: Cron) -> int:
    """Times that hold every gap of two weeks, and of schedules that are rarer."""
    return min(len(cron.hours) * len(cron.minutes) * 14 + 1, 3_000)


def _numbers(text: str, field: _Field) -> frozenset[int]:
    span, slash, step_text = text.partition("/")
    if span.upper() in field.names and not slash:
        return frozenset({field.names.index(span.upper()) + field.first})
    found: set[int] = set()
    for part in (f"{field.first}-{field.last}",) if span == "*" else span.split(","):
        low, dash, high = part.partition("-")
        start, end = _number(low), _number(high if dash else low)
        if start is None or end is None or not field.first <= start <= end <= field.last:
            names = ", ".join(field.names)
            also = f", or one of {names}; lists and ranges are of numbers" if names else ""
            raise CronError(
                f"'{part}' is no {field.name}; Slurm takes {field.first} to {field.last}{also}"
            )
        found.update(range(start, end + 1))
    if not slash:
        return frozenset(found)
    step = _number(step_text)
    if step is None or not 2 <= step <= field.longest_step or "," in span or len(found) == 1:
        raise CronError(
            f"'{text}' is no step of a {field.name}; Slurm takes 2 to {field.longest_step}, after "
            "'*' or one range"
        )
    counted = found.intersection(range(field.first_step, field.last + 1, step))
    if counted != set(range(min(found), max(found) + 1, step)):
        raise CronError(
            f"'{text}' is another {field.name} for Slurm, which counts steps from "
            f"{field.first_step}, than for cron; list the numbers"
        )
    return frozenset(counted)


def _number(text: str) -> int | None:
    is_plain = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    return int(text) if is_plain else None
