"""A neighbour on the machine: what another uid can do to jobs. Only root can act as one."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

UID = 65534
"""Of `nobody`, who owns nothing else."""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def run_python(imports: str, code: str) -> str:
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


_LISTENS = f"""
import encodings.idna, os, socket, sys
os.setgroups([]); os.setresgid({UID}, {UID}, {UID}); os.setresuid({UID}, {UID}, {UID})
host = sys.argv[2]
listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
try:
    listener.bind((host, int(sys.argv[1])))
    listener.listen()
except OSError as error:
    sys.exit(print(error.strerror))
print("listens", flush=True)
while True:
    client, _ = listener.accept()
    client.settimeout(5)
    try:
        print(repr(client.recv(1 << 16)), flush=True)
        client.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
    except OSError:
        pass
    client.close()
"""


@contextlib.contextmanager
def listening(port: int, host: str = "127.0.0.1") -> Iterator[subprocess.Popen[str]]:
    """A server of that user at a port of an address, if it gets it: its first line says so or why.

    It answers whatever is asked with 200; the lines after are what it was sent.
    """
    words = [sys.executable, "-c", _LISTENS, str(port), host]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


class Runs:
    """Pickled, it runs a command where it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


class Neighbour:
    """Another user, with a folder that everybody may write to, as a shared place is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.proof = folder / "proof"
        """Made by `payload` where it ran."""

    def run(self, script: str) -> str:
        """What the shell script says that the other user runs in the folder."""
        words = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
        done = subprocess.run(
            [*words, "bash", "-euc", script], cwd=self.folder, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def payload(self) -> bytes:
        """A pickle that runs a command of the neighbour's."""
        return pickle.dumps(Runs(f"id -u > {self.proof}"))


@pytest.fixture
def neighbour() -> Iterator[Neighbour]:
    """Somebody else; skips where the tests are not root's."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can act as another user (setpriv)")
    folder = Path(tempfile.mkdtemp(prefix="soperator-neighbour-"))
    folder.chmod(0o1777)
    yield Neighbour(folder)
    shutil.rmtree(folder)
