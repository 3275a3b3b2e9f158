"""A right cluster on real daemons: what a user sees, how it heals, and what it leaves behind."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cost.runs.spend import JobUse
from infra.clients import slurm
from infra.clients.slurm import Job
from infra.clients.ssh import Result
from infra.jobs.nodes import await_idle, drain, jobs_on, resume
from infra.local import process
from infra.local.cloud import RECONCILER
from infra.local.kube import api_server
from infra.local.slurm import pod as pods
from infra.local.slurm.daemons import SharedFolder
from tests.local.slurm_stand import CLUSTER, Stand, node_groups, running_stand
from tests.nightly import at_night
from tests.unit.jobs.login_node import planned
from tests.unit.jobs.raw import submitter
from tests.unit.jobs.test_submit import OUTPUTS

pytestmark = pytest.mark.local

CENTRAL = ("accounting", "acct-db-0", "controller-0", "login-0", "munged")
"""Daemons beside the workers."""


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """A cluster with accounting, up for the whole module."""
    with running_stand(tmp_path_factory.mktemp("stand")) as made:
        values = made.values()
        values[CLUSTER]["slurmNodes"]["accounting"] |= {
            "enabled": True,
            "mariadbOperator": {
                "enabled": True,
                "storage": {
                    "volumeClaimTemplate": {
                        "storageClassName": "slurm-local-pv",
                        "accessModes": ["ReadWriteMany"],
                        "resources": {"requests": {"storage": "128Gi"}},
                    }
                },
            },
        }
        made.apply(values)
        made.wait_idle("worker-[0-1]")
        # As the last line of infra/render/login.py's ready_script, and for its reason.
        assert made.ssh("scontrol reconfigure").returncode == 0
        made.wait_idle("worker-[0-1]")
        yield made


def test_munged_answers_however_long_the_path_of_the_state_is(tmp_path: Path) -> None:
    """A socket's path has at most 107 characters; the state may lie deeper."""
    shared = SharedFolder(tmp_path / ("deep" * 30))
    shared.folder.mkdir()
    shared.prepare()
    munged = process.start(
        "munged", shared.munged_argv("worker-0"), run_dir=tmp_path, log=tmp_path / "log"
    )
    try:
        socket = shared.munge_socket("worker-0")
        deadline = time.monotonic() + 30
        while not socket.exists() and munged.alive and time.monotonic() < deadline:
            time.sleep(0.05)
        assert socket.is_socket(), (tmp_path / "log").read_text()
    finally:
        process.stop("munged", tmp_path)


@pytest.mark.feature("S002-05", "S002-26", "S002-28")
def test_status_says_available_and_ready(stand: Stand) -> None:
    stand.wait(
        lambda: stand.status("SlurmCluster", "soperator").get("phase") == "Available", "Available"
    )
    stand.wait(lambda: stand.status("NodeSet", "worker").get("phase") == "Ready", "Ready")
    assert stand.status("NodeSet", "worker")["replicas"] == 2


@pytest.mark.feature("S002-03", "S002-28", "S002-63", "S003-13", "S004-27")
def test_a_job_runs_on_both_workers_with_a_gpu_each(stand: Stand) -> None:
    job = stand.submit(
        "srun -l sh -c 'echo $(hostname) gpu=$CUDA_VISIBLE_DEVICES'", "-N2", "--gpus-per-node=1"
    )
    assert sorted(stand.output(job).splitlines()) == ["0: worker-0 gpu=0", "1: worker-1 gpu=0"]


def test_accounting_knows_the_jobs(stand: Stand) -> None:
    job = stand.submit("true")
    stand.output(job)
    command = f"sacct -n -X -P -j {job} -o State,ExitCode"
    stand.wait(lambda: stand.ssh(command).stdout.strip() == "COMPLETED|0:0", f"sacct of {job}")


def test_a_job_that_the_queue_forgot_is_found_by_its_key_in_accounting(stand: Stand) -> None:
    """Accounting keeps no comments by default, but the line of sbatch, where the key is too."""
    key = "soperator:0123456789abcdef:00aa11bb22cc"
    wanted = planned(idempotency_key=key)
    job = stand.submit("true", f"--comment={key}", f"--job-name={wanted.job}")
    stand.output(job)
    own = "/root/keys"
    touch = f"touch -d '1 hour ago' {own}/submissions/00aa11bb22cc"
    stand.ssh(
        f"mkdir -p {own}/submissions {own}/bin; {touch}; "
        f"echo '#!/bin/sh' > {own}/bin/squeue; chmod +x {own}/bin/squeue"
    )
    look_up = submitter(None, replace(OUTPUTS, code_path=own))._script(wanted)

    def is_found() -> bool:
        done = stand.ssh(f"PATH={own}/bin:$PATH; {look_up} < /dev/null")
        assert done.returncode == 0, done.stderr
        if not done.stdout.strip():  # accounting is late, and a record of no job is removed
            stand.ssh(touch)
        return done.stdout.strip() == job

    stand.wait(is_found, f"the key of {job} in sacct")


