"""The chat page as a process ends with everything that it started."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from infra.jobs import chat_page
from infra.jobs.chat_page import ChatPage

_PAGE = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = "import socket, sys, time; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); "
port = sys.argv[sys.argv.index("--port") + 1]
subprocess.run([sys.executable, "-c", child + "time.sleep(900)", port])
"""


def test_a_page_that_does_not_end_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_page, "_END_S", 0.0)
    program = tmp_path / "workloads" / "chat.py"
    program.parent.mkdir()
    program.write_text(_PAGE)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        port = listener.getsockname()[1]
        page = ChatPage(
            "http://x/v1", port=port, key=None, record=tmp_path / "r", checkout=tmp_path
        )
        try:
            child, _ = listener.accept()
        finally:
            page.close()
        with child:
            child.settimeout(60)
            assert child.recv(1) == b"", "the child has ended"
    assert not page.is_running
