"""How full filesystems are comes from df, one path at a time."""

from __future__ import annotations

import subprocess

import pytest

from infra.clients.errors import JobsError
from infra.clients.ssh import Result
from infra.jobs.nodes import usage


class Login:
    """A login node that prints this."""

    def __init__(self, stdout: str) -> None:
        self.stdout = stdout

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        return Result(command=command, exit_code=0, stdout=self.stdout, stderr="")


class Here:
    """This machine's own shell as the login node."""

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        return Result(
            command=command, exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr
        )


MOUNTS = {"/": "filesystem jail, 256 GiB", "/mnt/memory": "tmpfs, 2 GiB a node"}


@pytest.mark.feature("S000-81")
def test_a_path_that_only_workers_have_has_no_sizes() -> None:
    root, memory = usage(Login("/\nvirtiofs 274877906944 1000 3000\n/mnt/memory\n"), MOUNTS)
    assert (root.kind, root.size_bytes, root.used_percent) == ("virtiofs", 256 << 30, 25)
    assert (memory.kind, memory.size_bytes, memory.used_percent) == (None, None, None)
    assert memory.what == "tmpfs, 2 GiB a node"


@pytest.mark.parametrize(("used", "free", "nearly"), [(9, 1, True), (8, 2, False), (0, 0, False)])
def test_nine_tenths_are_nearly_full(used: int, free: int, nearly: bool) -> None:
    (found,) = usage(Login(f"/\nvirtiofs 99 {used} {free}\n"), {"/": "jail"})
    assert found.nearly_full is nearly


@pytest.mark.feature("S000-81")
def test_a_real_df_is_read() -> None:
    found, absent = usage(Here(), {"/": "root", "/no such 'path'": "nothing"})
    assert found.kind is not None
    assert found.size_bytes is not None
    assert found.size_bytes > 0
    assert absent.kind is None


def test_what_df_never_printed_is_refused() -> None:
    with pytest.raises(JobsError, match="df /: printed"):
        usage(Login("/\nvirtiofs many\n"), {"/": "jail"})


def test_a_stack_without_mounts_asks_nothing() -> None:
    assert usage(Login("never read"), {}) == ()
