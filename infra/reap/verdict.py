"""Whether a stack is to be paused now: verdict(spec, activity, now). Pure.

Owns the decision of `soperator reap`; docs/adr/0027-who-ends-an-idle-stack.md has the reasons.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from infra.reap.activity import Activity
from stacks.lifetime import end_of
from stacks.spec import StackSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether it is time, and why or why not, in one line."""

    is_due: bool
    reason: str


def verdict(
    spec: StackSpec, activity: Activity, now: datetime, *, ends_jobs: bool = False
) -> Verdict:
    """A stack is due when its end has passed, or when it was idle for its hours; never while a job
    runs or waits, unless its end has passed and `ends_jobs`.
    """
    assert spec.lifetime is not None, "the caller refuses a stack without lifetime"
    end = end_of(spec)
    is_over = end is not None and now >= end
    if activity.unfinished and not (is_over and ends_jobs):
        what = f"{len(activity.unfinished)} jobs run or wait: {', '.join(activity.unfinished[:5])}"
        if is_over:
            what += "; its end has passed: --end-jobs pauses it all the same"
        return Verdict(is_due=False, reason=what)
    if is_over:
        return Verdict(is_due=True, reason=f"its end, {end:%Y-%m-%d %H:%M} UTC, has passed")
    hours = spec.lifetime.idle_hours
    idle = now - activity.idle_since
    words = f"no job since {activity.idle_since:%Y-%m-%d %H:%M} UTC"
    if hours is None:
        return Verdict(is_due=False, reason=f"{words}, and lifetime.idle_hours is not declared")
    if idle >= timedelta(hours=hours):
        return Verdict(is_due=True, reason=f"{words}, longer than lifetime.idle_hours ({hours})")
    left = timedelta(hours=hours) - idle
    return Verdict(
        is_due=False, reason=f"{words}; due in {left // timedelta(minutes=1)} min without a job"
    )
