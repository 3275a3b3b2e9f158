"""The refusal of the planner."""

from __future__ import annotations


class SizeError(ValueError):
    """A model, method or number that cannot be planned, a line for each problem."""
