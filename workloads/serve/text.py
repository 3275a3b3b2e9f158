"""Tokens to text as they come: characters, stop strings and tool calls that span tokens.

Held back are bytes of a character that is not whole, an end that may become a stop string or a
marker, a call until its name is known, and a whole answer that starts like a JSON object or a list
of them (Llama and base models write calls so, and Mistral once its marker is decoded away).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tokenizers.decoders import DecodeStream

from workloads.common import tool_calls
from workloads.common.tool_calls import BARE, CLOSE, MARKERS


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
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((length for length in lengths if stop.startswith(text[-length:])), 0)


_HEAD = re.compile(
    rf"(?:{'|'.join(map(re.escape, MARKERS))})?"
    r'\s*\[?\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*'
    r'"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_TAIL = re.compile(r'\s*(?:,\s*"id"\s*:\s*"[^"]*"\s*)?\}')


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPart:
    """A piece of a call as a stream sends it; the first one has the function's name."""

    index: int
    name: str | None = None
    arguments: str = ""


class ToolStream:
    """`push` text as it comes; `finish` says what is left and which calls were made."""

    def __init__(self, *, is_parallel: bool = True, takes_objects: bool = True) -> None:
        self._is_parallel = is_parallel
        self._takes_objects = takes_objects
        self._held = ""
        self._has_marker = False
        self._has_sent = False
        self._place = 0
        """In what is held: up to here it was sent as parts of calls."""
        self._num_sent = 0
        self._is_in_call = False
        self._calls = self._read_calls()
        self.is_cut = False
        """After `finish`: whether a call that begins has no end that can be read."""

    @property
    def is_over(self) -> bool:
        """Whether the one call that may be made is whole."""
        return not (self._is_parallel or self._is_in_call) and self._num_sent > 0

    def push(self, text: str) -> tuple[str, list[CallPart]]:
        """Return the text that is sure to be no call, and the parts of calls."""
        self._held += text
        if self._has_marker or self._looks_like_object():
            return "", self._parts()
        found = [place for mark in MARKERS if (place := self._held.find(mark)) >= 0]
        self._has_marker = bool(found)
        begun = max(overlap(self._held, mark) for mark in MARKERS)
        cut = min(found) if found else len(self._held) - begun
        # Space before a call belongs to neither; space before more text is sent with it.
        cut = len(self._held[:cut].rstrip())
        sent, self._held = self._held[:cut], self._held[cut:]
        self._has_sent = self._has_sent or bool(sent)
        return sent, self._parts() if self._has_marker else []

    def finish(self) -> tuple[str, list[CallPart]]:
        """Return the rest of the text, and the last parts of the calls.

        Calls that cannot be read stay text, unless their parts were sent already.
        """
        is_text = not (self._has_marker or self._looks_like_object())
        calls = [] if is_text else tool_calls.parse_calls(self._held)
        is_short = calls is None or len(calls) < self._num_sent or self._begins_another()
        self.is_cut = is_short and not self.is_over
        parts = [
            CallPart(
                index=index,
                name=call.name,
                arguments=json.dumps(dict(call.arguments), ensure_ascii=False),
            )
            for index, call in enumerate(calls or [])
            if index >= self._num_sent and (self._is_parallel or not index)
        ]
        return "" if calls or self._num_sent else self._held, parts

    def _begins_another(self) -> bool:
        """Whether a further call's marker, or a comma before it, stands behind the last one."""
        rest = self._held.rpartition("}")[2].strip()
        begins = any(overlap(rest, mark) for mark in MARKERS) and not CLOSE.startswith(rest)
        return begins or rest in (",", ";")

    def _parts(self) -> list[CallPart]:
        return list(iter(partial(next, self._calls), None))

    def _read_calls(self) -> Iterator[CallPart | None]:
        """Yield the parts of calls in what is held; None where more must come first."""
        while True:
            while self.is_over or (head := self._head()) is None:
                yield None
            self._place, self._is_in_call, index = head.end(), True, self._num_sent
            self._num_sent += 1
            yield CallPart(index=index, name=json.loads(head[1], strict=False))
            depth, is_text, is_escaped = 0, False, False
            while True:
                made: list[str] = []
                for char in self._held[self._place :]:
                    self._place += 1
                    # Models write line breaks into strings, which JSON wants escaped.
                    made.append(json.dumps(char)[1:-1] if is_text and char < " " else char)
                    if is_escaped or (is_text and char == "\\"):
                        is_escaped = not is_escaped
                    elif char == '"':
                        is_text = not is_text
                    elif not is_text:
                        depth += (char in "{[") - (char in "}]")
                    if not depth:
                        break
                if made:
                    yield CallPart(index=index, arguments="".join(made))
                if not depth:
                    break
                yield None
            while (tail := _TAIL.match(self._held, self._place)) is None:
                yield None
            self._place, self._is_in_call = tail.end(), False

    def _head(self) -> re.Match[str] | None:
        """Return the start of the next call, where it has come and is in the usual form."""
        if not self._has_marker:
            return None if self._num_sent else _HEAD.match(self._held)
        starts = [place for mark in MARKERS if (place := self._held.find(mark, self._place)) >= 0]
        # A call in another form stays in front: what follows it is sent at the end, in order.
        return _HEAD.match(self._held, min(starts)) if starts else None

    def _looks_like_object(self) -> bool:
        return self._takes_objects and not self._has_sent and bool(BARE.match(self._held))
