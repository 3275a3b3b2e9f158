"""What acceptance refuses, in lines for a user."""

from __future__ import annotations

from infra.jobs.errors import JobsError


class AcceptError(JobsError):
    """A result, certificate or comparison that cannot be used; says what to do."""
