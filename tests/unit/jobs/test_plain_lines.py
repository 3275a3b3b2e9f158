"""Progress bars become lines, wherever the stream is cut."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.cli.output import ClusterText


def plain(chunks: list[bytes]) -> bytes:
    file = io.TextIOWrapper(io.BytesIO())
    with ClusterText(file) as text:
        for each in chunks:
            text.write(each)
    assert isinstance(file.buffer, io.BytesIO)
    return file.buffer.getvalue()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"10%\r20%\rdone\n", b"10%\n20%\ndone\n"),
        (b"a\r\nb\r\n", b"a\nb\n"),
        (b"a\r\r\nb", b"a\n\nb"),
        (b"cut\r", b"cut\n"),
        (b"", b""),
    ],
)
def test_a_carriage_return_becomes_a_line_end(text: bytes, expected: bytes) -> None:
    assert plain([text]) == expected


@given(st.lists(st.text(alphabet="a\r\n", max_size=4).map(str.encode)))
def test_where_the_stream_is_cut_changes_nothing(chunks: list[bytes]) -> None:
    whole = plain([b"".join(chunks)])
    assert plain(chunks) == whole
    assert b"\r" not in whole
