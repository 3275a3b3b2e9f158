"""Has the login node bring a model or data set from the hub or object storage.

Owns the command and how credentials reach it: on standard input, never in an argument, a file or a
log. No job is queued, so no GPU waits for a download.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping

from infra.jobs.errors import JobsError
from infra.jobs.ssh import Connection

SCHEMES = ("hf://", "s3://")
FORWARDED = (
    "HF_TOKEN",
    "HF_ENDPOINT",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_ENDPOINT_URL",
    "AWS_REGION",
)
"""Variables of the user's own shell that the download gets."""
_POLL_S = 1.0
_END = re.compile(rb"\nsoperator-exit (\d+)\n\Z")


def default_name(source: str) -> str:
    """Folder of the place that a source goes to unless one is named: owner/name, or the prefix."""
    path = source.split("://", 1)[1].partition("@")[0].strip("/")
    if source.startswith("hf://"):
        return path.removeprefix("datasets/").removeprefix("models/")
    return path.rpartition("/")[2]


def fetch(
    connection: Connection,
    *,
    code_path: str,
    source: str,
    target: str,
    environ: Mapping[str, str],
    write: Callable[[bytes], None],
    only_describe: bool = False,
) -> None:
    """Runs the download on the login node and passes its output on; refuses when it did not end."""
    credentials = {name: environ[name] for name in FORWARDED if environ.get(name)}
    options = ["--environment-from-stdin", *(["--describe"] if only_describe else [])]
    words = shlex.join([source, target, *options])
    # The Python environment stands in what `pulumi up` delivered; the login node shares it.
    command = (
        f"cd {shlex.quote(code_path)}/current && "
        'python=$(sed -n \'s/.*"python_env_path": "\\(.*\\)".*/\\1/p\' configs/stack.json) && '
        f'PYTHONPATH=$PWD "$python/bin/python" -m workloads.data.download {words} 2>&1; '
        "printf '\\nsoperator-exit %s\\n' $?"
    )
    tail = b""
    stdin = (json.dumps(credentials) + "\n").encode()
    for chunk in connection.stream(command, poll_s=_POLL_S, stdin=stdin):
        # The last bytes are held back: they may be the status.
        tail += chunk
        if len(tail) > 32:
            write(tail[:-32])
            tail = tail[-32:]
    end = _END.search(tail)
    write(tail[: end.start()] + b"\n" if end else tail)
    if end is None:
        raise JobsError(f"{source}: the connection ended first; the same command continues it")
    if end.group(1) != b"0":
        raise JobsError(f"{source}: not there (exit {end.group(1).decode()}); see the lines above")
