"""Lost ranks, lost nodes and preemption under real Slurm, srun and torchrun.

The job trains a tiny model with the product's own order of rows and checkpoints. Slurm is set as
Soperator sets it: KillOnBadExit=1. The invariant: the run continues from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.clients.ssh import Connection
from infra.render.sbatch import render_sbatch
from infra.state import CHECKOUT
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing
from stacks.spec.slurm import JobSpec, PartitionSpec
from tests.local.jobs_cluster import JobsCluster, running_cluster

_WAIT_S = 240.0
# A test waits several times, and a wait that is in vain has to say for what.
pytestmark = [pytest.mark.local, pytest.mark.timeout(4 * _WAIT_S)]
# Beside `main`: queues whose jobs make room for those of `urgent`, each in its own way.
PREEMPTED = {"requeue": "PreemptMode=REQUEUE", "cancel": "PreemptMode=CANCEL GraceTime=30"}
_QUEUES = (
    PartitionSpec(name="main", config="Default=YES State=UP OverSubscribe=YES"),
    PartitionSpec(name="urgent", config="State=UP PriorityTier=10 PreemptMode=OFF"),
    *(PartitionSpec(name=name, config=f"State=UP {mode}") for name, mode in PREEMPTED.items()),
)
# Trains until it is told to finish; says each step, where it runs and what it resumed from.
PROBE = """
import json, os, time, traceback
from pathlib import Path
from workloads.common.dist import world
from workloads.common.exit_codes import ExitCode, exit_code_of
from workloads.job import end
from workloads import tiny_run
from workloads.recipes.train import CheckpointConfig
from workloads.train.inputs import StopRequest

here_file = Path(os.environ["SOPERATOR_PLACE_CHKPT"], os.environ["SLURM_JOB_ID"])
code = ExitCode.OK
try:
    with StopRequest() as stop, world(cpu_threads=1, timeout_s=120) as here, stop.deferred():
        os.write(1, (json.dumps({"pid": os.getpid(), "rank": here.rank}) + "\\n").encode())
        run = tiny_run.make_run(here, here_file, resume="requeue", stop=stop, keep=3,
                                config=CheckpointConfig(timeout_s=120))
        run.checkpoints.load(run.state)
        while True:
            step = run.state.progress.step + 1
            (loss,) = run.train(step).values()
            if here.is_main:
                line = {"step": step, "world": here.world_size, "loss": loss}
                os.write(1, (json.dumps(line) + "\\n").encode())
            # Of all ranks or of none, whichever looked before the file was there.
            (is_long,) = here.sum([float(here_file.with_suffix(".long").exists())])
            if is_long:  # nothing but its own signal tells it
                os.write(1, (json.dumps({"long": here.rank}) + "\\n").encode())
                until = time.monotonic() + 120
                while not stop and time.monotonic() < until:
                    time.sleep(0.02)
                os.write(1, (json.dumps({"told" if stop else "slept": here.rank}) + "\\n").encode())
            finished = here.is_main and here_file.with_suffix(".finish").exists()
            stopped, done = here.sum([float(bool(stop)), float(finished)])
            if stopped or done or step % 2 == 0:
                run.checkpoints.save(run.state, step, loss=loss)
            if stopped:
                run.checkpoints.wait()
                code = ExitCode.PREEMPTED
            if stopped or done:
                break
            time.sleep(0.3)
        run.checkpoints.wait()
except Exception as error:
    traceback.print_exc()
    code = exit_code_of(error)
