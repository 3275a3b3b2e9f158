"""Schedules through the user's door: what `pulumi up` delivers submits pipelines, and stays whole.

The invariant: a schedule submits what its owner declared, and nobody else reaches it.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from infra.clients.ssh import Connection, Result
from infra.jobs import follow
from infra.render.delivery import schedule_files
from tests import another_user
from tests.local.jobs_cluster import JobsCluster, probe_cluster, release

pytestmark = pytest.mark.local


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobsCluster]:
    with probe_cluster(tmp_path_factory.mktemp("schedules")) as made:
        yield made


@pytest.fixture
def connection(cluster: JobsCluster) -> Iterator[Connection]:
    with Connection(cluster.outputs.endpoint(cluster.identity)) as opened:
        cluster.deliver(release(cluster.spec))
        yield opened


@pytest.mark.feature("S000-11", "S000-116", "S002-85")
def test_a_schedule_submits_its_pipeline_from_inside_a_job(
    cluster: JobsCluster, connection: Connection
) -> None:
    """As scrontab runs it: a small job that submits the others, each after what it needs.

    While one of the last time is not over it submits nothing, so that one run follows the other.
    """
    script = f"{cluster.outputs.code_path}/current/schedules/second"
    line = f"cd /tmp && srun --ntasks=1 --cpus-per-task=1 --mem=64M bash {script}"
    held = connection.run("sbatch --parsable --hold --job-name=probe -o /dev/null --wrap=true")
    last = held.stdout.strip()
    said = connection.run(line)
    assert said.ok, said.stderr
    words = f"soperator: second is not submitted: probe ({last}) of the last time is not over\n"
    assert said.stdout == words
    assert connection.run(f"scancel {last}").ok
    said = connection.run(line)
    assert said.ok, said.stderr
    ids = re.findall(r"is job (\d+)", said.stdout)
    ended = [
        follow.follow(
            connection, cluster.outputs.log_path(name, number), number, write=lambda _chunk: None
        )
        for name, number in zip(("probe", "second"), ids, strict=True)
    ]
    assert [job.state for job in ended] == ["COMPLETED", "COMPLETED"]


def test_a_neighbour_exchanges_nothing_of_a_schedule_nor_keeps_it_back(
    cluster: JobsCluster, connection: Connection
) -> None:
    """Not its file, a folder above it, the link to what is live, its log; nor by a job's name."""
    code, logs = cluster.outputs.code_path, cluster.outputs.places["logs"]
    schedules, mine = f"{code}/current/schedules", "/tmp/mine"
    tries = (
        f"echo id > {schedules}/second",
        f"rm -f {schedules}/second",
        f"mv -T {mine} {schedules}/second",
        f"mv -T {schedules} {schedules}.other",
        f"ln -sfn {mine} {code}/current",
        f"mv -T {code}/releases {code}/releases.other",
        f"mv -T {code} {code}.other",
        f"mv -T {Path(code).parent} {Path(code).parent}.other",
        f"echo id > {code}/jobs/second",
        # What `up` writes on its way to a scrontab, which root reads.
        f"ln -s {mine} {code}/.scheduled.new",
        f"ln -s {mine} {logs}/schedule-second_1.log",
        f"mv -T {logs} {logs}.other",
        "mv -T /home/deployer /home/deployer.other",
    )
    lies = f"find {code} {logs} -printf '%p %l %u %m %s %C@\\n' | sort"
    with cluster.root() as root:

        def neighbour(command: str) -> Result:
            become = f"setpriv --reuid={another_user.UID} --regid={another_user.UID}"
            return root.run(f"cd /tmp && {become} --clear-groups bash -c {shlex.quote(command)}")

        before = root.run(lies).stdout
        assert neighbour(f"echo 'echo soperator: second is job 1' > {mine}").ok
        for command in tries:
            done = neighbour(command)
            assert (done.ok, "ermission denied" in done.stderr) == (False, True), command
        assert root.run(lies).stdout == before
        # Whose job of these names is not over, the schedule would wait for, were it the deployer's.
        waiting = neighbour("sbatch --parsable --hold --job-name=probe -o /dev/null --wrap=true")
        assert waiting.ok, waiting.stderr
        said = connection.run(
            f"cd /tmp && srun --ntasks=1 --cpus-per-task=1 --mem=64M bash {schedules}/second"
        )
        root.run(f"scancel {waiting.stdout.strip()}; rm {mine}")
    ids = re.findall(r"is job (\d+)", said.stdout)
    assert len(ids) == 2, said
    follow.follow(
        connection, cluster.outputs.log_path("second", ids[1]), ids[1], write=lambda _chunk: None
    )


@pytest.mark.feature("S000-116", "S002-85", "S004-30")
def test_a_schedule_submits_at_its_time_until_it_is_taken_out(
    cluster: JobsCluster, connection: Connection
) -> None:
    """Each run is a job of its own; what Slurm keeps of a schedule is no run of it."""
    if not connection.run("command -v scrontab").ok:
        pytest.skip(
            "needs a Slurm with scrontab, which the project does not ship: SOPERATOR_SLURM=PREFIX "
            "(docs/contracts/local-stack.md)"
        )
    jobs = tuple(
        replace(job, schedule="* * * * *" if job.name == "probe" else None)
        for job in cluster.spec.jobs
    )
    spec = replace(cluster.spec, jobs=jobs)
    own = "0 0 1 1 * /bin/true"
    assert connection.run("scrontab -", stdin=f"{own}\n".encode()).ok
    before = set(_jobs_named(connection, "probe"))
    texts = {path: text.encode() for path, text in schedule_files(spec).items()}
    cluster.deliver(release(cluster.spec) | texts)
    deadline_s = time.monotonic() + 180
    while not (made := set(_jobs_named(connection, "probe")) - before):
        assert time.monotonic() < deadline_s, connection.run("squeue -a; scrontab -l").stdout
        time.sleep(1)
    (job,) = made
    received = bytearray()
    path = cluster.outputs.log_path("probe", job)
    assert follow.follow(connection, path, job, write=received.extend).status == 0
    assert json.loads(received.decode().splitlines()[0])["rank"] == 0
    cluster.deliver(release(cluster.spec))
    assert connection.run("scrontab -l").stdout.strip() == own
    assert _jobs_named(connection, "schedule-probe", "--states=PENDING") == []
    assert connection.run("scrontab -r").ok


def _jobs_named(connection: Connection, name: str, *options: str) -> list[str]:
    states = " ".join(options) or "--states=all"
    return connection.run(f"squeue -h --name={name} {states} -o %A").stdout.split()
