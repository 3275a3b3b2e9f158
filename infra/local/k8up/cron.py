"""When a schedule of k8up is due: cron of five fields, its words, and its random ones. Pure.

The random words follow k8up's operator/handler/randomizer.go (read 2026-11-21): the same schedule
gets the same minute everywhere and for ever. Times are UTC, as in the operator's container.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

_WORDS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
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
_NAMES: Final[Mapping[str, int]] = {
    **{name: number for number, name in enumerate(_DAYS)},
    **{name: number for number, name in enumerate(_MONTHS, 1)},
}
_RANGES: Final = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_MISSED: Final = timedelta(minutes=10)
"""The operator keeps no memory: what was due while nobody ran is not made up for."""


def effective(schedule: str, *, namespace: str, name: str, job: str) -> str:
    """Five fields of cron for what a Schedule says of one kind of job."""
    if not schedule.endswith("-random"):
        return _WORDS.get(schedule, schedule)
    seed = f"{namespace}/{name}@{job}"
    number = int(hashlib.sha1(seed.encode(), usedforsecurity=False).hexdigest(), 16)
    minute, hour, day = number % 60, number % 24, 1 + number % 27
    made = {
        "@hourly-random": f"{minute} * * * *",
        "@daily-random": f"{minute} {hour} * * *",
        "@weekly-random": f"{minute} {hour} * * {number % 6}",
        "@monthly-random": f"{minute} {hour} {day} * *",
        "@yearly-random": f"{minute} {hour} {day} {1 + number % 12} *",
    }
    return made.get(schedule, schedule)


def is_due(cron: str, since: datetime, now: datetime) -> bool:
    """Whether a minute after `since` and up to `now` is one of the schedule's.

    A word that the operator's cron does not know is never due, as there.
    """
    if len(cron.split()) != len(_RANGES):
        return False
    minute = max(since, now - _MISSED).replace(second=0, microsecond=0)
    while (minute := minute + timedelta(minutes=1)) <= now:
        if _holds(cron, minute):
            return True
    return False


def _holds(cron: str, at: datetime) -> bool:
    minutes, hours, days, months, weekdays = (
        _values(field, *span) for field, span in zip(cron.split(), _RANGES, strict=True)
    )
    if at.minute not in minutes or at.hour not in hours or at.month not in months:
        return False
    on_day = at.day in days
    on_weekday = bool({at.isoweekday() % 7, at.isoweekday()} & weekdays)
    _, _, day_field, _, weekday_field = cron.split()
    # Two restricted fields mean either: crontab(5).
    if day_field.startswith("*") or weekday_field.startswith("*"):
        return on_day and on_weekday
    return on_day or on_weekday


def _values(field: str, first: int, last: int) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        low, _, high = span.partition("-")
        if span == "*":
            start, end = first, last
        else:
            start = _number(low)
            end = _number(high) if high else (last if step else start)
        found.update(range(start, end + 1, int(step or 1)))
    return found


def _number(text: str) -> int:
    return _NAMES[text.upper()] if text.upper() in _NAMES else int(text)
