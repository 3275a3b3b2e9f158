"""What commands print: aligned columns for people, JSON for programs, text that jobs wrote.

Owns the exit status of a verdict: NOT RUN is no success, and no failure either. A long command is
not silent: `never_silent` says again what it is at, and for how long.
"""

from __future__ import annotations

import codecs
import io
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Final, Self, TextIO

from stacks.errors import UserError, visible

# ECMA-48, 8.3.117: colour and weight of the letters, which is all that a job may tell a terminal.
_COLOURS: Final = re.compile(r"(\x1b\[[0-9;:]{0,32}m)")
_COLOURS_IN_PART: Final = re.compile(r"\x1b(\[[0-9;:]{0,32})?\Z")
QUIET_S = 8.0
"""Seconds without a line after which one comes: on a busy machine it is still within 10."""
TROUBLE: Final = 2
"""As diff(1) ends where it could not compare: 1 says that it did, and that they differ."""
NOT_RUN: Final = 69
"""EX_UNAVAILABLE of sysexits.h, as the jobs themselves end with it."""
_CODES: Final = {"PASS": 0, "EQUAL": 0, "AGREE": 0, "FAIL": 1, "DIFFER": 1, "NOT RUN": NOT_RUN}


class Format(StrEnum):
    """How a command prints its result."""

    TABLE = "table"
    JSON = "json"


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps(value, indent=2, default=str))


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Left-aligned columns, two spaces apart."""
    from cost.report.layout import aligned

    for line in aligned([list(headers), *([_text(value) for value in row] for row in rows)]):
        print(line)


def note(*texts: object) -> None:
    """Lines about what is going on, on standard error."""
    for text in map(str, texts):
        print("\n".join(map(visible, text.split("\n"))), file=sys.stderr, flush=True)
        _now.at_s = _now.line_s = time.monotonic()
        at(text)


def at(text: str) -> None:
    """What goes on now, without a line of its own; one comes once nothing else does."""
    _now.text = text.partition("\n")[0]


@contextmanager
def never_silent(
    doing: str, say: Callable[[str], None] = note, *, is_first: bool = False
) -> Iterator[None]:
    """While the block runs, no QUIET_S go by without a line: what it is at, and how long."""
    _now.at_s = time.monotonic()
    if is_first:  # of a command; else short parts would be silent together
        _now.line_s = _now.at_s
    at(doing)
    ended = threading.Event()
    thread = threading.Thread(target=_repeat, args=(ended, say), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class _Now:
    """What this command is at, since when, and when its last line came."""

    text = ""
    at_s = line_s = time.monotonic()


_now: Final = _Now()


def _repeat(ended: threading.Event, say: Callable[[str], None]) -> None:
    while not ended.wait(max(0.0, _now.line_s + QUIET_S - time.monotonic())):
        if time.monotonic() - _now.line_s < QUIET_S:
            continue
        text, at_s = _now.text, _now.at_s
        say(f"still: {text}, {time.monotonic() - at_s:.0f} s")
        _now.text, _now.at_s = text, at_s


class ClusterText:
    """Writes what the cluster says to a stream of ours; a terminal gets its text and colours only.

    Other control characters are shown, not sent: they could set the clipboard or the title, or
    write over what stands there. A file or pipe gets all bytes; each carriage return ends a line.
    """

    def __init__(self, stream: TextIO, *, raw: bool = False) -> None:
        self._stream = stream
        self._shows = stream.isatty() and not raw
        # Latin-1 gives each byte back as it came.
        self._encoding = "utf-8" if self._shows else "latin-1"
        decoder = codecs.getincrementaldecoder(self._encoding)("backslashreplace")
        self._decoder = io.IncrementalNewlineDecoder(decoder, translate=True)
        self._held = ""
        self.num_bytes = 0  # that came from the cluster

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._write(b"", is_last=True)

    def write(self, chunk: bytes) -> None:
        """Writes a chunk, as far as it is whole."""
        self.num_bytes += len(chunk)
        self._write(chunk, is_last=False)

    def _write(self, chunk: bytes, *, is_last: bool) -> None:
        text = self._held + self._decoder.decode(chunk, final=is_last)
        if self._shows:
            cut = None if is_last else _COLOURS_IN_PART.search(text)
            self._held = cut.group() if cut else ""
            text = _shown(text.removesuffix(self._held))
        self._stream.flush()
        self._stream.buffer.write(text.encode(self._encoding))
        self._stream.buffer.flush()
        if text:
            _now.line_s = time.monotonic()


def _shown(text: str) -> str:
    pieces = _COLOURS.split(text)
    pieces[::2] = [
        "".join(each if each in "\n\t" else visible(each) for each in re.split(r"([\n\t])", piece))
        for piece in pieces[::2]
    ]
    return "".join(pieces)


def _text(value: object) -> str:
    return "-" if value is None else visible(str(value))


def exit_code(verdict: str) -> int:
    """Return the status of a verdict, also as files spell it."""
    return _CODES[verdict.replace("_", " ")]


def say_refusal(error: UserError) -> None:
    """Each problem in a line on standard error."""
    for line in str(error).splitlines():
        print(f"soperator: {visible(line)}", file=sys.stderr)


@contextmanager
def comparing() -> Iterator[None]:
    """Refusals in the block end with TROUBLE, so that 1 is a difference and nothing else."""
    import typer

    try:
        yield
    except UserError as error:
        say_refusal(error)
        raise typer.Exit(TROUBLE) from error
