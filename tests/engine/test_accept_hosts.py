"""The acceptance over SSH: real sshd, real torchrun on two hosts that are this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from infra.render.delivery import code_files, hash_files, pack
from infra.reports.acceptance import run
from infra.reports.acceptance.run import AcceptError
from stacks.load import load_stack
from tests.another_user import neighbour  # noqa: F401 (a fixture)
from tests.engine.sshd import Sshd, running_sshd
from tests.ports import free_ports

pytestmark = pytest.mark.engine
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    key = tmp_path_factory.mktemp("key") / "id.pub"
    key.write_text(f"ssh-ed25519 {'A' * 68} a\n")
    return code_files(
        ROOT, load_stack("local", environ={"SOPERATOR_SSH_PUBLIC_KEY_FILE": str(key)})
    )


def hosts_of(
    sshd: Sshd, folder: Path, *names: str, files: dict[str, bytes], stages: tuple[str, ...]
) -> run.PlainHosts:
    """Names that a configuration of ssh leads to this machine's server."""
    (folder / "id").write_text(sshd.private_key)
    (folder / "id").chmod(0o600)
    (folder / "known").write_text(f"[127.0.0.1]:{sshd.port} {sshd.host_key}")
    config = folder / "config"
    config.write_text(
        f"Host one two\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User root\n"
        f"  IdentityFile {folder}/id\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known\n"
        # Nobody is there: port 1 of loopback.
        "Host gone\n  HostName 127.0.0.1\n  Port 1\n"
    )
    return run.PlainHosts(
        hosts=names,
        python=sys.executable,
        folder=str(folder / "there"),
        master_address="127.0.0.1",
        ssh=("ssh", "-F", str(config)),
        run_id="hosts-1",
        code=f"code-{hash_files(files)}",
        per_host=1,
        port=free_ports(1)[0],
        arguments=("--recipe", "accept_cpu", "--set", f"accept.stages={json.dumps(stages)}",
                   "--set", 'accept.storage.places=["scratch"]', "--set", "accept.soak_s=600"),
        environment={"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.mark.feature("S001-64", "S004-01")
def test_two_hosts_measure_together_and_the_result_comes_home(sshd, files, tmp_path):
    stages = ("connectivity", "training")
    hosts = hosts_of(sshd, tmp_path, "one", "two", files=files, stages=stages)
    said: list[bytes] = []
    text = run.run(hosts, pack(files), write=said.append, say=lambda _: None)
    (tmp_path / "home").write_bytes(text)
    found = run.read(tmp_path / "home")
    assert (json.loads(text)["hardware"]["world_size"], found.outcome) == (2, "PASS")
    assert {check.stage for check in found.checks} == {"connectivity", "training"}
    assert b"PASS" in b"".join(said)
    # A second run finds the code there.
    assert [each.name for each in Path(hosts.folder).glob("code*")] == [hosts.code]


def test_every_host_that_refuses_is_told_at_once(sshd, files, tmp_path):
    names = ("one", "gone", "nowhere.invalid")
    hosts = hosts_of(sshd, tmp_path, *names, files=files, stages=("training",))
    with pytest.raises(AcceptError) as raised:
        run.run(hosts, b"", write=print, say=print)
    one, two = str(raised.value).splitlines()
    assert one.startswith("gone: torch: ")
    assert "does `ssh gone true` work" in one
    assert two.startswith("nowhere.invalid: torch: ")


def test_code_that_another_user_put_there_before_is_not_run(sshd, files, tmp_path, neighbour):  # noqa: F811
    """The folder's name is known to all, and lies in one that all may write to."""
    hosts = hosts_of(sshd, tmp_path, "one", files=files, stages=("training",))
    hosts = dataclasses.replace(hosts, folder=str(neighbour.folder / "accept"))
    code = f"accept/{hosts.code}/workloads/accept"
    neighbour.run(
        f'mkdir -pm 777 {code}; echo \'open("{neighbour.proof}", "w")\' > {code}/__main__.py'
    )
    with pytest.raises(AcceptError, match=r"accept on .*: is a directory of nobody.* mv -T "):
        run.run(hosts, pack(files), write=print, say=print)
    assert not neighbour.proof.exists()


def test_a_python_without_torch_is_named(sshd, files, tmp_path):
    hosts = hosts_of(sshd, tmp_path, "one", files=files, stages=("training",))
    bare = dataclasses.replace(hosts, python="/usr/bin/nopython")
    with pytest.raises(AcceptError, match=r"one: torch: .*nopython"):
        run.run(bare, b"", write=print, say=print)


def test_ranks_end_with_who_started_them(sshd, files, tmp_path):
    """`kill -9` of the caller leaves no rank behind that holds a GPU."""
    hosts = hosts_of(sshd, tmp_path, "one", files=files, stages=("soak",))
    run._on_all(hosts, run.delivery(hosts), "code", stdin=pack(files))
    caller = subprocess.Popen(
        hosts.argv("one", run.script(hosts, 0)),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    for line in caller.stdout:
        if b"soak" in line:
            break
    assert running(hosts.folder)
    os.kill(caller.pid, signal.SIGKILL)
    ended = threading.Event()
    for _ in range(600):
        if not running(hosts.folder):
            return
        ended.wait(0.1)
    pytest.fail("the ranks run on")


def running(folder: str) -> list[str]:
    """Processes whose environment names the folder as theirs."""
    mark = f"SOPERATOR_PLACE_RESULTS={folder}/results".encode()
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (each / "environ").read_bytes():
                found.append(each.name)
    return found
