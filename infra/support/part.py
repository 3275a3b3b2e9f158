"""One piece of a support bundle: where it comes from, and what came or why nothing did."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


class NotRunError(Exception):
    """This part could not be gathered; the reason in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What to gather, and under which name."""

    name: str
    """Path in the bundle."""
    says: str
    """What it is, for the list."""
    gather: Callable[[], str]
    """Its text; NotRunError where it cannot be had."""
    limit_s: float = 120.0
    """Seconds; a filesystem or a machine that hangs does not hold the other parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """A part as it came."""

    part: Part
    text: str | None
    """None: NOT RUN."""
    reason: str = ""


def gather(part: Part) -> Gathered:
    """The part, whatever goes wrong with it: the others are worth more then."""
    found: list[Gathered] = []

    def answer() -> None:
        try:
            found.append(Gathered(part=part, text=part.gather()))
        except Exception as error:
            lines = str(error).splitlines() or [type(error).__name__]
            found.append(Gathered(part=part, text=None, reason=lines[0]))

    # What hangs in a read cannot be ended; as a daemon it does not keep the program.
    thread = threading.Thread(target=answer, name=part.name, daemon=True)
    thread.start()
    thread.join(part.limit_s)
    if found:
        return found[0]
    return Gathered(part=part, text=None, reason=f"no end within {part.limit_s:g} s")


def output_of(
    command: Sequence[str], *, root: Path, environ: Mapping[str, str], timeout_s: float
) -> str:
    """What a command prints, with its exit status; a status of failure is news too."""
    try:
        done = subprocess.run(
            list(command),
            cwd=root,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError as error:
        raise NotRunError(f"{command[0]}: not on PATH; run `make setup`") from error
    except subprocess.TimeoutExpired as error:
        raise NotRunError(f"no end within {timeout_s:g} s") from error
    return f"{done.stdout}\nexit status {done.returncode}\n"
