"""The watchdog of one rank: a step that stands longer than the declared time ends the rank.

A collective whose peers do not come blocks inside C++, where no exception reaches Python; only
another thread can say so and end the process, with its own exit code and the stack of every thread.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType

from workloads.common.exit_codes import HungError

FIRST_FACTOR = 3
"""The first step may take this many times longer: kernels compile, pages are read."""


class Watchdog:
    """Ends the process through `fail` when `beat` does not come in time; a context manager."""

    def __init__(self, timeout_s: float, *, fail: Callable[[HungError], None]) -> None:
        self._timeout_s, self._fail = timeout_s, fail
        self._changed = threading.Condition()
        self._allowed_s: float | None = timeout_s * FIRST_FACTOR
        self._doing = "the first step"
        self._num_beats = 0
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def beat(self, doing: str) -> None:
        """Start the time anew; `doing` is what the rank begins, such as `step 12`."""
        with self._changed:
            self._doing, self._allowed_s = doing, self._timeout_s
            self._num_beats += 1
            self._changed.notify()

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._changed:
            self._allowed_s = None
            self._num_beats += 1
            self._changed.notify()
        self._thread.join()

    def _has_beaten(self, since: int) -> bool:
        return self._num_beats != since

    def _watch(self) -> None:
        with self._changed:
            while self._allowed_s is not None:
                seen, allowed_s = self._num_beats, self._allowed_s
                if not self._changed.wait_for(partial(self._has_beaten, seen), allowed_s):
                    break
            else:
                return
            doing = self._doing
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        self._fail(
            HungError(
                f"{doing} did not end within {allowed_s:g} s: a collective, a read or a save "
                "stands, see the stacks above; if steps are that long, raise "
                "train.checkpoint.timeout_s"
            )
        )
