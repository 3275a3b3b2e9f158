"""Makes the jobs' Python environment on shared storage, over one SSH connection.

Owns what is sent and what the answer means. The text that runs there is infra/render/venv.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.jobs.errors import JobsError
from infra.jobs.slurm import Shell
from infra.render.archive import pack
from infra.render.venv import (
    BOOTSTRAP_LOCK,
    WORKLOADS_LOCK,
    PackageSource,
    venv_script,
    version_of,
)
from stacks.spec import StackSpec
from stacks.text_file import read_bytes

_NOTHING_TRIED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Venv:
    """The environment that jobs run with from now on."""

    path: str
    version: str
    """Of its lock file, 12 hex digits."""
    seconds: int | None
    """What making it took; None: it was there."""
    size_mib: int | None


def lock_files(root: Path, lock: Path | None = None) -> dict[str, bytes]:
    """What is sent: the lock of the environment (the checkout's by default) and that of uv."""
    chosen = lock or root / WORKLOADS_LOCK
    try:
        content = read_bytes(chosen)
    except OSError as error:
        raise JobsError(f"--lock {chosen}: cannot be read ({error.strerror})") from error
    if b"--hash=sha256:" not in content:
        raise JobsError(
            f"--lock {chosen}: no line has a hash; make it with uv pip compile --generate-hashes"
        )
    bootstrap = root / "infra" / "setup" / BOOTSTRAP_LOCK
    return {WORKLOADS_LOCK: content, BOOTSTRAP_LOCK: bootstrap.read_bytes()}


def make(shell: Shell, spec: StackSpec, files: Mapping[str, bytes], source: PackageSource) -> Venv:
    """Makes the environment of the lock the live one; making it twice changes nothing."""
    lock = files[WORKLOADS_LOCK]
    result = shell.run(venv_script(spec, lock, source), stdin=pack(files))
    if not result.ok:
        message = result.stderr.strip() or "no message"
        if result.exit_code == _NOTHING_TRIED:
            raise JobsError(f"{spec.python_env_path}: {message.splitlines()[-1]}")
        raise JobsError(
            f"{spec.python_env_path}: not made, the one before is as it was: {message}\n"
            "can the login node reach the index? --index names another, --wheelhouse a folder"
        )
    word, *numbers = result.stdout.split() or [""]
    if word not in ("same", "made"):
        raise JobsError(f"{spec.python_env_path}: unexpected answer: {result.stdout!r}")
    seconds, size_mib = (int(each) for each in numbers) if numbers else (None, None)
    return Venv(
        path=spec.python_env_path, version=version_of(lock), seconds=seconds, size_mib=size_mib
    )
