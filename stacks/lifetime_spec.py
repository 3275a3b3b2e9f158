"""How long a stack is meant to live, and how long its workers may be idle.

Owns names, types and defaults; `StackSpec` (spec.py) holds them. Rules are in rules/lifetime.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LifetimeSpec:
    """When `soperator reap` pauses the stack; None never does."""

    until: str | None = None
    """Time in UTC, such as `2026-12-24T18:00Z`, after which no job is submitted and the stack is
    paused."""
    idle_hours: int | None = None
    """Hours without any job after which the stack is paused."""
