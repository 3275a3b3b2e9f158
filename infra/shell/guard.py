"""Something that runs on the login node while this process lives, and ends when it is gone.

Owns the heartbeat: a line every few seconds on the command's standard input. Once none came for
long enough the login node ends it by itself, so that neither a crash, nor a closed laptop, nor a
lost connection leaves GPUs held.
"""

from __future__ import annotations

import contextlib
import shlex
import threading
from collections import deque
from collections.abc import Iterator
from typing import Final

import paramiko

from infra.jobs.errors import JobsError
from infra.jobs.ssh import Connection

SILENCE_S: Final = 60
"""After so long without a line the login node takes this process for gone."""
_BEAT_S: Final = 10.0
_PATIENCE_S: Final = 15.0
_POLL_S: Final = 0.5
_CHUNK_BYTES: Final = 1 << 16
ENDED: Final = "soperator-ended"
# The first line may be a secret: in no argument, no file and no log. Without it nothing is started.
# Job control gives what runs in the background a process group of its own, so that all of it ends.
# It also lets it read the standard input: srun would take the beats, and a session that lives would
# be taken for gone.
_SCRIPT: Final = """
set -m
IFS= read -r SOPERATOR_SECRET || exit 1
export SOPERATOR_SECRET
{start}
while IFS= read -r -t {silence_s} _; do :; done
{end}
"""
_STARTED: Final = "{{ {command}; echo {ended} $?; }} </dev/null 2>&1 &"


class Guard:
    """Open from its making until `close`."""

    def __init__(
        self,
        connection: Connection,
        *,
        end: str,
        start: str = "",
        secret: str = "",
        silence_s: int = SILENCE_S,
    ) -> None:
        """Runs `start` in the background, and `end` when the guard closes or its beat stops.

        `end` may name the process group of `start` as $!; `secret` is $SOPERATOR_SECRET to both.
        """
        started = _STARTED.format(command=start, ended=ENDED) if start else ""
        script = _SCRIPT.format(start=started, end=end, silence_s=silence_s)
        self._channel = connection.hold(f"bash -c {shlex.quote(script)}")
        try:
            self._channel.sendall(f"{secret}\n".encode())
        except (OSError, EOFError, paramiko.SSHException) as error:
            self._channel.close()
            raise JobsError(
                "the connection to the login node was lost before anything was started; nothing is "
                "held: run this again"
            ) from error
        self._over = threading.Event()
        self._held = b""
        self._lines: deque[str] = deque()
        self._thread = threading.Thread(target=self._beat, daemon=True, name="guard-beat")
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """False once the connection is lost or the login node ended it."""
        return not self._channel.closed and not self._channel.exit_status_ready()

    def lines(self) -> Iterator[str]:
        """What it prints, line by line; an empty one after a moment of silence; ends with it.

        Another call goes on where this one was left.
        """
        self._channel.settimeout(_POLL_S)
        while True:
            while self._lines:
                yield self._lines.popleft()
            try:
                chunk = self._channel.recv(_CHUNK_BYTES)
            except TimeoutError:
                yield ""
                continue
            except (OSError, EOFError, paramiko.SSHException):
                return
            if not chunk:
                return
            *whole, self._held = (self._held + chunk).split(b"\n")
            self._lines += [line.decode(errors="replace") for line in whole]

    def close(self) -> bool:
        """Ends what it guards; whether the login node said that it is done."""
        self._over.set()
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.shutdown_write()
            self._channel.status_event.wait(_PATIENCE_S)
        done = self._channel.exit_status_ready() and self._channel.recv_exit_status() == 0
        self._channel.close()
        self._thread.join(_PATIENCE_S)
        return done

    def _beat(self) -> None:
        while not self._over.wait(_BEAT_S):
            try:
                self._channel.sendall(b"\n")
            except (OSError, EOFError, paramiko.SSHException):
                return
