"""Progress lines on stderr, flushed one by one: a reader of the job's log sees them at once.

Owns that results on stdout stand apart from them too, in a file that jq reads; and that a job is
not silent: where nothing is logged for a while, `never_silent` says how far `counted` work is, or
what was logged last and how long ago.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

QUIET_S = 6.0
"""Seconds without a line until one comes; a command that follows repeats the last one after 8."""
TRAIN_QUIET_S = 60.0
"""The same of training, which has a line a step: lines between slow steps would bury them."""
_JOB_NAMES = ("SOPERATOR_PLACE_LOGS", "SOPERATOR_JOB", "SLURM_JOB_ID")


def log(message: str, *, every_rank: bool = False) -> None:
    """Print one line with the UTC time; ranks above 0 are silent unless `every_rank`."""
    if _rank() and not every_rank:
        return
    _write(message, every_rank=every_rank)
    _now.text, _now.at_s = message.partition("\n")[0], _now.line_s


def at(text: str) -> None:
    """What goes on now, without a line of its own; one comes once nothing else does."""
    _now.text, _now.at_s = text, time.monotonic()


def tell(result: str) -> None:
    """Print a result on stdout; of a job of Slurm also into `<logs>/<job>_<id>.out`, alone."""
    text = f"{result}\n"
    sys.stderr.flush()
    sys.stdout.write(text)  # one write: other ranks share this log
    sys.stdout.flush()
    logs, job, number = (os.environ.get(name) for name in _JOB_NAMES)
    if not (logs and job and number):
        return
    path = Path(logs, f"{job}_{number}.out")
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:  # the run record comes after this copy, and must come
        log(f"{path}: {error.strerror}; the result is in the job's log and results alone")


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
def never_silent(quiet_s: float | None = None) -> Iterator[None]:
    """While the block runs, no `quiet_s` (QUIET_S) of rank 0 go by without a line."""
    _now.line_s = _now.at_s = time.monotonic()
    ended = threading.Event()
    wait_s = QUIET_S if quiet_s is None else quiet_s
    thread = threading.Thread(target=_repeat, args=(ended, wait_s), daemon=True)
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


def _repeat(ended: threading.Event, quiet_s: float) -> None:
    while not ended.wait(max(0.0, _now.line_s + quiet_s - time.monotonic())):
        if time.monotonic() - _now.line_s >= quiet_s:
            still = f"still: {_now.text}, {time.monotonic() - _now.at_s:.0f} s"
            _write(still if _now.counted is None else str(_now.counted), every_rank=False)


def _write(message: str, *, every_rank: bool) -> None:
    several = every_rank and int(os.environ.get("WORLD_SIZE", "1")) > 1
    prefix = f"[rank {_rank()}] " if several else ""
    stamp = time.strftime("%H:%M:%S", time.gmtime())
    # One write a line: print() without a buffer sends the line end after the text of another rank.
    # Whoever read the log may be gone, as a killed slurmstepd is: the work, or its end, goes on.
    with suppress(BrokenPipeError):
        sys.stderr.write(f"{stamp} {prefix}{message}\n")
        sys.stderr.flush()
    _now.line_s = time.monotonic()


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))
