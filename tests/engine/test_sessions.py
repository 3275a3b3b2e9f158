"""One SSH connection carries more commands at once than a real sshd opens sessions on it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from infra.clients import ssh
from infra.clients.errors import JobsError
from infra.clients.ssh import Connection, ConnectionLostError, Endpoint
from infra.local.process import is_listening
from tests.engine.sshd import Sshd, running_sshd

MAX_SESSIONS = 10
"""Of sshd_config(5), which Soperator's login nodes leave as it is."""


def connection(server: Sshd, folder: Path) -> Connection:
    deadline_s = time.monotonic() + 10
    while not is_listening(server.port) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return Connection(
        Endpoint(
            host="127.0.0.1", port=server.port, host_key=server.host_key, identity=folder / "user"
        )
    )


def test_a_command_waits_for_a_session_where_all_are_taken(tmp_path: Path) -> None:
    with running_sshd(tmp_path) as server, connection(server, tmp_path) as login:
        held = [login.hold("cat") for _ in range(MAX_SESSIONS)]
        with ThreadPoolExecutor(3) as threads:
            waiting = [threads.submit(login.run, f"echo {number}") for number in range(3)]
            time.sleep(0.5)
            assert not any(each.done() for each in waiting)
            held.pop().close()
            said = [each.result(timeout=30).stdout for each in waiting]
        assert said == ["0\n", "1\n", "2\n"]
        for channel in held:
            channel.close()


def test_sessions_that_stay_taken_are_told_as_what_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as a lost connection, after which one runs the same again."""
    monkeypatch.setattr(ssh, "_SESSION_WAIT_S", 0.3)
    with running_sshd(tmp_path) as server, connection(server, tmp_path) as login:
        held = [login.hold("cat") for _ in range(MAX_SESSIONS)]
        with pytest.raises(JobsError, match="opens no further session on this connection"):
            login.run("true")
        assert login.is_open
        for channel in held:
            channel.close()


def test_a_command_that_ends_before_it_read_its_input_has_its_exit_status(tmp_path: Path) -> None:
    """Not a lost connection: sshd closes the channel of what ended while bytes are on their way."""
    more_than_a_window = b"x" * (16 << 20)
    with running_sshd(tmp_path) as server, connection(server, tmp_path) as login:
        for command, status in (("echo said", 0), ("echo said; exit 3", 3)):
            done = login.run(command, stdin=more_than_a_window)
            assert (done.exit_code, done.stdout) == (status, "said\n")
        said = b"".join(login.stream("echo said", poll_s=0.1, stdin=more_than_a_window))
        assert said == b"said\n"
        with pytest.raises(ConnectionLostError):
            login.run("kill -9 $PPID", stdin=more_than_a_window)


@pytest.mark.parametrize("num_lines", [5_000, 200_000])
def test_a_streamed_command_that_fails_is_told_by_its_last_line(
    tmp_path: Path, num_lines: int
) -> None:
    """However much it said before: more than a chunk, and more than sshd sends unread (2 MiB)."""
    command = f"yes 'warning: one of many' | head -n {num_lines} >&2; echo out; "
    command += "echo 'rsync: the reason' >&2; exit 3"
    with running_sshd(tmp_path) as server, connection(server, tmp_path) as login:
        out: list[bytes] = []
        end = threading.Timer(30, login.close)
        end.start()
        try:
            with pytest.raises(JobsError, match=r": rsync: the reason \(exit status 3\)$"):
                out.extend(login.stream(command, poll_s=0.1))
        finally:
            end.cancel()
    assert b"".join(out) == b"out\n"
