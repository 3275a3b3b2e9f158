"""What the engine's environment holds on a machine with proxies, and which keys survive."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.local import engine
from infra.state import State


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "127.0.0.1,localhost"),
        ({"NO_PROXY": "example.com"}, "example.com,127.0.0.1,localhost"),
        ({"no_proxy": "127.0.0.1, a.b", "NO_PROXY": "x"}, "127.0.0.1,a.b,localhost"),
    ],
)
def test_loopback_is_kept_off_the_users_proxies(given: dict[str, str], expected: str) -> None:
    """gRPC sent the engine's own calls to the proxy: no `pulumi up` worked behind one."""
    assert engine.proxy_exceptions(given) == {"no_proxy": expected, "NO_PROXY": expected}


def test_a_private_key_without_its_public_half_is_kept(tmp_path: Path) -> None:
    state = State(tmp_path)
    engine.make_ssh_key(state)
    private, public = state.ssh_key.read_bytes(), state.ssh_public_key.read_text()
    state.ssh_public_key.unlink()
    engine.make_ssh_key(state)
    assert state.ssh_key.read_bytes() == private
    assert state.ssh_public_key.read_text() == public


def test_the_passphrase_is_known_before_its_file_is_made(tmp_path: Path) -> None:
    """`soperator submit` ended in a traceback where the shell has a passphrase of its own."""
    state = State(tmp_path)
    assert engine.passphrase(state) == engine.PUBLIC
    state.passphrase.write_text("own\n")
    assert engine.passphrase(state) == "own"
