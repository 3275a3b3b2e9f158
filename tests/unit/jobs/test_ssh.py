"""What a connection says when the other side is gone, whatever paramiko calls it."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn, cast

import paramiko
import pytest

from infra.clients import ssh
from infra.clients.errors import JobsError
from infra.clients.ssh import Connection, ConnectionLostError, Endpoint


def gone(*_: object) -> NoReturn:
    """As paramiko sends on a connection that is lost."""
    raise EOFError


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Connection:
    monkeypatch.setattr("infra.clients.ssh._connect", lambda *_: SimpleNamespace())
    channel = SimpleNamespace(sendall=gone, close=gone)
    monkeypatch.setattr(Connection, "_open", lambda *_: channel)
    return Connection(Endpoint(host="h", port=22, host_key="", identity=Path("x")))


def test_a_command_that_cannot_be_sent_any_more_is_a_lost_connection(
    connection: Connection,
) -> None:
    with pytest.raises(ConnectionLostError, match=r"root@h:22: the connection was lost \(EOFError"):
        connection.run("sbatch", stdin=b"plan")
    with pytest.raises(ConnectionLostError, match="jobs go on: run this again") as lost:
        next(connection.stream("tail", poll_s=1, stdin=b"x"))
    again = lost.value.trying_again
    assert again.endswith("jobs go on; trying again")
    assert "run this again" not in again, "two things to do"


def test_a_node_does_not_fill_this_machines_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that never stops printing is not waited for."""
    monkeypatch.setattr(ssh, "MOST_BYTES", 10)
    closed: list[bool] = []

    class Channel:
        def makefile(self, _mode: str) -> io.BytesIO:
            return io.BytesIO(b"x" * 100)

        def makefile_stderr(self, _mode: str) -> io.BytesIO:
            return io.BytesIO(b"")

        def close(self) -> None:
            closed.append(True)

    with pytest.raises(JobsError, match="printed more than 0 MiB, which is not read"):
        ssh._drain(cast("paramiko.Channel", Channel()))
    assert closed
