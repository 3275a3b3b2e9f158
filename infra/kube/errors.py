"""What a request to the API server can end with; each is one line for a person."""

from __future__ import annotations

from stacks.errors import UserError


class KubeError(UserError):
    """The API server refused a request; one line."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status; 0 where there was no answer."""


class UnreachableError(KubeError):
    """There is no answer from the API server."""


class CancelledError(KubeError):
    """The user interrupted a wait."""


class WaitTimeoutError(KubeError):
    """An object did not become ready in time."""