@pytest.mark.feature("S002-72")
def test_accounting_knows_who_held_which_nodes(stand: Stand) -> None:
    """What `soperator cost spend` prices, from sacct and for a job that never started."""

    class Login:
        def run(self, command: str, *, stdin: bytes = b"") -> Result:
            done = stand.ssh(command)
            return Result(
                command=command, exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr
            )

    job = stand.submit("true", "-N2", "--gpus-per-node=1")
    held = stand.submit("true", "--hold")
    stand.output(job)
    stand.ssh(f"scancel {held}")
    now = datetime.now(UTC)

    def known() -> dict[str, JobUse]:
        found = slurm.uses(
            Login(), "key", since=now - timedelta(hours=1), until=now + timedelta(hours=1),
            ids=[held],
        )  # fmt: skip
        assert found.has_accounting
        return {use.job_id: use for use in found.uses}

    def ended() -> bool:
        return all(each in known() and known()[each].is_finished for each in (job, held))

    stand.wait(ended, f"sacct of {job} and {held}")
    use = known()[job]
    (run,) = use.runs
    assert (use.user, use.partition, use.gpus_per_node) == ("root", "main", 1)
    assert run.nodes == ("worker-0", "worker-1")
    assert run.ended_at is not None
    assert abs(run.ended_at - now) < timedelta(minutes=1)
    assert known()[held].runs == ()


@pytest.mark.feature("S000-08", "S001-85", "S002-04", "S003-15")
def test_declared_paths_are_shared_between_login_and_workers(stand: Stand) -> None:
    assert stand.ssh("echo hello > /home/greeting && echo bye > /root/note").returncode == 0
    job = stand.submit("cat /home/greeting /root/note; findmnt -no TARGET,FSTYPE /mnt/ram")
    assert stand.output(job).split() == ["hello", "bye", "/mnt/ram", "tmpfs"]


@pytest.mark.feature("S000-77")
def test_soperators_own_memory_is_on_every_node_with_a_folder_for_each_job(stand: Stand) -> None:
    """Nobody declares it: of slurmd's memory on workers, of sshd's on the login node."""
    size = "findmnt -bno FSTYPE,SIZE /mnt/memory"
    assert stand.ssh(size).stdout.split() == ["tmpfs", str(9 * 2**30)]
    folder = "cd /mnt/memory/job_$SLURM_JOB_ID && stat -c %a . && echo x > kept && ls"
    script = f"echo $({size}; {folder})"  # in one write: the nodes share srun's pipe
    job = stand.submit(f"srun --ntasks-per-node=1 bash -c {shlex.quote(script)}", "-N2")
    assert stand.output(job).split() == ["tmpfs", str(350 * 2**30), "777", "kept"] * 2
    gone = stand.submit("srun --ntasks-per-node=1 ls /mnt/memory", "-N2")
    # A job holds its nodes until the epilog has ended on them.
    assert stand.output(gone).split() == [f"job_{gone}"] * 2


def test_a_job_has_a_folder_in_memory_until_its_end(stand: Stand) -> None:
    """As Soperator's prolog and epilog do: what a job leaves in /mnt/memory/job_ID goes with it."""
    own = "/mnt/memory/job_$SLURM_JOB_ID"
    job = stand.submit(f"stat -c %a {own}; touch {own}/left", "-w worker-0")
    assert stand.output(job).strip() == "777"
    ls = "for folder in /mnt/memory/*; do basename $folder; done"

    def folders() -> tuple[str, list[str]]:
        looking = stand.submit(ls, "-w worker-0")
        return looking, stand.output(looking).split()

    def own_alone() -> bool:
        looking, found = folders()
        return found == [f"job_{looking}"]

    stand.wait(own_alone, f"the end of /mnt/memory/job_{job}")


def test_the_health_program_removes_folders_that_no_epilog_removed(stand: Stand) -> None:
    old, young = "/mnt/memory/job_999999", "/mnt/memory/job_999998"
    make = f"mkdir -p {old} {young} /mnt/memory/mine && touch -d '2 minutes ago' {old}"
    check = "SLURMD_NODENAME=worker-0 /opt/slurm_scripts/hc_program.sh"
    ls = "ls -d /mnt/memory/job_99999? /mnt/memory/mine"
    job = stand.submit(f"{make}; {check}; {ls}; rm -rf {young} /mnt/memory/mine", "-w worker-0")
    assert stand.output(job).split() == [young, "/mnt/memory/mine"]
    # 25.11 writes `Prolog[0]`, 22.05 `Prolog`.
    shown = stand.ssh("scontrol show config | grep -E '^(Prolog|Epilog|HealthCheck)'").stdout
    for name in ("prolog", "epilog", "hc_program"):
        assert f"/opt/slurm_scripts/{name}.sh" in shown


