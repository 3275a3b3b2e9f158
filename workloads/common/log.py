"""Progress lines on stderr, flushed one by one: a reader of the job's log sees them at once.

Owns that a job is not silent: where nothing is logged for a while, `never_silent` says how far
`counted` work is, or what was logged last and how long ago.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

QUIET_S = 8.0
"""Seconds without a line after which one comes: on a busy machine it is still within 10."""


def log(message: str, *, every_rank: bool = False) -> None:
    """Print one line with the UTC time; ranks above 0 are silent unless `every_rank`."""
    if _rank() and not every_rank:
        return
    _write(message, every_rank=every_rank)
    _now.text, _now.at_s = message.partition("\n")[0], _now.line_s


@dataclass(slots=True, kw_only=True)
class Counted:
    """Work of which it is known how much there is."""

    what: str
    total: int
    unit: str = "rows"
    done: int = 0
    detail: str = ""
    """Where it is inside the unit that it does now."""
    began_s: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        passed_s = time.monotonic() - self.began_s
        text = f"{self.what}: {self.done} of {self.total} {self.unit}"
        if self.done:
            rate = self.done / passed_s
            text += f", {rate:.2g} {self.unit}/s, {(self.total - self.done) / rate:.0f} s left"
        else:
            text += f", {passed_s:.0f} s"
        return f"{text} ({self.detail})" if self.detail else text


@contextmanager
def counted(what: str, total: int, unit: str = "rows") -> Iterator[Counted]:
    """Until the block ends, `never_silent` says how far this is."""
    _now.counted = Counted(what=what, total=total, unit=unit)
    try:
        yield _now.counted
    finally:
        _now.counted = None


@contextmanager
def never_silent() -> Iterator[None]:
    """While the block runs, no QUIET_S of rank 0 go by without a line."""
    _now.line_s = _now.at_s = time.monotonic()
    ended = threading.Event()
    thread = threading.Thread(target=_repeat, args=(ended,), daemon=True)
    if not _rank():
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if thread.is_alive():
            thread.join()


@dataclass(slots=True)
class _Now:
    """What was logged last and when; when the last line came; the work that is counted."""

    text: str = "starting"
    at_s: float = 0.0
    line_s: float = 0.0
    counted: Counted | None = None


_now = _Now()


def _repeat(ended: threading.Event) -> None:
    while not ended.wait(max(0.0, _now.line_s + QUIET_S - time.monotonic())):
        if time.monotonic() - _now.line_s >= QUIET_S:
            still = f"still: {_now.text}, {time.monotonic() - _now.at_s:.0f} s"
            _write(still if _now.counted is None else str(_now.counted), every_rank=False)


def _write(message: str, *, every_rank: bool) -> None:
    several = every_rank and int(os.environ.get("WORLD_SIZE", "1")) > 1
    prefix = f"[rank {_rank()}] " if several else ""
    stamp = time.strftime("%H:%M:%S", time.gmtime())
    # One write a line: print() without a buffer sends the line end after the text of another rank.
    sys.stderr.write(f"{stamp} {prefix}{message}\n")
    sys.stderr.flush()
    _now.line_s = time.monotonic()


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))
