"""How full filesystems are comes from df, one path at a time."""

from __future__ import annotations

import json
import re
import subprocess
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from infra.cli import context
from infra.cli.main import app
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
    root, memory, _ = usage(Login("/\nvirtiofs 274877906944 1000 3000 /\n/mnt/memory\n"), MOUNTS)
    assert (root.kind, root.size_bytes, root.used_percent) == ("virtiofs", 256 << 30, 25)
    assert (memory.kind, memory.size_bytes, memory.used_percent) == (None, None, None)
    assert memory.what == "tmpfs, 2 GiB a node"


@pytest.mark.feature("S000-81")
def test_the_table_has_size_use_type_and_directory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    login = Login("/\nvirtiofs 274877906944 68719476736 206158430208 /\n")
    outputs = SimpleNamespace(mounts=MOUNTS, attached_key=None)
    monkeypatch.setattr(context, "caller", lambda stack, identity: outputs)
    monkeypatch.setattr(context, "connect", lambda outputs, identity: nullcontext(login))
    shown = CliRunner().invoke(app, ["status", "--filesystems"])
    assert shown.exit_code == 0, shown.output
    head, root, memory, _ = (re.split(r" {2,}", line) for line in shown.stdout.splitlines())
    assert head == ["MOUNT", "TYPE", "SIZE GIB", "USED GIB", "FREE GIB", "USED", "BEHIND IT"]
    assert root == ["/", "virtiofs", "256.0", "64.0", "192.0", "25 %", MOUNTS["/"]]
    assert memory[:2] == ["/mnt/memory", "workers only"]
    shown = CliRunner().invoke(app, ["status", "--filesystems", "--format", "json"])
    (root, *_) = json.loads(shown.stdout)
    assert (root["path"], root["kind"], root["used_percent"]) == ("/", "virtiofs", 25)


@pytest.mark.parametrize(("used", "free", "nearly"), [(9, 1, True), (8, 2, False), (0, 0, False)])
def test_nine_tenths_are_nearly_full(used: int, free: int, nearly: bool) -> None:
    found, _ = usage(Login(f"/\nvirtiofs 99 {used} {free} /\n"), {"/": "jail"})
    assert found.nearly_full is nearly


@pytest.mark.feature("S000-81")
def test_a_real_df_is_read() -> None:
    found, absent, own = usage(Here(), {"/": "root", "/no such 'path'": "nothing"})
    assert found.kind is not None
    assert found.size_bytes is not None
    assert found.size_bytes > 0
    assert absent.kind is None
    assert (own.path, own.kind is None, own.node) == ("/tmp", False, None)


@pytest.mark.feature("S000-81")
def test_df_is_asked_for_the_columns_that_are_read_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of df(1), --output; what it prints follows their order."""
    (tmp_path / "df").write_text(
        "#!/bin/sh\necho head\n"
        r"echo $* | sed 's/.*--output=\([^ ]*\).*/\1/; s/fstype/ext4/; s/size/100/; "
        "s/used/30/; s/avail/60/; s#target#/#; s/,/ /g'\n"
    )
    (tmp_path / "df").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found, _ = usage(Here(), {"/": "root"})
    assert (found.kind, found.size_bytes) == ("ext4", 100)
    assert (found.used_bytes, found.free_bytes) == (30, 60)


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's commands: sinfo prints the file `nodes`; srun runs here and keeps its words."""
    (tmp_path / "sinfo").write_text(f"#!/bin/sh\ncat {tmp_path}/nodes\n")
    (tmp_path / "srun").write_text(
        f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\n'
        'while [ "$1" != sh ]; do shift; done; shift 2\n'
        # The worker's own mount, which this machine, the login node, has not.
        f'export PATH={tmp_path}/worker:$PATH; exec sh -c "$1"\n'
    )
    (tmp_path / "worker").mkdir()
    (tmp_path / "worker" / "df").write_text(
        "#!/bin/sh\necho head\necho tmpfs 12884901888 0 12884901888 /mnt/soperator-memory\n"
    )
    for program in ("sinfo", "srun", "worker/df"):
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


@pytest.mark.feature("S000-81")
def test_what_only_workers_have_an_idle_one_is_asked_for(worker: Path) -> None:
    (worker / "nodes").write_text("w-0 main alloc\nw-1 main idle~\nw-2 gpu idle\nw-3 gpu idle\n")
    _, memory, _ = usage(Here(), {"/": "jail", "/mnt/soperator-memory": "tmpfs"})
    assert (memory.kind, memory.size_bytes, memory.node) == ("tmpfs", 12 << 30, "w-2")
    (asked,) = (worker / "asked").read_text().splitlines()
    assert "--nodelist=w-2 --partition=gpu" in asked


@pytest.mark.feature("S000-81")
def test_no_node_is_woken_to_look(worker: Path) -> None:
    (worker / "nodes").write_text("w-0 main mix\nw-1 main idle~\nw-2 main idle*\n")
    _, memory, _ = usage(Here(), {"/": "jail", "/mnt/soperator-memory": "tmpfs"})
    assert (memory.kind, memory.node) == (None, None)
    assert not (worker / "asked").exists()


def test_a_folder_in_the_place_of_a_mount_is_not_the_mount(tmp_path: Path) -> None:
    """Its sizes would be those of the whole jail."""
    _, folder, _ = usage(Here(), {"/": "jail", str(tmp_path): "tmpfs"})
    assert folder.kind is None


def test_what_df_never_printed_is_refused() -> None:
    with pytest.raises(JobsError, match="df /: printed"):
        usage(Login("/\nvirtiofs many /\n"), {"/": "jail"})


def test_a_stack_without_mounts_asks_nothing() -> None:
    assert usage(Login("never read"), {}) == ()
