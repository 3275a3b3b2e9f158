"""Waiting out loud: how long each kind of resource may take, and what the user hears meanwhile.

One line when a wait becomes long, and one for each change of its stage, its nodes or its cause; the
engine's progress line in between. Owns the words and the deadlines, not the asking (api.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from infra.nebius.errors import service_errors, tell
from infra.nebius.schema import Schema

_QUIET_S: Final = 5.0
"""A wait that ends sooner is no news."""
_LOUD: Final = ("WARN", "ERROR")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long one operation takes."""

    deadline_s: float
    """After this the wait ends; the operation goes on, and the next `up` waits on."""
    expected_s: float | None = None
    """What is usual; None where nobody has measured it."""
    source: str


_MINUTE: Final = 60.0
_OURS: Final = "our own limit, 2026-11"
# A whole cluster took 30 to 45 minutes in seeds 001 and 002; about 40 for 2 nodes of 8 GPUs in
# nebius-solutions-library soperator/README.md, commit 7b687e5 of 2026-04-21. Of that the nodes are
# the longest part and the control plane the second. The recipe waits 60 minutes for one stage.
_WHOLE: Final = "seeds 001 and 002: 30 to 45 minutes for a whole cluster"
_RECIPE: Final = "longest wait for one stage in the official recipe, 2026-04"
PACES: Final[dict[str, Pace]] = {
    "mk8snodegroup": Pace(expected_s=45 * _MINUTE, deadline_s=120 * _MINUTE, source=_WHOLE),
    "mk8scluster": Pace(deadline_s=60 * _MINUTE, source=_RECIPE),
    "computefilesystem": Pace(deadline_s=30 * _MINUTE, source=_OURS),
}
"""Id prefix of a kind of resource -> its pace."""
OTHER: Final = Pace(deadline_s=30 * _MINUTE, source=_OURS)


class Say(Protocol):
    """Shows one line; a passing one is progress and not kept."""

    def __call__(self, line: str, *, passing: bool = False) -> None: ...


class Watch:
    """What one wait has told so far."""

    def __init__(
        self,
        what: str,
        kind: str,
        schema: Schema,
        say: Say,
        look: Callable[[str], Any | None] = lambda _id: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`look` fetches the resource of an id; `what` is such as `create NodeGroup 'worker'`."""
        self._what = what
        self.pace = PACES.get(kind, OTHER)
        self._schema = schema
        self._say = say
        self._look = look
        self._clock = clock
        self._began = clock()
        self._told = ""
        self._is_late = False
        self.cause: str | None = None
        """The first thing that the API blamed."""

    @property
    def passed_s(self) -> float:
        """Seconds since this wait began."""
        return self._clock() - self._began

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self.passed_s > self.pace.deadline_s

    def poll(self, operation: Any) -> None:
        """Tells what changed since the last look at the operation."""
        if self.passed_s < _QUIET_S:
            return
        resource = self._look(operation.resource_id)
        now = "; ".join((_stage(resource), *self._causes(resource)))
        line = f"{self._what}: {now}; {self._times()}"
        expected_s = self.pace.expected_s
        is_late = expected_s is not None and self.passed_s > expected_s
        changed = now != self._told or is_late is not self._is_late
        self._told, self._is_late = now, is_late
        self._say(line, passing=not changed)

    def away(self, reason: str) -> None:
        """Tells once that the API does not answer."""
        now = f"no answer from the API ({reason}), still waiting"
        self._say(f"{self._what}: {now}; {self._times()}", passing=now == self._told)
        self._told = now

    def finish(self, operation: Any) -> None:
        """Keeps the first cause of an operation that failed, where the failure names none."""
        if operation.status.code and self.cause is None:
            self._causes(self._look(operation.resource_id))

    def _times(self) -> str:
        passed = _minutes(self.passed_s)
        if self.pace.expected_s is None:
            return f"{passed} passed, given up after {_minutes(self.pace.deadline_s)}"
        late = " (late)" if self.passed_s > self.pace.expected_s else ""
        return f"{passed} of at most {_minutes(self.pace.expected_s)} passed{late}"

    def _causes(self, resource: Any | None) -> list[str]:
        """What the resource's events blame, the first one first."""
        found = causes(self._schema, resource)
        if found and self.cause is None:
            self.cause = found[0]
        return [f"blocked: {cause}" for cause in found]


def causes(schema: Schema, resource: Any | None) -> list[str]:
    """What the events of a resource blame, oldest first, each in one line with its fix."""
    if resource is None or "events" not in resource.status.DESCRIPTOR.fields_by_name:
        return []
    loud = [event for event in resource.status.events if _level(event) in _LOUD]
    loud.sort(key=lambda event: event.first_occurred_at.ToNanoseconds())
    lines = []
    for event in loud:
        last = event.last_occurrence
        reasons = service_errors(schema, last.error)
        told = "; ".join(tell(kind, value) for kind, value in reasons)
        lines.append(" ".join((told or last.message or last.code).split()))
    return list(dict.fromkeys(lines))


def _level(event: Any) -> str:
    level = event.last_occurrence.level
    values = event.last_occurrence.DESCRIPTOR.fields_by_name["level"].enum_type.values_by_number
    return values[level].name if level in values else ""


def _stage(resource: Any | None) -> str:
    """State of the resource, and of its nodes where it has some."""
    if resource is None:
        return "running"
    status = resource.status
    own = status.DESCRIPTOR.fields_by_name
    stage = "running"
    if "state" in own and own["state"].enum_type is not None:
        number = status.state
        known = own["state"].enum_type.values_by_number
        stage = known[number].name.lower() if number in known else "running"
    if "target_node_count" in own:
        stage += f", {status.ready_node_count} of {status.target_node_count} nodes ready"
    return stage


def _minutes(seconds: float) -> str:
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE:.0f} min"
