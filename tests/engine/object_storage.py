"""The emulated object storage as a process of its own, for the length of a test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.engine.nebius_project import CHECKOUT


@contextmanager
def running_storage(objects: Path, cloud: Path) -> Iterator[str]:
    """Its HOST:PORT; `cloud` is the folder of the emulated API, which says who may do what."""
    command = [sys.executable, "-m", "infra.local.object_storage", "--state", str(objects)]
    server = subprocess.Popen(
        [*command, "--cloud", str(cloud)], stdout=subprocess.PIPE, text=True, cwd=CHECKOUT
    )
    assert server.stdout is not None
    try:
        yield server.stdout.readline().strip().rpartition("//")[2]
    finally:
        server.terminate()
        server.wait(60)
        server.stdout.close()
