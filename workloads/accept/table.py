"""Checks as lines of a job's log."""

from __future__ import annotations

from collections.abc import Sequence

from workloads.accept.outcome import Check


def table(checks: Sequence[Check]) -> list[str]:
    """Return a line for each check: outcome, id, subject, number, limit, reason."""
    lines: list[str] = []
    for check in checks:
        measured = "" if check.measured is None else f" {number(check.measured)} {check.unit}"
        limit = "" if check.limit is None else f" ({check.limit.says()})"
        reason = "" if check.reason is None else f": {check.reason}"
        outcome = check.outcome.replace("_", " ")
        lines.append(f"{outcome:8}{check.id} {check.subject}{measured}{limit}{reason}")
    return lines


def number(value: float) -> str:
    """Return four digits, and whole numbers with thousands from 1,000 on."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