def test_the_host_keeps_its_own_directories(stand: Stand) -> None:
    before = {path: sorted(Path(path).iterdir()) for path in ("/mnt", "/home", "/opt", "/")}
    done = stand.ssh("touch /mnt/new /home/new /root/new-in-jail /tmp/new-in-pod; mkdir /data")
    assert {path: sorted(Path(path).iterdir()) for path in before} == before
    assert not Path("/root/new-in-jail").exists()
    assert not Path("/tmp/new-in-pod").exists()
    assert "/mnt/new" not in done.stderr
    assert stand.ssh("touch /usr/new").returncode != 0
    mounts = Path("/proc/self/mountinfo").read_text()
    assert str(stand.cloud.runtime.folder) not in mounts


@pytest.mark.feature("S000-58", "S002-24", "S002-29", "S003-65")
def test_a_password_opens_nothing(stand: Stand) -> None:
    refused = stand.ssh("true", "-o", "PubkeyAuthentication=no")
    assert "Permission denied (publickey)" in refused.stderr


@pytest.mark.parametrize("name", ["worker-0", at_night("worker-1")])
def test_a_killed_worker_comes_back(stand: Stand, name: str) -> None:
    killed = stand.pid(f"slurm-{name}")
    os.kill(killed, signal.SIGKILL)
    stand.wait(lambda: stand.pid(f"slurm-{name}") not in (0, killed), f"new {name}")
    stand.wait_idle("worker-[0-1]")


@dataclass
class Work:
    """A job that runs until it is told to end, and one that waits in the queue."""

    running: str
    waiting: str
    started_at: str


@pytest.fixture(scope="module")
def work(stand: Stand) -> Work:
    script = "touch begun; while [ ! -e enough ]; do sleep 0.1; done; echo survived"
    running = stand.submit(script, "-w worker-1")
    stand.wait(lambda: stand.ssh("cat /mnt/data/begun").returncode == 0, "the job")
    waiting = stand.submit("true", "--hold -J kept-through-kills")
    # slurmctld answers `sbatch` first and writes its state up to 6 seconds later
    # (SAVE_MAX_WAIT of its state_save.c): a kill in between loses the job that it accepted.
    state = stand.cloud.state.local / "filesystems" / "computefilesystem-controller-spool/job_state"
    stand.wait(lambda: b"kept-through-kills" in state.read_bytes(), f"{waiting} in {state}")
    return Work(running, waiting, _started_at(stand, running))


@pytest.mark.feature("S000-124", "S002-62")
@pytest.mark.parametrize("name", [*CENTRAL, RECONCILER, "kube-apiserver", "etcd"])
def test_a_running_job_and_the_queue_survive_a_kill(stand: Stand, work: Work, name: str) -> None:
    """Not by being started again: the job's start is the one that it had."""
    recorded = f"slurm-{name}" if name in CENTRAL else name
    killed = stand.pid(recorded)
    os.kill(killed, signal.SIGKILL)
    if name == RECONCILER:
        stand.wait(lambda: stand.pid(RECONCILER) == 0, "the end of the reconciler")
        stand.start_reconciler()
    elif name not in CENTRAL:
        api_server.start(stand.cloud.kube)
    stand.wait(lambda: stand.pid(recorded) not in (0, killed), f"new {name}")
    queue = {work.running: "RUNNING", work.waiting: "PENDING"}

    def listed() -> dict[str, str]:
        lines = stand.ssh("squeue -h -o '%i %T'").stdout.splitlines()
        return dict(line.split() for line in lines)

    stand.wait(lambda: listed() == queue, f"the queue after {name}")
    assert _started_at(stand, work.running) == work.started_at


def test_the_job_that_survived_it_all_ends_well_and_is_accounted_for(
    stand: Stand, work: Work
) -> None:
    stand.ssh(f"touch /mnt/data/enough; scancel {work.waiting}")
    assert stand.output(work.running).strip() == "survived"
    command = f"sacct -n -X -P -j {work.running} -o State,ExitCode"
    stand.wait(lambda: stand.ssh(command).stdout.strip() == "COMPLETED|0:0", "its accounting")
    stand.wait_idle("worker-[0-1]")


