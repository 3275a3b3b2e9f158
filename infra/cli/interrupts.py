"""Ctrl-C and SIGTERM for commands that own something: neither leaves a half-done step behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

# `typing` takes longer than all of these, before anybody hears Ctrl-C (main.py).
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Final

INTERRUPTED: Final = 130
"""As a shell says that SIGINT ended a command."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def at_once() -> Iterator[None]:
    """Ctrl-C ends the process without a word: nothing is begun yet, and a traceback says nothing.

    Where it is ignored, as of `nohup`, or another's, it stays so.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    with _handled((signal.SIGINT,), lambda number, frame: os._exit(INTERRUPTED)):
        yield


@contextmanager
def held() -> Iterator[None]:
    """Signals wait for the end of the block, and then interrupt: a submission is told its id."""
    came: list[int] = []
    with _handled(_SIGNALS, lambda number, frame: came.append(number)):
        yield
    if came:
        raise KeyboardInterrupt


@contextmanager
def closed_whole() -> Iterator[ExitStack]:
    """What is put on the stack is closed at the end; a signal ends the block, not the closing.

    SIGTERM and a hang-up end it as Ctrl-C does, by KeyboardInterrupt.
    """
    closing = ExitStack()
    with _handled(_SIGNALS, signal.default_int_handler):
        try:
            yield closing
        finally:
            with _handled(_SIGNALS, signal.SIG_IGN):
                closing.close()


@contextmanager
def _handled(
    numbers: tuple[signal.Signals, ...],
    handler: Callable[[int, FrameType | None], Any] | signal.Handlers,
) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
