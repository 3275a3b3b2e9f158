"""A login node for guards: their script in a real bash, with srun and scancel of the test's own."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from infra.clients.ssh import Connection, Result


class Channel:
    """What a guard uses of a paramiko channel, over the pipes of a process."""

    def __init__(self, command: str, path: str) -> None:
        self._process = subprocess.Popen(
            ["bash", "-c", command],
            env={**os.environ, "PATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._timeout_s = 60.0
        self.closed = False
        self.status_event = threading.Event()
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        self._process.wait()
        self.status_event.set()

    def sendall(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def settimeout(self, seconds: float) -> None:
        self._timeout_s = seconds

    def recv(self, size: int) -> bytes:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], self._timeout_s)[0]:
            raise TimeoutError
        return os.read(self._process.stdout.fileno(), size)

    def shutdown_write(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def exit_status_ready(self) -> bool:
        return self.status_event.is_set()

    def recv_exit_status(self) -> int:
        return self._process.wait()

    def close(self) -> None:
        self.closed = True

    def kill(self) -> None:
        """Ends what the test left over."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)


class Login:
    """Runs commands here; programs of the test stand before those of the machine."""

    def __init__(self, folder: Path) -> None:
        self._bin = folder / "bin"
        self._bin.mkdir()
        self.path = f"{self._bin}:{os.environ['PATH']}"
        self.asked: list[str] = []
        self.channels: list[Channel] = []
        self.answers: list[tuple[str, Result]] = []

    def program(self, name: str, script: str) -> None:
        """Puts a shell script on the path."""
        path = self._bin / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    def answer(self, part: str, stdout: str = "", stderr: str = "", code: int = 0) -> None:
        """What a command that holds `part` does."""
        result = Result(command=part, exit_code=code, stdout=stdout, stderr=stderr)
        self.answers.append((part, result))

    def hold(self, command: str) -> Channel:
        channel = Channel(command, self.path)
        self.channels.append(channel)
        return channel

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        self.asked.append(command)
        for part, result in self.answers:
            if part in command:
                return result
        return Result(command=command, exit_code=0, stdout="", stderr="")

    def __enter__(self) -> Login:
        return self

    def __exit__(self, *_: object) -> None: ...

    def as_connection(self) -> Connection:
        """Typed as what it stands in for."""
        return cast(Connection, self)

    def close(self) -> None:
        """Nothing of the test runs on."""
        for channel in self.channels:
            channel.kill()


def words(lines: Sequence[str]) -> list[str]:
    """The lines that are not empty."""
    return [line for line in lines if line]