def _started_at(stand: Stand, job: str) -> str:
    """When a job began, as Slurm tells it."""
    return stand.ssh(f"squeue -h -j {job} -o %S").stdout.strip()


@pytest.mark.feature("S002-62")
def test_everything_comes_back_after_a_kill_of_everything(stand: Stand) -> None:
    for recorded in process.all_processes(stand.cloud.state.run):
        if recorded.name == RECONCILER or recorded.name.startswith("slurm-"):
            os.kill(recorded.pid, signal.SIGKILL)
    stand.wait(lambda: stand.pid(RECONCILER) == 0, "the end of the reconciler")
    stand.start_reconciler()
    stand.wait_idle("worker-[0-1]")
    assert stand.ssh("cat /home/greeting").stdout.strip() == "hello"


def test_a_job_survives_the_end_of_its_slurmd(stand: Stand) -> None:
    job = stand.submit(
        "touch started; while [ ! -e go ]; do sleep 0.1; done; echo survived", "-w worker-0"
    )
    stand.wait(lambda: stand.ssh("cat /mnt/data/started").returncode == 0, "the job")
    killed = stand.pid("slurm-worker-0")
    os.kill(killed, signal.SIGKILL)
    stand.wait(lambda: stand.pid("slurm-worker-0") not in (0, killed), "new worker-0")
    stand.ssh("touch /mnt/data/go")
    assert stand.output(job).strip() == "survived"


def test_a_job_that_runs_while_everything_stops_waits_for_the_next_start(stand: Stand) -> None:
    job = stand.submit("touch running; sleep 1000", "-N2")
    stand.wait(lambda: stand.ssh("cat /mnt/data/running").returncode == 0, "the job")
    process.stop(RECONCILER, stand.cloud.state.run)
    stand.cloud.runtime.stop_all()
    stand.start_reconciler()
    stand.wait_idle("worker-[0-1]")
    state = f"squeue -h -j {job} -o %T"
    # Slurm 25.11 calls it COMPLETING until its nodes have said that it ended there.
    stand.wait(lambda: stand.ssh(state).stdout.strip() == "PENDING", f"{job} in the queue")
    stand.ssh(f"scancel {job}")


class Door:
    """The login node as the job commands see it."""

    def __init__(self, stand: Stand) -> None:
        self._stand = stand

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        done = self._stand.ssh(command)
        return Result(
            command=command, exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr
        )


@pytest.mark.feature("S003-70")
def test_a_drained_worker_takes_no_job_until_it_is_let_on_again(stand: Stand) -> None:
    stand.wait_idle("worker-[0-1]")
    door = Door(stand)
    job = stand.submit("sleep 1000", "-w worker-1 -J held")
    stand.wait(lambda: bool(jobs_on(door, ["worker-1"])), "the job on worker-1")
    assert jobs_on(door, ["worker-0"]) == ()
    (held,) = drain(door, ["worker-1"], "fan 2 is dead")
    assert (held.id, held.name, held.where) == (job, "held", "worker-1")
    assert "fan 2 is dead" in stand.ssh("sinfo -R -h -o %E").stdout
    waiting = stand.submit("true", "-w worker-1")
    told: list[str] = []

    def end_it(jobs: tuple[Job, ...]) -> None:
        told.extend(each.id for each in jobs)
        stand.ssh(f"scancel {job}")

    await_idle(door, ["worker-1"], on_change=end_it)
    assert told == [job]
    assert stand.ssh(f"squeue -h -j {waiting} -o %T").stdout.strip() == "PENDING"
    resume(door, ["worker-1"])
    stand.wait(lambda: stand.ssh(f"squeue -h -j {waiting}").stdout.strip() == "", "the job's end")
    stand.wait_idle("worker-[0-1]")


def test_a_node_group_that_shrinks_takes_its_worker_along(stand: Stand) -> None:
    stand.set_nodes(node_groups(num_workers=1))
    stand.wait(lambda: stand.pid("slurm-worker-0") != 0, "worker-0")
    run_dir = stand.cloud.state.run
    stand.wait(lambda: not process.alive("slurm-worker-1", run_dir), "the end of worker-1")
    stand.set_nodes(node_groups())
    stand.wait_idle("worker-[0-1]")


def test_deletion_leaves_no_process_and_no_mount(stand: Stand) -> None:
    stand.submit("sleep 1000", "-N2")
    stand.delete()
    stand.wait(lambda: not _running(stand), "the end of the daemons")
    assert pods.processes(stand.cloud.runtime.folder) == []


def _running(stand: Stand) -> list[str]:
    recorded = process.all_processes(stand.cloud.state.run)
    return [item.name for item in recorded if item.alive and item.name.startswith("slurm-")]