end(code)
"""


def release(spec: StackSpec) -> dict[str, bytes]:
    """The workloads as they are, the probe, and the jobs."""
    workloads = CHECKOUT / "workloads"
    files = {
        path.relative_to(CHECKOUT).as_posix(): path.read_bytes()
        for path in workloads.rglob("*")
        if path.suffix in (".py", ".json", ".tsv", ".yaml")
    }
    tiny = CHECKOUT / "tests" / "workloads" / "tiny_run.py"
    files |= {"workloads/__init__.py": b"", "workloads/probe.py": PROBE.encode()}
    files |= {"workloads/tiny_run.py": tiny.read_bytes()}
    return files | {f"jobs/{job.name}": render_sbatch(spec, job).encode() for job in spec.jobs}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobsCluster]:
    with faulty_cluster(tmp_path_factory.mktemp("faults")) as made:
        yield made


@contextlib.contextmanager
def faulty_cluster(folder: Path) -> Iterator[JobsCluster]:
    """Start a cluster of preemptible nodes whose jobs run the probe."""
    identity = folder / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", identity], check=True)
    public = Path(f"{identity}.pub").read_text().strip()
    # Slurm holds a requeued job back as long as its old credential is good: 2 minutes by default.
    with running_cluster(folder, public, identity, credential_s=15, partitions=_QUEUES) as made:
        # Looks every minute for nodes that came back in production. The last call is longer than
        # there: on a busy machine two nodes start far apart, and the first would begin alone.
        quick = {"SOPERATOR_LOOK_EVERY_S": "10", "SOPERATOR_LAST_CALL_S": "60"}
        job = JobSpec(
            name="faults",
            module="workloads.probe",
            recipe="none",
            nodes=2,
            gpus_per_node=1,
            time_limit="01:00:00",
            environment=quick,
        )
        elastic = replace(job, name="elastic", least_nodes=1)
        preempted = (replace(job, name=name, partition=name) for name in PREEMPTED)
        workers = tuple(
            replace(each, billing=Billing.PREEMPTIBLE) for each in made.spec.nodes.workers
        )
        nodes = replace(made.spec.nodes, workers=workers)
        slurm = replace(made.spec.slurm, partitions=_QUEUES)
        jobs = (job, elastic, *preempted)
        yield replace(made, spec=replace(made.spec, jobs=jobs, nodes=nodes, slurm=slurm))


@pytest.fixture
def connection(cluster: JobsCluster) -> Iterator[Connection]:
    with Connection(cluster.outputs.endpoint(cluster.identity)) as opened:
        cluster.deliver(release(cluster.spec))
        yield opened
        opened.run("scancel --me")
    # A test that failed leaves nodes down or drained: none of the next fails for it.
    cluster.bring_back()
    as_root(cluster, "scontrol update nodename=worker-0,worker-1 state=resume || true")


class Watched:
    """A submitted job, through its log and the queue."""

    def __init__(self, cluster: JobsCluster, connection: Connection, name: str) -> None:
        self._cluster, self._connection = cluster, connection
        code = cluster.outputs.code_path
        submitted = connection.run(f"cd {code} && sbatch --parsable jobs/{name}")
        assert submitted.exit_code == 0, submitted.stderr
        self.id = submitted.stdout.strip()
        self._log = cluster.path(cluster.outputs.log_path(name, self.id))

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.is_file() else ""

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]

    def steps(self) -> list[tuple[int, int]]:
        """(step, world size) of every step so far."""
        return [(line["step"], line["world"]) for line in self.lines() if "step" in line]

    def last_step(self) -> int:
        """The last step that it trained; 0 before the first."""
        return max((step for step, _ in self.steps()), default=0)

    def pids(self) -> dict[int, int]:
        """Pid by rank of those that started last."""
        return {line["rank"]: line["pid"] for line in self.lines() if "pid" in line}

    def run(self, command: str) -> str:
        done = self._connection.run(command)
        return done.stdout.strip()

    def wait(self, is_met: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _WAIT_S
        while not is_met():
            assert time.monotonic() < deadline, f"no {what}; log:\n{self.log[-6000:]}"
            time.sleep(0.2)

    def told(self) -> set[int]:
        """Ranks that a signal of their own told in a long step."""
        return {line["told"] for line in self.lines() if "told" in line}

    def begin_long_step(self) -> None:
        """Return when every rank is in a step that only its own signal ends."""
        self._mark("long").touch()
        self.wait(lambda: sum("long" in line for line in self.lines()) == 2, "a long step")
        self._mark("long").unlink()

    def _mark(self, name: str) -> Path:
        return self._cluster.path(self._cluster.outputs.places["chkpt"]) / f"{self.id}.{name}"

    def state(self) -> str:
        """As the queue has it."""
        return self.run(f"squeue -h -j {self.id} -o %T")

    def restarts(self) -> int:
        """How often it was put back into the queue."""
        found = re.search(r"Restarts=(\d+)", self.run(f"scontrol show job {self.id}"))
        return int(found[1]) if found else 0

    def is_back(self) -> bool:
        """Whether it runs again after a requeue."""
        return self.restarts() == 1 and self.state() == "RUNNING"

    def resumed_at(self) -> list[int]:
        return [int(step) for step in re.findall(r"resumed from \S+ at step (\d+)", self.log)]

    def finish(self) -> str:
        """Let it end by itself; the state that Slurm has of it."""
        self._mark("finish").touch()
        ended = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")

        def state() -> str:
            # The queue shows no job that is over.
            shown = self.run(f"scontrol show job {self.id}")
            found = re.search(r"JobState=(\w+)", shown)
            return found.group(1) if found else ""

        self.wait(lambda: state() in ended, "end of the job")
        return state()


def of_page(name: str) -> str:
    """The command of docs/preemptible.md that begins so, without its comment."""
    text = (CHECKOUT / "docs" / "preemptible.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf"(?m)^({name} .*?)(?: +#.*)?$", text)
    return found


def preempt(job: Watched) -> None:
    """Submit a job that needs every node, of a partition that goes before."""
    job.run("sbatch -p urgent --nodes=2 --exclusive --output=/dev/null --wrap 'sleep 2'")


def as_root(cluster: JobsCluster, command: str) -> None:
    with cluster.root() as connection:
        done = connection.run(command)
        assert done.ok, done.stderr


@pytest.mark.feature("S003-32")
@pytest.mark.nightly
def test_a_preempted_job_saves_goes_back_into_the_queue_and_resumes_where_it_was(
    cluster: JobsCluster, connection: Connection
) -> None:
    """A published trainer set a flag on SIGUSR1 that nobody read, and restarted at step 0."""
    job = Watched(cluster, connection, "faults")
    job.wait(lambda: len(job.steps()) >= 3, "three steps")
    job.run(of_page("scancel").replace("ID", job.id))
    job.wait(lambda: "back into the queue" in job.log, "requeue")
    last = job.steps()[-1][0]
    job.wait(job.is_back, "second start")
    job.wait(lambda: bool(job.resumed_at()), "resumption")
    assert job.resumed_at() == [last]
    assert job.finish() == "COMPLETED"
    done = [step for step, _ in job.steps()]
    assert done == list(range(1, len(done) + 1)), "no step twice, none left out"


@pytest.mark.nightly
@pytest.mark.parametrize("node", ["worker-0", "worker-1", "drained"])
def test_the_notice_of_a_node_reaches_every_rank_in_a_step_and_nothing_is_lost(
    cluster: JobsCluster, connection: Connection, node: str
) -> None:
    """A machine that is taken signals all it runs: srun and Slurm's daemon as well as the ranks.

    Ranks of other nodes heard of it with the sum of the next step. Nobody looked at a drain.
    """
    job = Watched(cluster, connection, "faults")
    job.wait(lambda: len(job.steps()) >= 3, "three steps")
    job.begin_long_step()
    drain = of_page("scontrol")
    if node == "drained":
        as_root(cluster, drain)
    else:
        cluster.lose(node, signal.SIGTERM)
    job.wait(lambda: job.told() == {0, 1}, "rank that is told")
    job.wait(lambda: "back into the queue" in job.log, "requeue")
    last = job.steps()[-1][0]
    cluster.bring_back()
    back = drain if node == "drained" else f"scontrol update nodename={node} state=drain"
    as_root(cluster, f"{re.sub('state=.*', 'state=resume', back)} || true")
    job.wait(job.is_back, "second start")
    job.wait(lambda: bool(job.resumed_at()), "resumption")
    assert job.resumed_at() == [last]
    assert "slept" not in job.log
    assert job.finish() == "COMPLETED"


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["requeue", "cancel"])
def test_slurms_own_preemption_reaches_every_rank_and_the_job_comes_back(
    cluster: JobsCluster, connection: Connection, mode: str
) -> None:
    """Without GraceTime the whole step is signalled, srun too; CANCEL forgets a job that waits."""
    job = Watched(cluster, connection, mode)
    job.wait(lambda: len(job.steps()) >= 3, "three steps")
    job.begin_long_step()
    preempt(job)
    job.wait(lambda: job.told() == {0, 1}, "rank that is told")
    last = job.steps()[-1][0]
    job.wait(lambda: bool(job.resumed_at()), "resumption")
    assert job.resumed_at() == [last]
    assert "slept" not in job.log


@pytest.mark.feature("S003-53")
def test_a_killed_rank_brings_all_ranks_back_to_the_last_checkpoint(
    cluster: JobsCluster, connection: Connection
) -> None:
    job = Watched(cluster, connection, "faults")
    job.wait(lambda: len(job.steps()) >= 3, "three steps")
    before = job.pids()
    os.kill(before[1], signal.SIGKILL)
    job.wait(lambda: bool(job.resumed_at()), "resumption")
    (resumed,) = job.resumed_at()
    assert resumed % 2 == 0
    assert resumed >= 2
    assert "all ranks start again from the last checkpoint" in job.log
    assert set(before.values()).isdisjoint(job.pids().values())
    assert job.finish() == "COMPLETED"
    assert "Restarts=0" in job.run(f"scontrol show job {job.id}")
    losses: dict[int, set[float]] = {}
    for line in job.lines():
        if "step" in line:
            losses.setdefault(line["step"], set()).add(line["loss"])
    # A step that was lost and done again has the loss it had: to the bit, the world is the same.
    assert all(len(values) == 1 for values in losses.values())


@pytest.mark.feature(
    "S001-38", "S001-84", "S003-01", "S003-28", "S003-30", "S003-32", "S003-50", "S003-52"
)
@pytest.mark.nightly
def test_a_job_goes_on_without_a_lost_node_and_takes_it_back_when_it_returns(
    cluster: JobsCluster, connection: Connection
) -> None:
    """A published launcher allowed 3 of 4 nodes, but Slurm ended the job with the first of them."""
    job = Watched(cluster, connection, "elastic")
    job.wait(lambda: len(job.steps()) >= 3, "three steps")
    assert {size for _, size in job.steps()} == {2}
    cluster.lose("worker-1")
    as_root(cluster, "scontrol update nodename=worker-1 state=down reason=power")
    job.wait(lambda: job.steps()[-1][1] == 1, "a step on one node")
    alone = job.resumed_at()[-1]
    assert alone >= 2
    cluster.bring_back()
    # It came back by itself where its daemon was first: Slurm refuses to resume such a node.
    as_root(cluster, "scontrol update nodename=worker-1 state=resume || true")
    job.wait(lambda: "2 nodes are there again, 1 are in use" in job.log, "growth")
    job.wait(lambda: "back into the queue" in job.log, "requeue")
    job.wait(job.is_back, "second start")
    job.wait(lambda: job.steps()[-1][1] == 2, "a step on two nodes")
    assert "elastic-checkpoint-" in job.log.split("resumed from ")[-1]
    assert job.finish() == "COMPLETED"
    done = [step for step, size in job.steps() if size == 1]
    assert done == list(range(alone + 1, done[-1] + 1)), "no step of the small run is lost"
