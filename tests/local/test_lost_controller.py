"""A controller that forgot the start of a job drains its node; its user is told the way out."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.clients import slurm
from infra.clients.ssh import Connection
from infra.jobs import nodes
from infra.jobs.follow import in_words
from infra.local.slurm import daemons
from infra.local.slurm import pod as pods
from tests.local.jobs_cluster import JobsCluster, running_cluster

pytestmark = pytest.mark.local
_WAIT_S = 120.0
_BEGIN_S = 15
"""Longer than the controller takes to save that the job waits (5 s, SAVE_MAX_WAIT)."""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("without", "said"),
    [
        ("", "its start time has not come, or Slurm lets a requeued job rest"),
        (
            "nohold_on_prolog_fail,",
            "a node could not start it, so it is held for ever: sinfo -R names the node",
        ),
    ],
    ids=["as Soperator sets it", "as Slurm is by itself"],
)
def test_a_job_whose_start_the_controller_forgot_is_told_with_its_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str, said: str
) -> None:
    """The job is submitted again and runs, once its node is taken back."""
    settings = daemons.render_slurm_conf
    assert without in (Path(daemons.__file__).parent / "slurm.conf.j2").read_text()
    monkeypatch.setattr(
        daemons, "render_slurm_conf", lambda given: settings(given).replace(without, "")
    )
    identity = tmp_path / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", identity], check=True)
    public_key = Path(f"{identity}.pub").read_text().strip()
    with (
        running_cluster(tmp_path, public_key, identity) as cluster,
        Connection(cluster.outputs.endpoint(cluster.identity)) as user,
        cluster.root() as root,
    ):
        since_s = time.time()
        job_id = _submit(user, f"--begin=now+{_BEGIN_S}")
        _forget_its_start(cluster, root, job_id, since_s)
        _until(lambda: "Duplicate jobid" in root.run("sinfo -hR").stdout, "the drained node")
        _until(lambda: in_words(slurm.find(user, job_id).where).startswith(said), said)
        slurm.cancel(user, [job_id])
        nodes.resume(root, ["worker-0"])
        again = _submit(user)
        _until(lambda: slurm.find(user, again).state == "RUNNING", "the job submitted again")


def _submit(user: Connection, *options: str) -> str:
    words = ["cd;", "sbatch", "--parsable", "-o", "/dev/null", "-w", "worker-0", *options]
    done = user.run(" ".join([*words, "--wrap='sleep 300'"]))
    assert done.ok, done.stderr
    return done.stdout.strip()


def _forget_its_start(cluster: JobsCluster, root: Connection, job_id: str, since_s: float) -> None:
    """Kill the controller as the job began, before its next save; its node is slow to answer."""
    saved, kept = cluster.folder / "spool" / "job_state", cluster.folder / "kept"
    _until(lambda: saved.exists() and saved.stat().st_mtime > since_s, "the job's save")
    shutil.copy(saved, kept)
    assert slurm.find(root, job_id).state == "PENDING"
    _until(lambda: slurm.find(root, job_id).state == "RUNNING", "the job's start")
    cluster.lose(daemons.CONTROLLER)
    _until(lambda: not pods.processes(cluster.runtime.folder, daemons.CONTROLLER), "the loss")
    shutil.copy(kept, saved)
    slurmd = [
        pid
        for pid in pods.processes(cluster.runtime.folder, "worker-0")
        if Path(f"/proc/{pid}/comm").read_text().strip() == "slurmd"
    ]
    assert slurmd
    for pid in slurmd:
        os.kill(pid, signal.SIGSTOP)
    try:
        cluster.bring_back()
        _until(lambda: slurm.find(root, job_id).state == "RUNNING", "the second start")
    finally:
        for pid in slurmd:
            os.kill(pid, signal.SIGCONT)


def _until(is_so: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + _WAIT_S
    while not is_so():
        assert time.monotonic() < deadline_s, f"{what} did not come in {_WAIT_S:g} s"
        time.sleep(0.1)
