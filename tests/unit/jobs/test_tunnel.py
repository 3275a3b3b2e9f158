"""A lost tunnel says so in the error form of the API, and comes back by itself."""

from __future__ import annotations

import contextlib
import errno
import http.server
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.clients import ssh
from infra.clients.errors import JobsError
from infra.clients.ssh import Connection, Tunnel
from tests.ports import free_ports
from tests.ssh_stand import SshStand, login_node

WAIT_S = 60.0


class Hello(http.server.BaseHTTPRequestHandler):
    """Answers one word."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, format: str, *args: object) -> None:
        pass


WORKER = "127.0.0.2"
"""Where the server is as the login node sees it: not on that node itself."""


@pytest.fixture
def server() -> Iterator[int]:
    yield from serving("127.0.0.1")


@pytest.fixture
def worker() -> Iterator[int]:
    yield from serving(WORKER)


def serving(host: str) -> Iterator[int]:
    listener = http.server.ThreadingHTTPServer((host, 0), Hello)
    thread = threading.Thread(target=listener.serve_forever)
    thread.start()
    yield listener.server_address[1]
    listener.shutdown()
    thread.join()
    listener.server_close()


class Said:
    """What the tunnel said, each line of which can be waited for."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._more = threading.Condition()

    def __call__(self, line: str) -> None:
        with self._more:
            self._lines.append(line)
            self._more.notify_all()

    def wait_for(self, part: str) -> None:
        with self._more:
            found = self._more.wait_for(lambda: any(part in each for each in self._lines), WAIT_S)
        assert found, f"{part!r} is not in {self._lines}"


@contextlib.contextmanager
def tunnel(stand: SshStand, port: int, said: Said, *, host: str = "127.0.0.1") -> Iterator[str]:
    opened = Tunnel(stand.endpoint, host, port, log=said)
    try:
        assert opened.url == f"http://127.0.0.1:{opened.port}/v1"
        assert opened._listener.getsockname()[0] == "127.0.0.1", "nobody beside this machine"
        yield opened.url.removesuffix("/v1")
    finally:
        opened.close()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", opened.port)) != 0, "the port is closed"


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        return answer.read()


def refusal(url: str) -> str:
    with pytest.raises(urllib.error.HTTPError) as caught:
        get(url)
    with caught.value as error:
        assert error.code == 503
        return json.loads(error.read())["error"]["message"]


@pytest.mark.feature("S000-50")
@pytest.mark.allow_hosts(["127.0.0.1", WORKER])
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_lost_tunnel_is_told_and_comes_back_by_itself(tmp_path: Path, worker: int) -> None:
    said = Said()
    with login_node(tmp_path) as stand, tunnel(stand, worker, said, host=WORKER) as url:
        assert get(url) == b"hello"
        stand.lose()
        said.wait_for("is lost; reconnecting")
        assert "the SSH tunnel" in refusal(url)
        assert "reconnecting" in refusal(url)
        stand.come_back()
        said.wait_for("the SSH tunnel is back")
        assert get(url) == b"hello"


def test_a_workers_own_loopback_is_reached_through_the_login_node_and_comes_back(
    tmp_path: Path, server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Said()
    with login_node(tmp_path) as stand:
        # Login and worker have one key: the stand is the worker behind itself.
        monkeypatch.setattr(ssh, "NODE_PORT", stand.endpoint.port)
        inside = replace(stand.endpoint, node="localhost")
        opened = Tunnel(inside, "127.0.0.1", server, log=said)
        url = opened.url.removesuffix("/v1")
        try:
            opened.wait_until_open()
            assert stand.num_sessions > 1, "one in the other"
            assert get(url) == b"hello"
            stand.lose()
            said.wait_for("localhost behind it is lost; reconnecting")
            stand.come_back()
            said.wait_for("the SSH tunnel is back")
            assert get(url) == b"hello"
        finally:
            opened.close()


def test_a_worker_that_shows_another_key_is_not_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who answers for the worker in the cluster's network is not asked for anything."""
    (tmp_path / "other").mkdir()
    with login_node(tmp_path) as stand, login_node(tmp_path / "other") as other:
        monkeypatch.setattr(ssh, "NODE_PORT", other.endpoint.port)
        inside = replace(stand.endpoint, node="localhost")
        with pytest.raises(JobsError, match="key"):
            Connection(inside)
        monkeypatch.setattr(ssh, "NODE_PORT", free_ports(1)[0])
        with pytest.raises(JobsError, match=r"localhost:\d+: the login node cannot connect to it"):
            Connection(inside)


def test_a_server_that_opens_late_is_waited_for(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    late = threading.Timer(1.0, lambda: listeners.append(socket.create_server(("127.0.0.1", port))))
    listeners: list[socket.socket] = []
    with login_node(tmp_path) as stand:
        opened = Tunnel(stand.endpoint, "127.0.0.1", port, log=Said())
        try:
            with pytest.raises(JobsError, match=f"127.0.0.1:{port}: the login node cannot connect"):
                opened.wait_until_open(patience_s=0)
            late.start()
            opened.wait_until_open()
            assert listeners, "it was waited for"
        finally:
            opened.close()
            late.join()
    for each in listeners:
        each.close()


def test_a_server_that_is_not_there_is_told_apart_from_a_lost_tunnel(tmp_path: Path) -> None:
    (nobody,) = free_ports(1)
    with login_node(tmp_path) as stand, tunnel(stand, nobody, Said()) as url:
        assert f"127.0.0.1:{nobody}: the login node cannot connect to it" in refusal(url)


def test_a_connection_that_could_not_be_taken_does_not_end_the_listener(
    tmp_path: Path, server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, failures = socket.socket.accept, [OSError(errno.EMFILE, "Too many open files")]

    def failing(listener: socket.socket) -> tuple[socket.socket, Any]:
        if threading.current_thread().name == "tunnel-_accept" and failures:
            raise failures.pop()
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", failing)
    said = Said()
    with login_node(tmp_path) as stand, tunnel(stand, server, said) as url:
        said.wait_for("could not take a connection: [Errno 24] Too many open files")
        assert get(url) == b"hello"
