"""Signals that ask a run to stop: Slurm's SIGTERM before preemption, SIGUSR1 from `--signal`.

Owns when a signal ends the run at once and when it is a flag. Before the loop, and after it, there
is nothing that a save would keep: the run ends where it stands, with its code and its record. The
loop reads the flag between train steps, agrees on it with all ranks and saves.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from workloads.common.exit_codes import PreemptedError


class StopRequest:
    """True once a signal came."""

    def __init__(self) -> None:
        self.signal_name: str | None = None
        self._is_deferred = False

    def __bool__(self) -> bool:
        return self.signal_name is not None

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Within, a signal is only noted: who asks for the flag saves and ends the run."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        # Only the first one raises: a second must not end what writes the record of the first. Code
        # that swallows the error leaves the flag, and the loop stops after its first step.
        is_first, self.signal_name = self.signal_name is None, signal.Signals(number).name
        if is_first and not self._is_deferred:
            raise PreemptedError(
                f"stopped by {self.signal_name} outside the train steps: nothing new to save; run "
                "the job again with --resume auto to continue"
            )


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
