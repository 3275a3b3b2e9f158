"""The chat page as a process ends with everything that it started."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from infra.clients.errors import JobsError
from infra.jobs import server
from infra.jobs.server import KEY_VARIABLE, ChatPage
from tests.another_user import listening
from tests.ports import free_ports

_PAGE = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = "import socket, sys, time; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); "
port = sys.argv[sys.argv.index("--port") + 1]
subprocess.run([sys.executable, "-c", child + "time.sleep(900)", port])
"""
_TELLS = """
import json, os, pathlib, sys
record = pathlib.Path(sys.argv[sys.argv.index("--record") + 1])
record.write_text(json.dumps([pathlib.Path("/proc/self/cmdline").read_text(), dict(os.environ)]))
"""


def test_a_page_that_does_not_end_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_END_S", 0.0)
    program = tmp_path / "workloads" / "chat.py"
    program.parent.mkdir()
    program.write_text(_PAGE)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        port = listener.getsockname()[1]
        page = ChatPage(
            "http://x/v1", port=port, key=None, token="t", record=tmp_path / "r", checkout=tmp_path
        )
        try:
            child, _ = listener.accept()
        finally:
            page.close()
        with child:
            child.settimeout(60)
            assert child.recv(1) == b"", "the child has ended"
    assert not page.is_running


def test_key_and_token_go_by_the_environment_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "of-another-server")
    program = tmp_path / "workloads" / "chat.py"
    program.parent.mkdir()
    program.write_text(_TELLS)
    told: list[tuple[str, str]] = []
    for number, key in enumerate(("the-key-of-this-server", None)):
        record = tmp_path / str(number)
        page = ChatPage(
            "http://x/v1", port=0, key=key, token="of-a-page", record=record, checkout=tmp_path
        )
        page._process.wait(60)
        page.close()
        words, environment = json.loads(record.read_text())
        told.append((str(words), environment.get(KEY_VARIABLE, "none")))
        assert environment["SOPERATOR_CHAT_TOKEN"] == "of-a-page"
        assert page.address.endswith("/?token=of-a-page")
        assert "of-a-page" not in words
    assert [key for _, key in told] == ["the-key-of-this-server", "none"]
    assert "the-key" not in told[0][0]


def test_somebody_else_at_the_port_is_not_taken_for_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command looked at the port minutes ago, before the job had a node."""
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    program = tmp_path / "workloads" / "chat.py"
    program.parent.mkdir()
    program.write_text("import sys, time; time.sleep(1); sys.exit(78)")
    port, record = free_ports(1)[0], tmp_path / "r"
    with listening(port) as theirs:
        assert theirs.stdout is not None
        theirs.stdout.readline()
        page = ChatPage(
            "http://x/v1", port=port, key=None, token="t", record=record, checkout=tmp_path
        )
        try:
            with pytest.raises(JobsError, match="the chat page ended with 78 before it was up"):
                page.wait_until_up()
        finally:
            page.close()
