"""Shows a line of a job's log every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable

_LINE_EVERY_S = 5.0
_KEPT_BYTES = 20_000


class Tail:
    """The end of one job's log, as it grows."""

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        self._name, self._say = name, say
        self._text = b""
        self._shown_at = 0.0

    def add(self, chunk: bytes) -> None:
        """Takes more of the log."""
        self._text = (self._text + chunk)[-_KEPT_BYTES:]
        lines = self._lines()
        if lines and time.monotonic() - self._shown_at >= _LINE_EVERY_S:
            self._shown_at = time.monotonic()
            self._say(f"{self._name}: {lines[-1]}")

    def _lines(self) -> list[str]:
        """Whole lines without JSON, which is for programs."""
        whole = self._text.rpartition(b"\n")[0].decode(errors="replace").splitlines()
        return [line for line in whole if line.strip() and line[0] not in " {}[]"]
