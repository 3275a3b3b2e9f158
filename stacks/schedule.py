"""When things come and in which order: cron, Slurm's durations, pipelines, who holds the nodes of a
partition by day and by night, and when a stack ends. Pure; prices are cost/'s.
    pipeline(spec, "evaluate")  # prepare-data, finetune, evaluate
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Final

from stacks.load import StackError
from stacks.machines import workers_of
from stacks.spec import StackSpec
from stacks.spec.slurm import JobSpec

_FORMS: Final = re.compile(
    r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d{1,2}))?(?::(?P<third>\d{1,2}))?", re.ASCII
)


def slurm_seconds(text: str) -> int | None:
    """Seconds of `30` (minutes), `MM:SS`, `HH:MM:SS`, `D-HH[:MM[:SS]]`; None for any other text."""
    found = _FORMS.fullmatch(text.strip())
    if found is None:
        return None
    first, second, third = (int(found[part] or 0) for part in ("first", "second", "third"))
    if found["days"] is not None:
        return int(found["days"]) * 86400 + first * 3600 + second * 60 + third
    if found["third"] is not None:
        return first * 3600 + second * 60 + third
    return first * 60 + second


# Five fields or a word, as Slurm's scrontab reads them (src/scrontab/parse.c, src/common/cron.c of
# Slurm 25.11), which is less than crontab(5); what the two read differently is refused. Times are
# those of the clock that reads the schedule: there is no time zone here.
WORDS: Final[Mapping[str, str]] = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
MONTHS: Final = (
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
    _Field(name="month", first=1, last=12, longest_step=12, first_step=1, names=MONTHS),
    _Field(name="day of week", first=0, last=7, longest_step=7, first_step=1, names=DAYS),
)


@dataclass(frozen=True, slots=True)
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
        # Times that hold every gap of two weeks, and of schedules that are rarer.
        times = self.next_times(start, min(len(self.hours) * len(self.minutes) * 14 + 1, 3_000))
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        return min(gaps, default=None)


def parse_cron(text: str) -> Cron:
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
    weekdays = frozenset(number % 7 for number in weekdays)
    # A step makes of the star a restriction: Slurm has the flag of the bare one only.
    return Cron(minutes, hours, days, months, weekdays, "*" not in (fields[2], fields[4]))


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


# https://pkg.go.dev/github.com/robfig/cron/v3, read 2026-11-21: Sunday is 0 alone, names stand in
# lists and ranges too, and a step after one number goes on to the end.
_K8UP_FIELDS: Final = (*_FIELDS[:4], replace(_FIELDS[4], last=6))
_K8UP_FIELD: Final = re.compile(r"[0-9A-Za-z*/,-]+")
_K8UP_ITEM: Final = re.compile(r"(?:\*|(\w{1,9})(?:-(\w{1,9}))?)(?:/0*([1-9][0-9]{0,8}))?")


def parse_k8up(text: str) -> Cron:
    """The schedule of five fields as k8up's cron reads them, which is not as Slurm does."""
    parts = text.split(" ")
    if len(parts) != len(_K8UP_FIELDS) or not all(_K8UP_FIELD.fullmatch(part) for part in parts):
        raise CronError(
            f"'{text}' is no schedule; give five fields of cron, or @hourly, @daily, @weekly, "
            "@monthly or @yearly, with -random to spread the load"
        )
    found: list[frozenset[int]] = []
    for part, field in zip(parts, _K8UP_FIELDS, strict=True):
        known = {each: number for number, each in enumerate(field.names, field.first)}
        numbers: set[int] = set()
        for item in part.split(","):
            read = _K8UP_ITEM.fullmatch(item.upper())
            low, high, step = read.groups() if read else ("", None, None)
            named = [end for end in (low, high) if end is not None]
            ends = [int(end) if end.isdigit() else known.get(end, -1) for end in named]
            if ends != sorted(ends) or any(not field.first <= end <= field.last for end in ends):
                allowed = f"cron takes {field.first} to {field.last}"
                raise CronError(f"'{text}': '{item}' is no {field.name}; {allowed}")
            start = ends[0] if ends else field.first
            end = field.last if not ends or (step and high is None) else ends[-1]
            numbers.update(range(start, end + 1, int(step or 1)))
        found.append(frozenset(numbers))
    minutes, hours, days, months, weekdays = found
    # A star with a step of 2 or more restricts, as any number does.
    is_star = [re.search(r"(^|,)\*(/0*1)?(,|$)", part) is not None for part in parts]
    return Cron(minutes, hours, days, months, weekdays, not (is_star[2] or is_star[4]))


def _number(text: str) -> int | None:
    is_plain = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    return int(text) if is_plain else None


# A pipeline has no name of its own: it is called by the job that it ends with.
def pipeline(spec: StackSpec, name: str) -> tuple[JobSpec, ...]:
    """The job and everything that it needs, each after what it needs; `name` is declared."""
    jobs = {job.name: job for job in spec.jobs}
    wanted, found = [name], dict[str, JobSpec]()
    while wanted:
        job = jobs[wanted.pop()]
        if job.name not in found:
            found[job.name] = job
            wanted += [each for each in job.after if each in jobs]
    return in_order(spec.name, (job for job in spec.jobs if job.name in found))


def pipeline_ends(spec: StackSpec) -> tuple[JobSpec, ...]:
    """Jobs that need another one and that no other one needs, in declared order."""
    needed = {name for job in spec.jobs for name in job.after}
    return tuple(job for job in spec.jobs if job.after and job.name not in needed)


