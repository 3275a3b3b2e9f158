"""What one check says, and what all of them say together: PASS, FAIL or NOT RUN.

Owns the rule that a check without a measurement is NOT RUN and that NOT RUN never ends with 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from workloads.accept.gates import Limit
from workloads.common.exit_codes import ExitCode

Outcome = Literal["PASS", "FAIL", "NOT_RUN"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question to the cluster, with its answer and the limit that it was held against."""

    id: str
    """Stage and subject, such as `training.scaling_efficiency`."""
    outcome: Outcome
    subject: str
    """What was asked: a node, a GPU, a pair of ranks, or all ranks."""
    nodes: tuple[str, ...] = ()
    """Nodes that it speaks of: what a failure costs is their price."""
    measured: float | None = None
    unit: str = ""
    limit: Limit | None = None
    context: Mapping[str, Any] = field(default_factory=dict)
    """What the number depends on: model, batch, sequence, ranks, bytes."""
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the check as plain values."""
        return {
            "id": self.id,
            "outcome": self.outcome,
            "subject": self.subject,
            "nodes": list(self.nodes),
            "measured": self.measured,
            "unit": self.unit,
            "limit": None if self.limit is None else self.limit.to_json(),
            "context": dict(self.context),
            "reason": self.reason,
        }


def hold(
    id: str,
    measured: float | None,
    limit: Limit | None,
    *,
    subject: str,
    nodes: Iterable[str] = (),
    unit: str = "",
    context: Mapping[str, Any] | None = None,
    reason: str | None = None,
) -> Check:
    """Return the check of one number against its limit; without the number it is NOT RUN."""
    outcome: Outcome
    if measured is None:
        outcome, reason = "NOT_RUN", reason or "not measured"
    elif limit is None:
        raise AssertionError(f"{id}: a check needs a limit; what has none is a measurement")
    elif limit.holds(measured):
        outcome = "PASS"
    else:
        outcome, reason = "FAIL", reason or f"{limit.says()} {unit}".rstrip()
    return Check(
        id=id,
        outcome=outcome,
        subject=subject,
        nodes=tuple(nodes),
        measured=measured,
        unit=unit or ("" if limit is None else limit.unit),
        limit=limit,
        context=context or {},
        reason=reason,
    )


def fact(
    id: str,
    is_true: bool,
    *,
    subject: str,
    reason: str,
    nodes: Iterable[str] = (),
    context: Mapping[str, Any] | None = None,
) -> Check:
    """Return the check of something that is so or not; `reason` says what is wrong."""
    return Check(
        id=id,
        outcome="PASS" if is_true else "FAIL",
        subject=subject,
        nodes=tuple(nodes),
        context=context or {},
        reason=None if is_true else reason,
    )


def not_run(id: str, reason: str, *, subject: str, nodes: Iterable[str] = ()) -> Check:
    """Return a check that could not be made."""
    return Check(id=id, outcome="NOT_RUN", subject=subject, nodes=tuple(nodes), reason=reason)


def overall(checks: Iterable[Check]) -> Outcome:
    """Return FAIL if one failed, else NOT_RUN if one was not made or none exists, else PASS."""
    outcomes = {check.outcome for check in checks}
    if "FAIL" in outcomes:
        return "FAIL"
    return "PASS" if outcomes == {"PASS"} else "NOT_RUN"


def exit_code(outcome: Outcome) -> ExitCode:
    """Return 0 for PASS alone."""
    codes = {"PASS": ExitCode.OK, "FAIL": ExitCode.FAILED, "NOT_RUN": ExitCode.NOT_RUN}
    return codes[outcome]
