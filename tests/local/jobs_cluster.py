"""A real Slurm cluster with a login node for one test module: no Kubernetes, no Pulumi, no model.

Two workers, the declared places as folders, and this interpreter as the jobs' environment.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from infra.clients.errors import JobsError
from infra.clients.pulumi import StackOutputs
from infra.clients.ssh import ROOT, Connection
from infra.jobs import transfer
from infra.local.slurm import conf, daemons
from infra.local.slurm import pod as pods
from infra.local.slurm.cluster import SlurmRuntime
from infra.local.slurm.conf import Partition, SlurmSettings, WorkerNode
from infra.local.slurm.pod import Mount, PodSpec, SlurmSetup
from infra.render.login import activate_script, members, places_script, users_script
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.slurm import PartitionSpec
from tests.ports import free_ports

_READY_S = 120.0
_MOUNTS = ("/home", "/mnt/data", "/mnt/chkpt", "/mnt/model", "/mnt/memory")


@dataclass(frozen=True)
class JobsCluster:
    """A running cluster as its stack would describe it."""

    spec: StackSpec
    outputs: StackOutputs
    identity: Path
    folder: Path
    runtime: SlurmRuntime
    wanted: tuple[daemons.Daemon, ...]
    """What runs while the cluster is up."""

    def root(self) -> Connection:
        """What `pulumi up` enters by, and nobody's job."""
        return Connection(replace(self.outputs, user=ROOT).endpoint(self.identity))

    def deliver(self, files: Mapping[str, bytes]) -> str:
        """Makes the files the live release, as `pulumi up` does, and returns its hash."""
        with self.root() as connection:
            release = transfer.send(connection, replace(self.outputs, user=ROOT), files)
            done = connection.run(activate_script(self.spec.code_path, release))
            assert done.ok, done.stderr
        return release

    def lose(self, pod: str, number: int = signal.SIGKILL) -> None:
        """Signal everything in a pod at once: by SIGKILL as when its machine loses power."""
        for pid in pods.processes(self.runtime.folder, pod):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def bring_back(self) -> None:
        """Start the daemons that are not there and wait for all of them."""
        deadline = time.monotonic() + _READY_S
        while any((waiting := self.runtime.converge(self.wanted)).values()):
            if time.monotonic() > deadline:
                pytest.fail(f"the cluster did not come back: {waiting}")
            time.sleep(0.1)

    def path(self, in_jail: str) -> Path:
        """Where a path of the jail lies on this machine."""
        mount = next(each for each in _MOUNTS if in_jail.startswith(each))
        return self.folder / "fs" / mount.strip("/").replace("/", "-") / in_jail[len(mount) + 1 :]


@contextlib.contextmanager
def running_cluster(
    folder: Path,
    public_key: str,
    identity: Path,
    *,
    credential_s: int = 120,
    partitions: Sequence[PartitionSpec] = (),
) -> Iterator[JobsCluster]:
    """Start one, and stop it with every job and session that it has.

    Where `partitions` name nodesets each worker is one of its own: worker, worker-serve.
    """
    setup = SlurmSetup.from_environ()
    needed = ("munged", "slurmctld", "slurmd", "sshd")
    missing = [name for name in needed if not shutil.which(name, path=setup.path)]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and {', '.join(missing) or 'nothing else'} (`make setup`)")
    ports = free_ports(6)
    is_divided = any(each.nodesets for each in partitions)
    settings = SlurmSettings(
        cluster="jobs",
        namespace="jobs",
        slurmctld_port=ports[0],
        slurmdbd_port=ports[1],
        mariadb_port=ports[2],
        workers=tuple(
            WorkerNode(
                name=f"worker-{index}",
                nodeset="worker-serve" if is_divided and index else "worker",
                port=ports[3 + index],
                static="CPUs=64 Gres=gpu:nvidia_l40s:2",
                memory_mib=380000,
                has_gpus=True,
            )
            for index in range(2)
        ),
        declares_nodes=True,
        credential_s=credential_s,
        setup=setup,
        partitions=tuple(
            Partition(name=each.name, config=each.config, nodesets=each.nodesets or None)
            for each in partitions
        )
        or (Partition(name="main", config="Default=YES State=UP OverSubscribe=YES"),),
    )
    runtime = SlurmRuntime(folder / "slurm", folder / "run")
    shared = runtime.shared
    shared.prepare()
    shared.write_cluster(settings)
    shared.write_ssh(ports[5], [public_key], [], setup)
    wanted = _daemons(settings, runtime, folder, ports[5])
    spec = _spec(identity)
    outputs = _outputs(spec, ports[5], shared.folder)
    cluster = JobsCluster(spec, outputs, identity, folder, runtime, tuple(wanted))
    try:
        deadline = time.monotonic() + _READY_S
        while any((waiting := runtime.converge(wanted)).values()) or not _idle(cluster):
            if time.monotonic() > deadline:
                pytest.fail(f"the cluster did not come up: {waiting}")
            time.sleep(0.1)
        # As the tmpfs is that Soperator mounts there.
        cluster.path("/mnt/memory").chmod(0o1777)
        with cluster.root() as connection:
            for script in (users_script(spec), places_script(spec)):
                done = connection.run(script)
                assert done.ok, done.stderr
        yield replace(cluster, outputs=outputs.as_owner_of(identity))
    finally:
        runtime.stop_all()


