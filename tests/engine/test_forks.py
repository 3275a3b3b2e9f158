"""A process that is forked for another one is to its starter what that one would be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infra.state import CHECKOUT
from tests.engine import forked

pytestmark = pytest.mark.engine
_PLUGIN = "infra.providers.soperator"


def start(socket: str, module: str, *words: str) -> subprocess.Popen[str]:
    environ = {**os.environ, "PYTHONPATH": str(CHECKOUT), "COLUMNS": "80"}
    environ |= forked.variables(socket) if socket else {}
    return subprocess.Popen(
        [sys.executable, "-u", "-m", module, *words],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ends(port: int) -> bool:
    """Whether nobody listens there any more."""
    deadline = time.monotonic() + 10
    name = f" 0100007F:{port:04X} 00000000:0000 0A "
    while name in Path("/proc/net/tcp").read_text():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("words", [["--help"], ["cost", "--stack", "of-nobody"], ["nonsense"]])
def test_it_prints_and_ends_as_the_whole_process_does(fork_server: str, words: list[str]) -> None:
    ended = []
    for socket in ("", fork_server):
        process = start(socket, "infra.cli.main", *words)
        ended.append((*process.communicate(timeout=60), process.returncode))
    assert ended[0] == ended[1]
    assert ended[0][0] or ended[0][1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_plugin_is_forked_and_ends_with_its_own_process(
    fork_server: str, number: signal.Signals
) -> None:
    with start(fork_server, _PLUGIN) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        assert "cygrpc" not in maps  # what runs is another process
        process.send_signal(number)
        assert ends(port)


def test_without_its_server_a_module_runs_here(tmp_path: Path) -> None:
    with start(str(tmp_path / "nobody"), _PLUGIN) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline())
        assert "cygrpc" in Path(f"/proc/{process.pid}/maps").read_text()
        process.kill()
