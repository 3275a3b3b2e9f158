"""What a client of an outside system refuses: one line each, with what to do."""

from __future__ import annotations

from typing import Final

from stacks.errors import UserError

_FULL: Final = "No space left on device"


class JobsError(UserError):
    """A command that cannot do what was asked; the message says why and what to do."""


class StackPausedError(JobsError):
    """The stack is paused: nobody can enter."""


class EndedError(JobsError):
    """A command whose output came as it was made ended with another exit status than 0."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class NothingThereError(JobsError):
    """The job left nothing on the cluster, or not yet."""


class UnknownJobError(JobsError):
    """Slurm answered, and knows no job of that id any more."""


def last_words(stderr: str) -> str:
    """What a failed command of the cluster said last, in one line; a full disk with the way out."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()] or ["no message"]
    full = next((line for line in lines if _FULL in line), None)
    if full is None:
        return lines[-1]
    return (
        f"{full}: free some there (soperator status --filesystems -s STACK shows what is full), or "
        "raise its size_gib and run pulumi up where the cluster is yours"
    )


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


class AbsentError(KubeError):
    """What was asked for, or its kind, is not there: HTTP 404."""


class UnreachableError(KubeError):
    """There is no answer from the API server."""

    @property
    def passes(self) -> bool:
        return True


class CancelledError(KubeError):
    """The user interrupted a wait."""


class WaitTimeoutError(KubeError):
    """An object did not become ready in time."""
