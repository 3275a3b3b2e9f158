"""How often the reconciler looks: at once while something happens, rarely while nothing does."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from infra.local.reconcile.__main__ import _AFTER_ERROR_S, _repeat


class Pauses(threading.Event):
    """Counts the pauses of a loop instead of waiting, and ends it after some."""

    def __init__(self, num_pauses: int) -> None:
        super().__init__()
        self.seen: list[float] = []
        self._num_pauses = num_pauses

    def wait(self, timeout: float | None = None) -> bool:
        self.seen.append(timeout or 0.0)
        if len(self.seen) == self._num_pauses:
            self.set()
        return self.is_set()


def pauses(step: Callable[[int], bool], num_pauses: int) -> list[float]:
    """Pauses of a loop whose pass number N is `step(N)`."""
    stopped = Pauses(num_pauses)
    _repeat(lambda: step(len(stopped.seen)), stopped)
    return stopped.seen


def test_a_busy_loop_keeps_its_pace() -> None:
    assert pauses(lambda _number: True, 5) == [0.3] * 5


def test_an_idle_loop_slows_down_to_two_seconds() -> None:
    seen = pauses(lambda _number: False, 8)
    assert seen == sorted(seen)
    assert seen[0] < 0.5
    assert seen[-1] == 2.0


def test_a_loop_that_finds_something_is_fast_at_once() -> None:
    assert pauses(lambda number: number == 7, 8)[-1] == 0.3


def test_an_error_is_logged_once_and_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(number: int) -> bool:
        raise OSError("no answer" if number < 3 else "refused")

    assert pauses(fail, 5) == [_AFTER_ERROR_S] * 5
    assert capsys.readouterr().err == "OSError: no answer\nOSError: refused\n"