def _daemons(
    settings: SlurmSettings, runtime: SlurmRuntime, folder: Path, ssh_port: int
) -> list[daemons.Daemon]:
    shared = runtime.shared
    configuration = shared.read("slurm.conf", "gres.conf")
    # The interpreter of the tests, and what its link points to where the jail hides that.
    prefix = Path(sys.executable).resolve().parents[1]

    def pod(name: str) -> PodSpec:
        mounts = [Mount(path=conf_path, source=path) for conf_path, path in _sources(folder)]
        mounts.append(Mount(path="/opt/soperator/venv", source=Path(sys.prefix), read_only=True))
        if str(prefix).startswith(("/root", "/home", "/mnt", "/srv")):
            mounts.append(Mount(path=str(prefix), source=prefix, read_only=True))
        if name == conf.CONTROLLER:
            mounts.append(Mount(path=conf.CONTROLLER_SPOOL, source=_made(folder / "spool")))
        return PodSpec(name=name, argv=(), jail=_made(folder / "jail"), mounts=tuple(mounts))

    reads = (*shared.read("sshd_config"), *shared.host_key_texts())
    return [
        daemons.slurmctld(settings, pod(conf.CONTROLLER), configuration),
        daemons.sshd(ssh_port, pod(conf.LOGIN), reads, settings.setup),
        *(
            daemons.slurmd(settings, worker, pod(worker.name), configuration)
            for worker in settings.workers
        ),
    ]


def _sources(folder: Path) -> list[tuple[str, Path]]:
    return [(mount, _made(folder / "fs" / mount.strip("/").replace("/", "-"))) for mount in _MOUNTS]


def _made(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def _idle(cluster: JobsCluster) -> bool:
    with (
        contextlib.suppress(JobsError),
        Connection(cluster.outputs.endpoint(cluster.identity)) as to,
    ):
        said = to.run("sinfo --noheader --Node --format='%N %t'").stdout.split("\n")
        return {"worker-0 idle", "worker-1 idle"} <= set(said)
    return False


def _spec(identity: Path) -> StackSpec:
    environ = {"SOPERATOR_SSH_PUBLIC_KEY_FILE": f"{identity}.pub"}
    return replace(load_stack("local", environ=environ), name="jobs")


def _outputs(spec: StackSpec, port: int, shared: Path) -> StackOutputs:
    key = subprocess.run(
        ["ssh-keygen", "-y", "-f", next((shared / "ssh").glob("host_key_0"))],
        capture_output=True,
        text=True,
        check=True,
    )
    return StackOutputs(
        stack=spec.name,
        login_ip="127.0.0.1",
        ssh_port=port,
        login_host_key=key.stdout.strip(),
        code_path=spec.code_path,
        code_hash="",
        places=dict(spec.storage.places),
        jobs={job.name: f"soperator submit {job.name} --stack jobs" for job in spec.jobs},
        users={each.name: each.ssh_public_keys for each in members(spec)},
    )
