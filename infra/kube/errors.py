"""What a request to the API server can end with; each is one line for a person."""

from __future__ import annotations

from typing import Final

from stacks.errors import UserError

_TOO_MANY: Final = 429
_SERVERS_OWN: Final = 500


class KubeError(UserError):
    """The API server refused a request; one line."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status; 0 where there was no answer."""

    @property
    def passes(self) -> bool:
        """Whether the same request may go through in a moment."""
        return self.status == _TOO_MANY or self.status >= _SERVERS_OWN


class UnreachableError(KubeError):
    """There is no answer from the API server."""

    @property
    def passes(self) -> bool:
        return True


class CancelledError(KubeError):
    """The user interrupted a wait."""


class WaitTimeoutError(KubeError):
    """An object did not become ready in time."""
