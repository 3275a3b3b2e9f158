"""Tokens to text as they come, and stop strings that may span tokens.

Owns what is held back: bytes of a character that is not whole, and an end that may become a stop
string. The stop string itself is never told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers.decoders import DecodeStream


class TextStream:
    """The text of one answer."""

    def __init__(self, tokenizer: Any, stop: Sequence[str], *, min_tokens: int = 0) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._stop = tuple(stop)
        self._num_unstopped = min_tokens
        """Tokens from now in whose text no stop string is looked for."""
        self._undecoded: list[int] = []
        self._held = ""
        self.has_stopped = False

    def push(self, token: int) -> str:
        """Take a token; return the text that is sure."""
        self._num_unstopped -= 1
        piece = self._stream.step(self._tokenizer.backend_tokenizer, token)
        if piece is None:
            self._undecoded.append(token)
            return ""
        self._undecoded.clear()
        return self._take(piece)

    def finish(self) -> str:
        """Return what was held back, as nothing follows."""
        if self.has_stopped:
            return ""
        rest = self._tokenizer.decode(self._undecoded, skip_special_tokens=True)
        # The bytes of a character that the limit cut in two are no character.
        rest = rest.rstrip("\ufffd")
        self._undecoded.clear()
        text = self._take(rest) if rest else ""
        text, self._held = text + self._held, ""
        return text

    def _take(self, piece: str) -> str:
        if not self._stop or self._num_unstopped >= 0:
            return piece
        self._held += piece
        found = [place for stop in self._stop if (place := self._held.find(stop)) >= 0]
        if found:
            self.has_stopped = True
            text, self._held = self._held[: min(found)], ""
            return text
        kept = max(overlap(self._held, stop) for stop in self._stop)
        cut = len(self._held) - kept
        text, self._held = self._held[:cut], self._held[cut:]
        return text


def overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that `stop` starts with."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
