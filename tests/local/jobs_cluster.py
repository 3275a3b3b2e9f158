"""A real Slurm cluster with a login node for one test module: no Kubernetes, no Pulumi, no model.

Two workers, the declared places as folders, and this interpreter as the jobs' environment. A probe
stands for the workloads: it says what it sees.
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

import psutil
import pytest

from infra.clients.errors import JobsError
from infra.clients.pulumi import StackOutputs
from infra.clients.ssh import ROOT, Connection
from infra.jobs import follow, transfer
from infra.jobs.history import Submission
from infra.local.slurm import daemons
from infra.local.slurm import pod as pods
from infra.local.slurm.daemons import Partition, SlurmRuntime, SlurmSettings, WorkerNode
from infra.local.slurm.pod import Mount, PodSpec, SlurmSetup
from infra.render.delivery import hash_files, schedule_script
from infra.render.login import activate_script, members, places_script, users_script
from infra.render.sbatch import render_sbatch, render_search
from infra.state import CHECKOUT
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.slurm import AxisSpec, Goal, JobSpec, PartitionSpec, SearchSpec, TrialSpec
from tests.ports import free_ports
from tests.unit.jobs.raw import submit

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

    def lose(self, pod: str, number: int = signal.SIGKILL, *, daemons_after_s: float = 0) -> None:
        """Signal everything in a pod: by SIGKILL as when its machine loses power."""
        found = set(pods.processes(self.runtime.folder, pod))
        for pid in tuple(found):
            with contextlib.suppress(psutil.NoSuchProcess):
                # What runs in an image has a root of its own, by which a pod's others are known.
                found |= {each.pid for each in psutil.Process(pid).children(recursive=True)}
        owners: dict[int, bool] = {}
        for pid in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                owners[pid] = psutil.Process(pid).uids().real == 0
        for is_root in (False, True):
            for pid in (pid for pid, owner in owners.items() if owner is is_root):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if not is_root:
                time.sleep(daemons_after_s)

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
    num_workers: int = 2,
) -> Iterator[JobsCluster]:
    """Start one, and stop it with every job and session that it has.

    Where `partitions` name nodesets each worker is one of its own: worker, worker-serve.
    """
    setup = SlurmSetup.from_environ()
    needed = ("munged", "slurmctld", "slurmd", "sshd")
    missing = [name for name in needed if not shutil.which(name, path=setup.path)]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and {', '.join(missing) or 'nothing else'} (`make setup`)")
    ports = free_ports(4 + num_workers)
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
            for index in range(num_workers)
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
    shared.write_ssh(ports[-1], [public_key], [], setup)
    wanted = _daemons(settings, runtime, folder, ports[-1])
    spec = _spec(identity)
    outputs = _outputs(spec, ports[-1], shared.folder)
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
    # The interpreter of the tests, and what its link points to where the jail hides that.
    prefix = Path(sys.executable).resolve().parents[1]

    def pod(name: str) -> PodSpec:
        mounts = [Mount(path=conf_path, source=path) for conf_path, path in _sources(folder)]
        mounts.append(Mount(path="/opt/soperator/venv", source=Path(sys.prefix), read_only=True))
        if str(prefix).startswith(("/root", "/home", "/mnt", "/srv")):
            mounts.append(Mount(path=str(prefix), source=prefix, read_only=True))
        if name == daemons.CONTROLLER:
            mounts.append(Mount(path=daemons.CONTROLLER_SPOOL, source=_made(folder / "spool")))
        return PodSpec(name=name, argv=(), jail=_made(folder / "jail"), mounts=tuple(mounts))

    names = [daemons.CONTROLLER, daemons.LOGIN, *(worker.name for worker in settings.workers)]
    return daemons.daemons_of(settings, [pod(name) for name in names], runtime.shared, ssh_port)


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
        names = (each.pod.name for each in cluster.wanted)
        return {f"{name} idle" for name in names if name.startswith("worker-")} <= set(said)
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


# What a job of ours does without a model: says what it sees, writes a record, ends as it is told.
PROBE = """
import json, os, pathlib, sys, time
rank = int(os.environ.get("RANK", 0))
sets = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
shown = ("SOPERATOR_PLACE_CHKPT", "SOPERATOR_CODE_HASH", "SOPERATOR_PLATFORM", "SOPERATOR_PRESET")
shown += ("NCCL_IB_DISABLE", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "MASTER_ADDR")
seen = {key: os.environ[key] for key in shown if key in os.environ}
seen |= {"rank": rank, "argv": sys.argv[1:], "cwd": os.getcwd(), "node": os.uname().nodename}
# At once, as ranks of a node share the pipe, and short: srun breaks lines at 1024 characters.
os.write(1, (json.dumps(seen) + "\\n").encode())
for number in range(int(sets.get("lines", 0))):
    print(f"line {number}", flush=True)
    time.sleep(float(sets.get("every", 0)))
