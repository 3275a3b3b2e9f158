"""The chat page as a process of this machine: started with its key, ended with whoever started it.

The page is a program of workloads/, never imported here. A key goes by its environment, so that no
list of processes shows it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from infra.jobs.errors import JobsError
from infra.jobs.server import KEY_VARIABLE

HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 7861
"""Beside 7860, where the server of the `local` stack listens on this machine."""
_UP_S: Final = 300.0
_END_S: Final = 10.0


class ChatPage:
    """A running page, until `close`."""

    def __init__(
        self,
        url: str,
        *,
        port: int,
        key: str | None,
        record: Path,
        checkout: Path,
        options: Sequence[str] = (),
    ) -> None:
        """`url` is the server's up to /v1; `record` keeps votes and times, without any text."""
        self.address = f"http://{HOST}:{port}/"
        self._port = port
        words = [sys.executable, "-m", "workloads.chat", "--url", url, "--port", str(port)]
        words += ["--record", str(record), "--until-stdin-ends", *options]
        environment = {name: value for name, value in os.environ.items() if name != KEY_VARIABLE}
        if key is not None:
            environment[KEY_VARIABLE] = key
        # Ctrl-C is for who started it, which then closes everything in order. Its end, however it
        # comes, closes the pipe and so ends the page.
        self._process = subprocess.Popen(
            words, cwd=checkout, env=environment, stdin=subprocess.PIPE, start_new_session=True
        )

    @property
    def is_running(self) -> bool:
        """False once the page has ended."""
        return self._process.poll() is None

    def wait_until_up(self) -> None:
        """Returns when a browser can open it; a page that ends before is an error."""
        deadline_s = time.monotonic() + _UP_S
        while not _listens(self._port):
            if not self.is_running:
                raise JobsError(
                    f"the chat page ended with {self._process.returncode} before it was up; its "
                    "last line says why"
                )
            if time.monotonic() > deadline_s:
                raise JobsError(f"the chat page is not up after {_UP_S:g} s; is this machine busy?")
            time.sleep(0.1)

    def close(self) -> None:
        """Ends the page and waits for its end."""
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            # With --share it has a program of its own, which would keep the public link open.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


def free_port(wanted: int) -> int:
    """The port that a page can have, 0 for any; refused before anything else is started."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted))
        except (OSError, OverflowError) as error:
            raise JobsError(
                f"--port {wanted}: {error}; choose another one, or 0 for any free one"
            ) from error
        return probe.getsockname()[1]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0
