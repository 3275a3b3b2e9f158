"""How long this machine keeps a thread waiting now: what a gap between lines is held against.

with Ticks(every_s=0.2) as ticks:
    work()
assert gap_s < ticks.allowed_s()
"""

from __future__ import annotations

import threading
import time
from typing import Self


class Ticks:
    """A thread that does nothing but note the time, as often as the lines should come."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.longest_s = 0.0
        """Between two of its times; on an idle machine `every_s`."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def allowed_s(self) -> float:
        """The longest gap of a thread that shares this process and machine."""
        return 2 * self.longest_s + 2 * self._every_s

    def _run(self) -> None:
        last_s = time.monotonic()
        while not self._ended.wait(self._every_s):
            now_s = time.monotonic()
            self.longest_s = max(self.longest_s, now_s - last_s)
            last_s = now_s
        self.longest_s = max(self.longest_s, time.monotonic() - last_s)
