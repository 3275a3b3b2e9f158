"""Another user of this machine, for tests of what it is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

import pytest

UID: Final = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def run(imports: str, code: str) -> str:
    """What the Python `code` prints as a process of that user; it ends well or the test fails.

    The imports come before it becomes the user, who may not read this checkout's Python.
    """
    ids = f"{UID}, {UID}, {UID}"
    become = f"os.setgroups([]); os.setresgid({ids}); os.setresuid({ids})"
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(("import encodings.idna, os", imports, become, code))],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
