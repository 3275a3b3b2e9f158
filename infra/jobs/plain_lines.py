"""Turns carriage returns of progress bars into line ends, chunk by chunk. Knows no encoding."""

from __future__ import annotations


class PlainLines:
    """Bytes whose lines end with a line feed only.

    plain = PlainLines(); plain.feed(b"10%\\r20%") == b"10%\\n20%"; plain.rest() == b""
    """

    def __init__(self) -> None:
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """The chunk with plain line ends; a carriage return at its end waits for the next one."""
        text = self._held + chunk
        self._held = b"\r" if text.endswith(b"\r") else b""
        text = text.removesuffix(b"\r")
        return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def rest(self) -> bytes:
        """What the end of all chunks still owes: a line end, or nothing."""
        held, self._held = self._held, b""
        return b"\n" if held else b""
