"""Follows the log of one job to its end, over the connection that is already open.

Owns when a log is over: the job has finished and every byte of its file was read.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable

from infra.jobs import slurm
from infra.jobs.errors import JobsError
from infra.jobs.parse import Job
from infra.jobs.ssh import Connection

_POLL_S = 0.2
_STATE_EVERY_S = 1.0


def follow(
    connection: Connection,
    log_path: str,
    job_id: str,
    *,
    write: Callable[[bytes], None],
    on_state: Callable[[Job], None] = lambda _job: None,
) -> Job:
    """Writes the log as it grows, calls `on_state` when the state changes, returns the end."""
    # Polling, because inotify sees nothing of what another node writes to a shared filesystem. The
    # session's sshd is watched, because tail outlives a lost connection that it has no line for.
    command = (
        f"exec tail --bytes=+1 -F ---disable-inotify --sleep-interval={_POLL_S} --pid=$PPID "
        f"{shlex.quote(log_path)} 2>/dev/null"
    )
    received = 0
    job = slurm.find(connection, job_id)
    on_state(job)
    looked_at = time.monotonic()
    for chunk in connection.stream(command, poll_s=_POLL_S):
        received += len(chunk)
        if chunk:
            write(chunk)
        if job.finished and received >= _size(connection, log_path):
            break
        if not job.finished and time.monotonic() - looked_at >= _STATE_EVERY_S:
            seen, job = job, slurm.find(connection, job_id)
            looked_at = time.monotonic()
            if (job.state, job.where) != (seen.state, seen.where):
                on_state(job)
    return job


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
