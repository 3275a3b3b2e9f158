"""What a job writes reaches a terminal as text and colours, and a file as it is."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.cli import output
from infra.cli.output import ClusterText

CLIPBOARD = b"\x1b]52;c;cm0gLXJmIH4K\x07"
TITLE = b"\x1b]0;owned\x1b\\"
OTHER_SCREEN = b"\x1b[?1049h\x1b[2J\x1b[1;1H"
RED = b"\x1b[1;31mred\x1b[0m"


class Terminal(io.TextIOWrapper):
    """A stream that says what it is."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", newline="\n")
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def written(*chunks: bytes, is_terminal: bool = True, raw: bool = False) -> bytes:
    stream = Terminal(is_terminal=is_terminal)
    with ClusterText(stream, raw=raw) as text:
        for chunk in chunks:
            text.write(chunk)
    stream.flush()
    value = stream.buffer
    assert isinstance(value, io.BytesIO)
    return value.getvalue()


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        (CLIPBOARD, rb"\x1b]52;c;cm0gLXJmIH4K\x07"),
        (TITLE, rb"\x1b]0;owned\x1b" + b"\\"),
        (OTHER_SCREEN, rb"\x1b[?1049h\x1b[2J\x1b[1;1H"),
        (b"\x9b2J \x08\x7f", rb"\x9b2J \x08\x7f"),
        ("\u202egnp.exe".encode(), rb"\u202egnp.exe"),
        (b"half \xe2\x82", rb"half \xe2\x82"),
        (b"ends \x1b[3", rb"ends \x1b[3"),
        (b"\x1b[" + b"1" * 99 + b"m", rb"\x1b[" + b"1" * 99 + b"m"),
        (RED + "\tgr\u00fcn\n".encode(), RED + "\tgr\u00fcn\n".encode()),
        (b"10%\r20%\r", b"10%\n20%\n"),
    ],
)
def test_a_terminal_gets_text_and_colours_only(sent: bytes, shown: bytes) -> None:
    assert written(sent) == shown


@pytest.mark.parametrize("sent", [CLIPBOARD, TITLE, OTHER_SCREEN, b"half \xe2\x82"])
def test_a_pipe_and_who_asks_for_it_get_every_byte(sent: bytes) -> None:
    assert written(sent, is_terminal=False) == sent
    assert written(sent, raw=True) == sent


@given(
    st.lists(st.sampled_from([b"\x1b", b"[", b"31", b";", b"m", b"]", "\u20ac".encode(), b"\xe2"]))
)
def test_where_the_stream_is_cut_changes_nothing(chunks: list[bytes]) -> None:
    assert written(*chunks) == written(b"".join(chunks))


def test_no_command_writes_bytes_past_it() -> None:
    commands = (Path(output.__file__).parent).rglob("*.py")
    assert [each.name for each in commands if ".buffer" in each.read_text()] == ["output.py"]
