"""Signals that ask a run to stop: Slurm's SIGTERM before preemption, SIGUSR1 from `--signal`.

Owns a flag. The loop reads it between train steps, agrees on it with all ranks and saves.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class StopRequest:
    """True once a signal came."""

    def __init__(self) -> None:
        self.signal_name: str | None = None

    def __bool__(self) -> bool:
        return self.signal_name is not None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.signal_name = signal.Signals(number).name


@contextlib.contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Yield the flag; the former handlers come back at the end."""
    request = StopRequest()
    numbers = (signal.SIGTERM, signal.SIGUSR1)
    former = {number: signal.signal(number, request._receive) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
