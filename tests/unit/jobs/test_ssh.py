"""What a connection says when the other side is gone, whatever paramiko calls it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from infra.clients.ssh import Connection, ConnectionLostError, Endpoint


def gone(*_: object) -> NoReturn:
    """As paramiko sends on a connection that is lost."""
    raise EOFError


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Connection:
    monkeypatch.setattr("infra.clients.ssh._connect", lambda *_: SimpleNamespace(close=gone))
    channel = SimpleNamespace(
        send=gone,
        close=gone,
        settimeout=lambda _: None,
        recv=lambda _: b"",
        recv_stderr=lambda _: b"",
        recv_stderr_ready=lambda: False,
        recv_exit_status=lambda: -1,
    )
    monkeypatch.setattr(Connection, "hold", lambda *_: channel)
    return Connection(Endpoint(host="h", port=22, host_key="", identity=Path("x")))


def test_a_command_that_cannot_be_sent_any_more_is_a_lost_connection(
    connection: Connection,
) -> None:
    with pytest.raises(ConnectionLostError, match=r"root@h:22: the connection was lost \("):
        connection.run("sbatch", stdin=b"plan")
    with pytest.raises(ConnectionLostError, match="jobs go on: run this again") as lost:
        next(connection.stream("tail", poll_s=1, stdin=b"x"))
    again = lost.value.trying_again
    assert again.endswith("jobs go on; trying again")
    assert "run this again" not in again, "two things to do"