def in_order(stack: str, jobs: Iterable[JobSpec]) -> tuple[JobSpec, ...]:
    """The jobs, each after those of them that it needs; a circle is refused."""
    left = {job.name: job for job in jobs}
    done: list[JobSpec] = []
    while left:
        ready = [job for job in left.values() if not left.keys() & set(job.after)]
        if not ready:
            raise StackError(
                (f"{stack}: jobs: {', '.join(left)} wait for each other; see `after`",)
            )
        done += ready
        for job in ready:
            del left[job.name]
    return tuple(done)


# Timeline of a partition: every scheduled job from each of its times to its time limit.
NUM_WEEKS: Final = 4
# A Monday. What began in the week before reaches into the first one.
_START: Final = datetime(2026, 1, 5)  # noqa: DTZ001  a schedule has no zone
_BEFORE: Final = _START - timedelta(days=7)
_END: Final = _START + timedelta(weeks=NUM_WEEKS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """One scheduled job of a partition."""

    job: JobSpec
    hours_per_week: Decimal
    """Mean hours that it may hold its nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionShifts:
    """The scheduled jobs that share the nodes of one partition."""

    partition: str
    num_nodes: int
    """Nodes that are always there."""
    shifts: tuple[Shift, ...]
    free_node_hours_per_week: Decimal
    """Mean hours of nodes that no schedule holds."""
    clash_hours_per_week: Decimal
    """Mean hours in which the schedules ask for more nodes than there are: one waits."""
    first_clash: datetime | None
    """When that begins for the first time; its weekday and time are what counts."""


def partition_shifts(spec: StackSpec) -> tuple[PartitionShifts, ...]:
    """One for each partition that two or more scheduled jobs share, in declared order."""
    by_partition: dict[str, list[tuple[JobSpec, Cron]]] = defaultdict(list)
    for job in spec.jobs:
        with suppress(CronError):
            if job.schedule is not None and slurm_seconds(job.time_limit):
                by_partition[job.partition].append((job, parse_cron(job.schedule)))
    return tuple(_shifts(spec, name, jobs) for name, jobs in by_partition.items() if len(jobs) > 1)


def _shifts(spec: StackSpec, name: str, jobs: list[tuple[JobSpec, Cron]]) -> PartitionShifts:
    num_nodes = sum(worker.min_nodes for worker in workers_of(spec, name))
    changes: dict[datetime, int] = defaultdict(int)
    shifts: list[Shift] = []
    for job, cron in jobs:
        held = timedelta()
        for start, end in _windows(job, cron):
            held += end - start
            changes[start] += job.nodes
            changes[end] -= job.nodes
        shifts.append(Shift(job=job, hours_per_week=_weekly(held)))
    free, clash, first = _sweep(changes, num_nodes)
    return PartitionShifts(
        partition=name,
        num_nodes=num_nodes,
        shifts=tuple(shifts),
        free_node_hours_per_week=free,
        clash_hours_per_week=_weekly(clash),
        first_clash=first,
    )


def _windows(job: JobSpec, cron: Cron) -> Iterator[tuple[datetime, datetime]]:
    """From each time of the job to its limit, inside the weeks; a run keeps the next one out."""
    # No run is of use beyond the weeks, and a date ends with the year 9999.
    weeks_s = (_END - _BEFORE) // timedelta(seconds=1)
    limit, over = timedelta(seconds=min(weeks_s, slurm_seconds(job.time_limit) or 0)), _BEFORE
    for moment in cron.times(_BEFORE - timedelta(minutes=1)):
        if moment >= _END:
            return
        if moment < over:
            continue
        over = moment + limit
        if over > _START:
            yield max(moment, _START), min(over, _END)


def _sweep(
    changes: dict[datetime, int], num_nodes: int
) -> tuple[Decimal, timedelta, datetime | None]:
    """Free node-hours a week, time with more asked for than there is, and its first moment."""
    asked, free, clash, first = 0, timedelta(), timedelta(), None
    at = _START
    for moment in (*sorted(changes), _END):
        length = moment - at
        free += max(0, num_nodes - asked) * length
        if asked > num_nodes and length:
            clash += length
            first = first or at
        asked += changes.get(moment, 0)
        at = moment
    return _weekly(free), clash, first


def _weekly(length: timedelta) -> Decimal:
    return Decimal(length // timedelta(seconds=1)) / 3600 / NUM_WEEKS


_SOON: Final = timedelta(days=3)


def parse_end(text: str) -> datetime | None:
    """The time in UTC; None for a text that is no time of a day in a zone."""
    try:
        found = datetime.fromisoformat(text)
        # A day alone would end at its first minute, and a time without a zone hours off.
        return None if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):  # of the years 1 and 9999 in some zones
        return None


def end_of(spec: StackSpec) -> datetime | None:
    """When the stack is to be paused; None: never."""
    if spec.lifetime is None or spec.lifetime.until is None:
        return None
    return parse_end(spec.lifetime.until)


def why_ended(spec: StackSpec, now: datetime) -> str | None:
    """Why no job starts on this stack any more; None while it lives."""
    end = end_of(spec)
    if end is None or now < end:
        return None
    return (
        f"{spec.name}: lifetime.until: the stack ended on {end:%Y-%m-%d %H:%M} UTC; declare a "
        f"later end in stacks/Pulumi.{spec.name}.yaml to go on, or pause it: soperator cluster "
        f"autostop --stack {spec.name} --act"
    )


def reminders(spec: StackSpec, now: datetime) -> list[str]:
    """What to say of the end at every look at the stack: it has passed, or comes near."""
    end = end_of(spec)
    if end is None:
        return []
    over = why_ended(spec, now)
    if over is not None:
        return [] if spec.nodes.paused else [over]
    if end - now > _SOON:
        return []
    hours = (end - now) // timedelta(hours=1)
    when = f"in {hours} h, on {end:%Y-%m-%d %H:%M} UTC"
    return [
        f"{spec.name}: lifetime.until: the stack ends {when}; no job is submitted after that",
    ]
