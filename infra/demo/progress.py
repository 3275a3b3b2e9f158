"""Short progress of a long command on standard error, and how long each stage took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from infra.cli import output


@dataclass(slots=True)
class Remark:
    """What came of a stage, in a few words."""

    text: str = ""


@dataclass(slots=True)
class Progress:
    """Prints one line per event, with the seconds since the start; remembers the stages."""

    started_s: float = field(default_factory=time.monotonic)
    stages: list[tuple[str, float, str]] = field(default_factory=list)
    """Name, seconds, remark of every stage that ended."""

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started_s

    def say(self, text: str) -> None:
        """One line, at once."""
        output.note(f"[{self.elapsed_s:6.1f} s] {text}")
        output.at(text)

    def note(self, name: str, seconds: float, remark: str) -> None:
        """Remembers a stage whose time is known from elsewhere."""
        self.stages.append((name, seconds, remark))

    @contextmanager
    def stage(self, name: str, *, tells_itself: bool = False) -> Iterator[Remark]:
        """Times the block; a stage that is left by an error is not among the stages.

        `tells_itself`: a command of ours runs in it, which is never silent.
        """
        self.say(name)
        started, remark = time.monotonic(), Remark()
        with nullcontext() if tells_itself else output.never_silent(name, self.say):
            yield remark
        self.note(name, time.monotonic() - started, remark.text)
