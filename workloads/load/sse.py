"""Server-sent events of a chat stream: when which token came, and what was wrong with it."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from typing import Any

from workloads.load.http import HttpError

_DONE = b"[DONE]"


class ChatEvents:
    """Reads one stream; times are those at which the bytes came."""

    def __init__(self, on_choice: Callable[[dict[str, Any], float], None] | None = None) -> None:
        """`on_choice` gets the first choice of each event, and the time it came."""
        self._on_choice = on_choice
        self.times_s = array("d")
        """One for each event that carried text, thought or a call."""
        self.usage: dict[str, Any] | None = None
        self.is_done = False
        self._pending = b""

    def feed(self, piece: bytes, now_s: float) -> None:
        """Take a piece of the body; HttpError for what is no chat stream."""
        data = self._pending + piece if self._pending else piece
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        *events, self._pending = data.split(b"\n\n")
        for event in events:
            if event.startswith(b"data: ") and b"\n" not in event:
                self._take(event[6:], now_s)
            else:
                self._take_lines(event, now_s)

    def finish(self) -> None:
        """The body ended: it must have been whole."""
        if self._pending.strip():
            self.feed(b"\n\n", self.times_s[-1] if self.times_s else 0.0)
        if not self.is_done:
            raise HttpError("malformed", "the stream ended without data: [DONE]")

    def _take_lines(self, event: bytes, now_s: float) -> None:
        data = [
            line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")
        ]
        if data:
            self._take(b"\n".join(data), now_s)
        elif event.strip() and not event.lstrip().startswith((b":", b"event:", b"id:", b"retry:")):
            raise HttpError("malformed", f"no server-sent event: {event[:40]!r}")

    def _take(self, data: bytes, now_s: float) -> None:
        if data == _DONE:
            self.is_done = True
            return
        try:
            value = json.loads(data)
            if "error" in value:
                raise HttpError("stream_error", _message(value["error"]))
            choices = value["choices"]
            if choices:
                delta = choices[0]["delta"]
                if (
                    delta.get("content")
                    or delta.get("tool_calls")
                    or delta.get("reasoning_content")
                ):
                    self.times_s.append(now_s)
                if self._on_choice is not None:
                    self._on_choice(choices[0], now_s)
            usage = value.get("usage")
            if usage:
                self.usage = usage
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise HttpError("malformed", f"no chat chunk: {data[:60]!r}") from error


def _message(error: Any) -> str:
    text = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(text).split())[:200]
