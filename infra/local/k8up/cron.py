"""When a schedule of k8up is due: cron of five fields, its words, and its random ones. Pure.

The random words follow k8up's operator/handler/randomizer.go (read 2026-11-21): the same schedule
gets the same minute everywhere and for ever. Times are UTC, as in the operator's container.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from typing import Final

from stacks.cron import CronError, parse

_WORDS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
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

    What the operator's cron does not know is never due, as there.
    """
    try:
        schedule = parse(cron)
    except CronError:
        return False
    minute = max(since, now - _MISSED).replace(second=0, microsecond=0)
    while (minute := minute + timedelta(minutes=1)) <= now:
        if schedule.at(minute):
            return True
    return False