results = pathlib.Path(os.environ["SOPERATOR_PLACE_RESULTS"], os.environ["SLURM_JOB_ID"])
results.mkdir(parents=True, exist_ok=True)
code = int(sets.get("exit", 0))
record = {"outcome": "FAIL" if code else "PASS", "exit_code": code, "job": "probe"}
record |= {"metrics": {"score": float(sets.get("score", 0))}}
(results / "run_record.json").write_text(json.dumps(record))
time.sleep(float(sets.get("sleep", 0)))
for _ in range(600 if "until" in sets else 0):  # a minute, where a test that failed never says so
    if pathlib.Path(sets["until"]).exists():
        break
    time.sleep(0.1)
if int(sets.get("fail_rank", 0)) == rank:
    sys.exit(int(sets.get("exit", 0)))
time.sleep(float(sets.get("linger", 0)))
"""


def probe_spec(spec: StackSpec) -> StackSpec:
    """The local stack with jobs that run in a second."""
    probe = JobSpec(name="probe", module="workloads.probe", recipe="none")
    ranks = replace(probe, name="ranks", nodes=2, gpus_per_node=2, cpus_per_task=4)
    # srun's --export parts its words at commas.
    ranks = replace(ranks, environment={"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"})
    second = replace(probe, name="second", after=("probe",), schedule="@daily")
    return replace(spec, jobs=(probe, ranks, second), searches=(SEARCH,))


SEARCH = SearchSpec(
    name="trials",
    job="probe",
    metric="score",
    goal=Goal.HIGHEST,
    grid=(AxisSpec(key="score", values=("1", "2")),),
    trials=(TrialSpec(settings=("score=3", "exit=3")),),
    at_once=2,
)


def release(spec: StackSpec) -> dict[str, bytes]:
    """What `pulumi up` would deliver, with the probe as the only workload."""
    launcher = (CHECKOUT / "workloads" / "common").glob("*.py")
    files = {path.relative_to(CHECKOUT).as_posix(): path.read_bytes() for path in launcher}
    sampler = "workloads/monitoring/check_gpu_util.sh"
    files[sampler] = (CHECKOUT / sampler).read_bytes()
    files |= {"workloads/__init__.py": b"", "workloads/probe.py": PROBE.encode()}
    files |= {f"jobs/{job.name}": render_sbatch(spec, job).encode() for job in spec.jobs}
    files |= {f"jobs/{each.name}": render_search(spec, each).encode() for each in spec.searches}
    # Without its scrontab, which Debian's Slurm has no command for.
    job = next(job for job in spec.jobs if job.schedule is not None)
    return files | {f"schedules/{job.name}": schedule_script(spec, job).encode()}


@contextlib.contextmanager
def probe_cluster(folder: Path) -> Iterator[JobsCluster]:
    """One whose stack declares the jobs of `probe_spec`."""
    identity = folder / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", identity], check=True)
    public = Path(f"{identity}.pub").read_text().strip()
    with running_cluster(folder, public, identity) as made:
        spec = probe_spec(made.spec)
        names = [*(job.name for job in spec.jobs), *(search.name for search in spec.searches)]
        outputs = replace(made.outputs, jobs=dict.fromkeys(names, ""))
        yield replace(made, spec=spec, outputs=outputs)


def start(
    cluster: JobsCluster, connection: Connection, job: str, *sets: str, after: str | None = None
) -> Submission:
    digest = hash_files(release(cluster.spec))
    return submit(connection, cluster.outputs, job, code_hash=digest, sets=sets, after=after)


def finish(connection: Connection, submission: Submission) -> tuple[int, str]:
    """Exit status and log of the job, through `logs`."""
    received = bytearray()
    job = follow.follow(
        connection,
        submission.log_path,
        submission.job_id,
        write=lambda chunk: received.extend(chunk),
    )
    return job.status, received.decode()
