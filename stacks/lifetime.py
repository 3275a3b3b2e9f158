"""When a stack ends: end_of(spec), and what to tell of it: reminders(spec, now). Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from stacks.spec import StackSpec

_SOON: Final = timedelta(days=3)


def parse_end(text: str) -> datetime | None:
    """The time in UTC; None for a text that is no time of a day in a zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    # A day alone would end at its first minute, and a time without a zone hours off.
    return None if found.tzinfo is None else found.astimezone(UTC)


def end_of(spec: StackSpec) -> datetime | None:
    """When the stack is to be paused; None: never."""
    if spec.lifetime is None or spec.lifetime.until is None:
        return None
    return parse_end(spec.lifetime.until)


def refusal(spec: StackSpec, now: datetime) -> str | None:
    """Why no job starts on this stack any more; None while it lives."""
    end = end_of(spec)
    if end is None or now < end:
        return None
    return (
        f"{spec.name}: lifetime.until: the stack ended on {end:%Y-%m-%d %H:%M} UTC; declare a "
        f"later end in stacks/Pulumi.{spec.name}.yaml to go on, or pause it: soperator reap "
        f"--stack {spec.name} --act"
    )


def reminders(spec: StackSpec, now: datetime) -> list[str]:
    """What to say of the end at every look at the stack: it has passed, or comes near."""
    end = end_of(spec)
    if end is None:
        return []
    over = refusal(spec, now)
    if over is not None:
        return [] if spec.nodes.paused else [over]
    if end - now > _SOON:
        return []
    hours = (end - now) // timedelta(hours=1)
    when = f"in {hours} h, on {end:%Y-%m-%d %H:%M} UTC"
    return [
        f"{spec.name}: lifetime.until: the stack ends {when}; no job is submitted after that",
    ]
