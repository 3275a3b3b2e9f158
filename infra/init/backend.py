"""Makes a stack known to the engine: make_stack(...), in the backend that its project's file names.

Owns the engine's part of `soperator init`. The stack's file is written before: the engine takes the
salt that it finds there, so that the passphrase of the project is the secrets provider.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

from stacks.errors import UserError

_AGAIN: Final = "; what was made stays, and the same `soperator init` goes on from there"
_NO_STACK: Final = "no stack named"
_WAIT_S: Final = 120
"""Longest wait for the backend; it is asked twice at most."""


class Backend(StrEnum):
    """Where the states of a project's stacks lie."""

    BUCKET = "bucket"
    """A versioned bucket of the project, for everybody who deploys it."""
    FILE = "file"
    """This machine alone."""


def variables_of(environment_file: Path) -> dict[str, str]:
    """Variables of the project's file, as a shell would read them."""
    words = shlex.split(environment_file.read_text(encoding="utf-8"))
    return dict(word.split("=", 1) for word in words)


def make_stack(name: str, checkout: Path, environ: Mapping[str, str]) -> bool:
    """Selects the stack in the backend of `environ`, made first if needed; whether it was made."""
    found = _pulumi(["stack", "select", name], checkout, environ)
    if found.returncode == 0:
        return False
    if _NO_STACK not in found.stderr:
        raise UserError(_refusal(f"stack select {name}", found))
    made = _pulumi(["stack", "init", name], checkout, environ)
    if made.returncode != 0:
        raise UserError(_refusal(f"stack init {name}", made))
    return True


def _pulumi(
    words: list[str], checkout: Path, environ: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    program = shutil.which("pulumi", path=environ.get("PATH"))
    if program is None:
        raise UserError(f"pulumi: not installed; run `make setup`{_AGAIN}")
    argv = [program, "-C", str(checkout), "--non-interactive", "--color=never", *words]
    try:
        return subprocess.run(
            argv,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_WAIT_S,
        )
    except subprocess.TimeoutExpired as error:
        where = environ.get("PULUMI_BACKEND_URL", "its backend")
        raise UserError(
            f"pulumi {' '.join(words)}: no answer from {where} within {_WAIT_S} s; is it to be "
            f"reached from here?{_AGAIN}"
        ) from error


def _refusal(what: str, done: subprocess.CompletedProcess[str]) -> str:
    said = " ".join((done.stderr.strip() or done.stdout.strip()).split())
    return f"pulumi {what}: {said.removeprefix('error: ')}{_AGAIN}"
