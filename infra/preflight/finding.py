"""What a pre-flight question answers: PASS, FAIL or NOT CHECKED, with what was seen and the fix."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """NOT CHECKED is no answer: the API was away, slow, or does not tell."""

    PASS = "PASS"  # noqa: S105
    FAIL = "FAIL"
    NOT_CHECKED = "NOT CHECKED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One answer."""

    check: str
    """What was asked, such as `quotas`."""
    outcome: Outcome
    seen: str
    fix: str | None = None
    certain: bool = False
    """Whether an `up` is sure to fail: the program refuses before it declares anything."""

    def __str__(self) -> str:
        return f"{self.check}: {self.seen}" + (f"; {self.fix}" if self.fix else "")


def passed(check: str, seen: str) -> Finding:
    """An answer without a problem."""
    return Finding(check=check, outcome=Outcome.PASS, seen=seen)


def failed(check: str, seen: str, fix: str, *, certain: bool = False) -> Finding:
    """A problem and what to do about it."""
    return Finding(check=check, outcome=Outcome.FAIL, seen=seen, fix=fix, certain=certain)


def not_checked(check: str, reason: str) -> Finding:
    """No answer, with the reason."""
    return Finding(check=check, outcome=Outcome.NOT_CHECKED, seen=reason)
