"""The refusal of the planner."""

from __future__ import annotations

from stacks.errors import UserError


class SizeError(UserError):
    """A model, method or number that cannot be planned, a line for each problem."""
