"""Follows the log of one job to its end, over the connection that is already open.

Owns when a log is over: the job has finished and every byte of its file was read; and that a
connection that is lost meanwhile costs no byte and doubles none.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass

from infra.jobs import slurm
from infra.jobs.errors import JobsError
from infra.jobs.parse import Job
from infra.jobs.reconnect import PATIENCE_S, reopen
from infra.jobs.ssh import Connection, ConnectionLostError

_POLL_S = 0.2
_STATE_EVERY_S = 1.0


def follow(
    connection: Connection,
    log_path: str,
    job_id: str,
    *,
    write: Callable[[bytes], None],
    on_state: Callable[[Job], None] = lambda _job: None,
    on_lost: Callable[[ConnectionLostError], None] = lambda _error: None,
    patience_s: float = PATIENCE_S,
) -> Job:
    """Writes the log as it grows, calls `on_state` when the state changes, returns the end.

    A lost connection is opened again for `patience_s`, and the log goes on at the byte it had.
    """
    log = _Log(path=log_path, job=slurm.find(connection, job_id))
    on_state(log.job)
    while True:
        try:
            _read_on(connection, log, write, on_state)
            return log.job
        except ConnectionLostError as error:
            on_lost(error)
            reopen(connection, patience_s=patience_s)


@dataclass(slots=True, kw_only=True)
class _Log:
    """How far a log was read, and its job as it was seen last."""

    path: str
    job: Job
    received: int = 0
    """Bytes of the file that were written out."""


def _read_on(
    connection: Connection,
    log: _Log,
    write: Callable[[bytes], None],
    on_state: Callable[[Job], None],
) -> None:
    """Reads from where the log stands until its job ended and every byte came."""
    if log.received > _size(connection, log.path):
        log.received = 0  # the file is another one: somebody emptied it meanwhile
    # Polling, because inotify sees nothing of what another node writes to a shared filesystem. The
    # session's sshd is watched, because tail outlives a lost connection that it has no line for.
    command = (
        f"exec tail --bytes=+{log.received + 1} -F ---disable-inotify "
        f"--sleep-interval={_POLL_S} --pid=$PPID {shlex.quote(log.path)} 2>/dev/null"
    )
    looked_at = time.monotonic()
    for chunk in connection.stream(command, poll_s=_POLL_S):
        if chunk:
            write(chunk)
            log.received += len(chunk)
        if log.job.finished and log.received >= _size(connection, log.path):
            return
        if not log.job.finished and time.monotonic() - looked_at >= _STATE_EVERY_S:
            seen, log.job = log.job, slurm.find(connection, log.job.id)
            looked_at = time.monotonic()
            if (log.job.state, log.job.where) != (seen.state, seen.where):
                on_state(log.job)


def read(connection: Connection, log_path: str) -> bytes:
    """The log as it is now."""
    result, content = connection.run_bytes(f"cat {shlex.quote(log_path)}")
    if not result.ok:
        raise JobsError(f"{log_path}: no log yet; the job has not started (see `soperator status`)")
    return content


def _size(connection: Connection, log_path: str) -> int:
    """Bytes in the log; 0 where the job ended before it had one."""
    result = connection.run(f"wc -c < {shlex.quote(log_path)} 2>/dev/null || echo 0")
    return int(result.stdout.strip() or 0)
