"""Ports of this machine, and the words for a stranger on one."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from infra.local import process


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_port_with_a_listener_is_not_free(taken: int) -> None:
    assert process.is_listening(taken)
    assert not process.is_free(taken)


def test_a_port_without_a_listener_is_free(taken: int) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        free = server.getsockname()[1]
    assert process.is_free(free)
    assert not process.is_listening(free)


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("0.0.0.0", True),
        ("::", True),
        ("::ffff:127.0.0.1", True),
        ("::1", False),
        ("127.0.0.2", False),
    ],
)
@pytest.mark.parametrize("away", ["told_owner", "listeners"])
def test_who_listens_on_every_address_listens_on_ours(
    host: str, is_ours: bool, away: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the kernel's one answer, and by its tables where it gives none."""
    monkeypatch.setattr(process, away, lambda *_: None)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as server:
        server.bind((host, 0))
        server.listen()
        assert process.is_listening(server.getsockname()[1]) is is_ours


@pytest.mark.parametrize("words", [process.in_use, process.login_in_use])
def test_both_refusals_name_the_port_and_are_known_as_such(words: object) -> None:
    text = words(30022)  # pyright: ignore
    assert "port 30022 " in text
    assert process.tells_of_use(text)
