"""The comment of a job that was submitted here, by which it is found though its id was never seen.

`soperator:INPUTS:NONCE`: equal inputs have an equal beginning, and each sbatch another end. Owns
that text and the shell words that let one submission at a time through on the login node.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shlex
from collections.abc import Sequence
from typing import Final

_PREFIX: Final = "soperator"
_INPUT_DIGITS: Final = 16
_NONCE_BYTES: Final = 6
_LOCK: Final = ".submit.lock"
"""In the code folder, which all login nodes share."""
_WAIT_S: Final = 60
_DROP: Final = "cat > /dev/null"
"""What is on standard input is read before an end: else the sender takes it for a lost line."""
BUSY_EXIT: Final = 74
QUEUED_EXIT: Final = 76
"""What ends the shell where a job of equal inputs runs or waits: its id and comment are printed."""


def new_mark(
    job: str,
    code_hash: str,
    sets: Sequence[str],
    *,
    array: str | None = None,
    reproduces: str | None = None,
) -> str:
    """The comment of one sbatch of these inputs."""
    inputs = json.dumps([job, code_hash, list(sets), array, reproduces])
    digest = hashlib.sha256(inputs.encode()).hexdigest()[:_INPUT_DIGITS]
    return f"{_PREFIX}:{digest}:{secrets.token_hex(_NONCE_BYTES)}"


def lock_script(code_path: str) -> str:
    """Shell words that hold the login node's lock until the shell ends, or end it: BUSY_EXIT."""
    path = f"{code_path}/{_LOCK}"
    said = f"another submission holds {path}, or it cannot be locked"
    return (
        f"{{ exec 9>>{shlex.quote(path)} && flock -w {_WAIT_S} 9; }} || "
        f"{{ {_DROP}; echo {shlex.quote(said)} >&2; exit {BUSY_EXIT}; }}; "
    )


def why_busy(stderr: str) -> str:
    """What the shell said before BUSY_EXIT, in one line: its own words tell what is not there."""
    return "; ".join(line.strip() for line in stderr.splitlines() if line.strip())


def turn_script(code_path: str, mark: str, *, once_from: int | None) -> str:
    """Shell words before sbatch: hold the lock, and end at a job of equal inputs.

    `once_from`: least id of one that is a repeat; None: none is.
    """
    lock = lock_script(code_path)
    if once_from is None:
        return lock
    inputs = f"|{mark.rpartition(':')[0]}:"
    return (
        f"{lock}queued=$(squeue --all --noheader --format='%F|%k') || {{ {_DROP}; exit 1; }}; "
        f"same=$(printf '%s\\n' \"$queued\" | grep -F {shlex.quote(inputs)} | "
        f"while IFS='|' read -r id rest; do [ \"$id\" -lt {once_from} ] || "
        '{ echo "$id|$rest"; break; }; done); '
        f'if [ -n "$same" ]; then {_DROP}; echo "$same"; exit {QUEUED_EXIT}; fi; '
    )
