"""Days on which credentials end: `soperator:time:Expiry`.

Chosen once and kept, so that an unchanged `up` changes nothing; chosen anew when the days or the
version change, and at the first `up` in the last quarter of the time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from infra.plugins.provider import UNKNOWN, Diff, Failure, compare

Values = dict[str, Any]
TYPE: Final = "soperator:time:Expiry"
_KEYS: Final = ("days", "version")
_RENEWED_WITHIN: Final = 0.25
"""Share of the days before the end in which an `up` renews."""


def now() -> datetime:
    """This moment, UTC."""
    return datetime.now(UTC)


def check(new: Values) -> list[Failure]:
    """Refuses all but whole numbers of 1 or more."""
    failures = [
        (key, f"unknown; has {', '.join(_KEYS)}") for key in sorted(new.keys() - set(_KEYS))
    ]
    for key in _KEYS:
        value = new.get(key)
        if value is not UNKNOWN and (not isinstance(value, int) or value < 1):
            failures.append((key, f"{value!r} is no whole number of 1 or more"))
    return failures


def diff(old_inputs: Values, old_state: Values, new: Values) -> Diff:
    """Anything that changed, and an end that comes near, chooses anew."""
    changes = compare(old_inputs, new)
    if not changes and _is_near(old_state):
        return Diff(replaces=("days",), detailed={"days": "update"})
    return Diff(replaces=tuple(changes), detailed=changes)


def create(inputs: Values) -> tuple[str, Values]:
    """The end, as RFC 3339 in whole seconds; also the id."""
    end = (now() + timedelta(days=inputs["days"])).replace(microsecond=0)
    at = end.isoformat().replace("+00:00", "Z")
    return at, {**inputs, "at": at}


def _is_near(state: Values) -> bool:
    left = datetime.fromisoformat(state["at"]) - now()
    return left < timedelta(days=state["days"]) * _RENEWED_WITHIN
