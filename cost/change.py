"""What a preview says about the deployed bill: change(bill, outputs) from the stack's own outputs.

Owns the cases without an earlier bill, which are no errors. With it come the data that a change
would lose, what it drains, and what it may not do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cost.diff import Difference, diff
from cost.diff_table import render_diff
from cost.layout import Format
from cost.rollout import Rollout, rollout
from cost.snapshot import take
from cost.snapshot_format import SnapshotError, parse
from stacks.changes import LostStorage, lost_storage
from stacks.problem import Level, Problem
from stacks.upgrade import refused

if TYPE_CHECKING:
    from cost.bill import Bill

FIRST_DEPLOYMENT: Final = "First deployment: no earlier bill to compare with."


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The way from the deployed bill to the declared one."""

    difference: Difference | None
    """None where there is no earlier bill."""
    reason: str
    """Why there is none; empty where there is one."""
    losses: tuple[LostStorage, ...]
    rollout: Rollout = field(default_factory=lambda: Rollout(steps=()))
    problems: tuple[Problem, ...] = ()
    """What cannot or should not follow the deployment."""

    @property
    def errors(self) -> tuple[Problem, ...]:
        """Problems that refuse the change."""
        return tuple(problem for problem in self.problems if problem.level is Level.ERROR)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """Problems that do not."""
        return tuple(problem for problem in self.problems if problem.level is Level.WARNING)

    def render(self, format: Format = Format.TABLE) -> str:
        """The change as text, data that would be lost first, ending in a newline."""
        if self.difference is None:
            return f"{self.reason}\n"
        warnings = "".join(f"!!! {loss}\n" for loss in self.losses)
        return warnings + render_diff(self.difference, format) + self.rollout.render()


def change(bill: Bill, outputs: Mapping[str, object]) -> Change:
    """The change from what the stack's outputs say was deployed; no outputs, no deployment."""
    if not outputs:
        return Change(difference=None, reason=FIRST_DEPLOYMENT, losses=())
    deployed = outputs.get("cost")
    try:
        before = parse(deployed.get("snapshot") if isinstance(deployed, Mapping) else None)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    except SnapshotError as error:
        reason = f"No earlier bill to compare with: that of the deployment cannot be read: {error}."
        return Change(difference=None, reason=reason, losses=())
    after = take(bill)
    return Change(
        difference=diff(before, after),
        reason="",
        losses=lost_storage(before.values, after.values),
        rollout=rollout(before.values, after.values, bill.spec, bill.estimate),
        problems=refused(bill.spec.name, before.values, after.values),
    )
