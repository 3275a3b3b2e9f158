"""The way of an answer from the engine's thread to the event loop: many deltas for one wake-up."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from workloads.serve.generation import Delta, Sink


class Mailbox:
    """Deltas from the engine's thread to the queues of this loop, many for one wake-up."""

    def __init__(self) -> None:
        self._items: deque[tuple[asyncio.Queue[tuple[int, Delta]], int, Delta]] = deque()
        self._is_scheduled = False

    def sink(self, queue: asyncio.Queue[tuple[int, Delta]], index: int) -> Sink:
        """Return what the engine calls for choice `index` of a request."""
        loop = asyncio.get_running_loop()

        def put(delta: Delta) -> None:
            self._items.append((queue, index, delta))
            if not self._is_scheduled:
                self._is_scheduled = True
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(self._deliver)

        return put

    def _deliver(self) -> None:
        self._is_scheduled = False
        while self._items:
            queue, index, delta = self._items.popleft()
            queue.put_nowait((index, delta))
