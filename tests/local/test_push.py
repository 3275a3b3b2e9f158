"""The real SSH route: a push, a fetch from a stand-in hub, and what people and tools type there."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from infra.clients import slurm
from infra.clients.errors import JobsError
from infra.clients.ssh import Connection
from infra.jobs.transfer import destination, fetch, push
from infra.operate.support_bundle import gather, parts_of_cluster
from infra.render.delivery import code_files
from infra.state import CHECKOUT
from tests.local.jobs_cluster import JobsCluster, running_cluster
from tests.unit.test_runbooks import ON_NODES, SLURM, of
from tests.workloads.stand_in_hub import StandIn, serving

pytestmark = pytest.mark.local
SECRET = "hf_secret"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobsCluster]:
    folder = tmp_path_factory.mktemp("push")
    identity = folder / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", identity], check=True)
    public = Path(f"{identity}.pub").read_text().strip()
    with running_cluster(folder, public, identity) as made:
        yield replace(made, spec=replace(made.spec, jobs=()))


@pytest.fixture
def connection(cluster: JobsCluster) -> Iterator[Connection]:
    with Connection(cluster.outputs.endpoint(cluster.identity)) as opened:
        yield opened


@pytest.mark.feature("S002-31")
def test_a_pushed_folder_lies_in_its_place_and_a_second_push_sends_nothing(
    cluster: JobsCluster, connection: Connection, tmp_path: Path
) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.jsonl").write_bytes(b'{"user": "q"}\n' * 3_000_000)
    target = destination(cluster.outputs.places, "data", name="rows")
    said: list[str] = []
    push(connection, tmp_path / "rows", target, log=said.append)
    assert said[-1].startswith("1 of 1 files sent")
    arrived = cluster.path(target) / "a.jsonl"
    assert arrived.read_bytes() == (tmp_path / "rows" / "a.jsonl").read_bytes()
    assert push(connection, tmp_path / "rows", target, log=said.append) == 0
    assert said[-1].startswith("0 of 1 files sent")


def test_the_login_node_fetches_a_gated_model_with_a_token_that_no_process_shows(
    cluster: JobsCluster, connection: Connection
) -> None:
    cluster.deliver(code_files(CHECKOUT, cluster.spec))
    state = StandIn(
        repos={"models/owner/tiny": {"config.json": b"{}", "weights.bin": b"w" * 100_000}},
        licences={"models/owner/tiny": "apache-2.0"},
        gated={"models/owner/tiny"},
        token=SECRET,
    )
    target = destination(cluster.outputs.places, "model", name="owner/tiny")
    said = bytearray()

    def bring(environ: dict[str, str]) -> None:
        fetch(
            connection,
            code_path=cluster.outputs.code_path,
            source="hf://owner/tiny",
            target=target,
            environ=environ,
            write=said.extend,
        )

    with serving(state):
        with pytest.raises(JobsError, match=r"hf://owner/tiny: not there \(exit 65\)"):
            bring({"HF_ENDPOINT": state.url})
        assert b"owner/tiny is gated: accept its terms" in said
        bring({"HF_ENDPOINT": state.url, "HF_TOKEN": SECRET})
    assert b"2 files, 0.00 GiB, licence: apache-2.0" in said
    assert (cluster.path(target) / "weights.bin").read_bytes() == b"w" * 100_000
    assert SECRET.encode() not in said
    logs = [path for path in cluster.folder.rglob("*.log") if path.is_file()]
    assert all(SECRET.encode() not in path.read_bytes() for path in logs)


@pytest.fixture
def running_job(cluster: JobsCluster, connection: Connection) -> Iterator[str]:
    """The id of a job on both nodes that waits, with a log where logs are; cancelled at the end."""
    log = f"{cluster.outputs.places['logs']}/%x_%j.log"
    options = ["--nodes=2", "--job-name=waits", f"--output={log}", "--wrap", "echo up; sleep 600"]
    made = connection.run(shlex.join(["sbatch", "--parsable", *options]))
    job_id = slurm.submitted_id(made.stdout)
    deadline = time.monotonic() + 60
    try:
        while slurm.find(connection, job_id).state != "RUNNING":
            assert time.monotonic() < deadline, "the job did not start within a minute"
            time.sleep(0.1)
        yield job_id
    finally:
        slurm.cancel(connection, [job_id])


@pytest.mark.feature("S001-85", "S001-96", "S003-70")
def test_commands_of_the_runbooks_run_on_a_real_cluster(
    cluster: JobsCluster, connection: Connection, running_job: str
) -> None:
    """All that need no GPU, no database and no priority plugin, which this cluster lacks."""
    filled = {"12": running_job, "--jobid=12": f"--jobid={running_job}"}
    filled |= {"--job=12": f"--job={running_job}", "PATH": cluster.outputs.places["chkpt"]}
    lines = {
        shlex.join(filled.get(word, word) for word in words)
        for _, words in of(*SLURM, *ON_NODES)
        if words[0] not in {"sacct", "sprio"} and not {"nvidia-smi", "ibstat", "ping"} & {*words}
    }
    assert len(lines) > 6
    assert any(line.startswith("srun ") for line in lines)
    done = {line: connection.run(line) for line in lines}
    assert not [each for each in done.values() if not each.ok]
    # A step without its number of nodes asks the first one, and the page compares all.
    (names,) = (each.stdout for line, each in done.items() if line.endswith(" hostname"))
    assert {*names.split()} == {"worker-0", "worker-1"}
    (mounts,) = (
        each.stdout for line, each in done.items() if line.startswith("srun ") and "findmnt" in line
    )
    assert mounts.count("TARGET") == 2


@pytest.mark.feature("S001-87")
def test_each_node_of_a_job_reaches_the_other_by_the_ping_of_the_page(
    connection: Connection, running_job: str
) -> None:
    """Seed 001 pings an address that a person looks up; a step inside the job knows the names."""
    if shutil.which("ping") is None:
        pytest.skip("needs the Debian package iputils-ping (`make setup`)")
    (asked,) = (words for _, words in of("srun") if "ping" in words)
    step = [*asked[:-1], "NODE"]
    step[step.index("--jobid=12")] = f"--jobid={running_job}"
    line = shlex.join(step)
    for node in ("worker-0", "worker-1"):
        done = connection.run(line.replace("NODE", node))
        assert done.ok, done.stderr
        answered = done.stdout.count("3 packets transmitted, 3 received, 0% packet loss")
        assert answered == 2, f"both nodes reach {node}"
    assert not connection.run(line.replace("NODE", "worker-9")).ok, "of no node of this cluster"


def test_the_cluster_part_of_a_support_bundle_is_there(
    cluster: JobsCluster, connection: Connection, running_job: str
) -> None:
    slurm.cancel(connection, [running_job])
    parts = parts_of_cluster(lambda: (cluster.outputs, connection))
    found = {part.name: gather(part) for part in parts}
    assert "worker-0" in found["slurm/nodes.txt"]
    assert "SlurmctldPort" in found["slurm/config.txt"]
    assert "/mnt/chkpt" in found["slurm/disks.txt"]
    assert "up" in found["slurm/logs.txt"].splitlines()
    assert all(found.values()), found
