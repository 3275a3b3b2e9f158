"""Which server is the demo's own: `<state>/demo/server.json`, written before it is submitted.

A server ends only when it is told to, so a killed run leaves one. The next run must know it from
one that a person submitted, which it never touches.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from infra import whole_file
from infra.jobs.submit import Submission


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMark:
    """What tells the demo's server among all submissions of one cluster."""

    job: str
    code_hash: str
    sets: tuple[str, ...]

    def fits(self, submission: Submission) -> bool:
        """Whether the demo submitted this one."""
        return (submission.job, submission.code_hash, submission.sets) == (
            self.job,
            self.code_hash,
            self.sets,
        )


def write(state: Path, mark: ServerMark) -> None:
    """Writes the mark down, whole."""
    whole_file.write(_path(state), json.dumps(asdict(mark)))


def read(state: Path) -> ServerMark | None:
    """The mark of an earlier run; a damaged file is as good as none."""
    try:
        values = json.loads(_path(state).read_text(encoding="utf-8"))
        return ServerMark(**{**values, "sets": tuple(values["sets"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def remove(state: Path) -> None:
    """Forgets the server: it has ended."""
    _path(state).unlink(missing_ok=True)


def _path(state: Path) -> Path:
    return state / "demo" / "server.json"
