"""Checks as lines of a job's log."""

from __future__ import annotations

from collections.abc import Sequence

from workloads.accept.outcome import Check


def table(checks: Sequence[Check]) -> list[str]:
    """Return a line for each check: outcome, id, subject, number, limit, reason."""
    lines: list[str] = []
    for check in checks:
        number = "" if check.measured is None else f" {check.measured:.4g} {check.unit}"
        limit = "" if check.limit is None else f" ({check.limit.says()})"
        reason = "" if check.reason is None else f": {check.reason}"
        outcome = check.outcome.replace("_", " ")
        lines.append(f"{outcome:8}{check.id} {check.subject}{number}{limit}{reason}")
    return lines
