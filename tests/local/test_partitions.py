"""Two partitions of different nodesets, as `l40s-dev` declares them, on a real Slurm."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from infra.clients import slurm
from infra.clients.ssh import Connection
from infra.jobs.history import Submission
from infra.render.delivery import hash_files
from stacks.load import load_stack
from stacks.spec.slurm import JobSpec
from tests.local.jobs_cluster import (
    JobsCluster,
    finish,
    probe_spec,
    release,
    running_cluster,
)
from tests.unit.jobs.raw import submit

pytestmark = pytest.mark.local


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobsCluster]:
    folder = tmp_path_factory.mktemp("partitions")
    identity = folder / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", identity], check=True)
    public = Path(f"{identity}.pub").read_text().strip()
    environ = {"SOPERATOR_SSH_PUBLIC_KEY_FILE": f"{identity}.pub"}
    declared = load_stack("l40s-dev", environ=environ).slurm.partitions
    with running_cluster(folder, public, identity, partitions=declared) as made:
        probe = probe_spec(made.spec)
        whole = JobSpec(
            name="whole",
            module="workloads.probe",
            recipe="none",
            partition="train",
            cpus_per_task=64,
        )
        serve = replace(whole, name="serve", partition="serve")
        slurm_spec = replace(probe.slurm, partitions=declared)
        (worker,) = probe.nodes.workers
        nodes = replace(probe.nodes, workers=(worker, replace(worker, name="worker-serve")))
        jobs = (*(replace(job, partition="train") for job in probe.jobs), whole, serve)
        spec = replace(probe, slurm=slurm_spec, nodes=nodes, jobs=jobs)
        outputs = replace(made.outputs, jobs={job.name: "" for job in spec.jobs})
        yield replace(made, spec=spec, outputs=outputs)


@pytest.mark.feature("S000-124")
def test_a_long_queue_for_training_holds_up_no_job_of_the_other_partition(
    cluster: JobsCluster,
) -> None:
    files = release(cluster.spec)
    with Connection(cluster.outputs.endpoint(cluster.identity)) as connection:
        cluster.deliver(files)

        def start(job: str, *sets: str) -> Submission:
            outputs, code = cluster.outputs, hash_files(files)
            return submit(connection, outputs, job, code_hash=code, sets=sets)

        looked = "/mnt/data/looked"
        training = [start("whole", each) for each in (f"until={looked}", "sleep=2", "sleep=2")]
        served = start("serve")
        assert finish(connection, served)[0] == 0
        queue = {job.id: job for job in slurm.recent(connection, days=1)}
        assert [queue[each.job_id].state for each in training[1:]] == ["PENDING", "PENDING"]
        assert queue[served.job_id].where == "worker-1"
        cluster.path(looked).touch()
        assert all(finish(connection, each)[0] == 0 for each in training)
        ended = [slurm.find(connection, each.job_id) for each in training]
    assert {job.where for job in ended} == {"worker-0"}
    starts, ends = [
        [str(time) for time in times]
        for times in zip(*((job.started, job.ended) for job in ended), strict=True)
    ]
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False)), "one by one"
