"""One training job on one, two, then four nodes of a real Slurm: only its `nodes` change."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.clients.ssh import Connection
from infra.jobs import follow, transfer
from infra.render.delivery import code_files, hash_files
from infra.state import CHECKOUT
from stacks.spec.slurm import JobSpec
from tests.local.jobs_cluster import JobsCluster, running_cluster
from tests.unit.jobs.raw import submit

pytestmark = pytest.mark.local
FINETUNE = JobSpec(
    name="finetune",
    module="workloads.train",
    recipe="t5_full_1xcpu",
    gpus_per_node=1,
    cpus_per_task=1,
    time_limit="00:20:00",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobsCluster]:
    folder = tmp_path_factory.mktemp("four")
    identity = folder / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", identity], check=True)
    public = Path(f"{identity}.pub").read_text().strip()
    with running_cluster(folder, public, identity, num_workers=4) as made:
        yield made


def record_of(cluster: JobsCluster, nodes: int) -> dict[str, Any]:
    """The run record of the job on so many nodes, which must end well."""
    job = replace(FINETUNE, nodes=nodes)
    files = code_files(CHECKOUT, replace(cluster.spec, jobs=(job,)))
    outputs = replace(cluster.outputs, jobs={job.name: ""})
    with Connection(outputs.endpoint(cluster.identity)) as connection:
        transfer.send(connection, outputs, files)
        made = submit(connection, outputs, job.name, code_hash=hash_files(files), sets=())
        ended = follow.follow(connection, made.log_path, made.job_id, write=lambda chunk: None)
    assert ended.status == 0, cluster.path(made.log_path).read_text()
    return json.loads(
        (cluster.path(outputs.results_path(made.job_id)) / "run_record.json").read_text()
    )


@pytest.mark.nightly
@pytest.mark.feature("S004-26")
@pytest.mark.timeout(900)
def test_one_job_trains_on_one_then_two_then_four_nodes(cluster: JobsCluster) -> None:
    """Its ranks, and the rows of a step with them, grow as its nodes; the loss keeps its gate."""
    found = {nodes: record_of(cluster, nodes) for nodes in (1, 2, 4)}
    for nodes, record in found.items():
        assert (record["outcome"], record["world_size"]) == ("PASS", nodes)
        assert record["hardware"]["num_nodes"] == nodes
        assert record["metrics"]["last_loss"] < 0.3
        assert record["metrics"]["num_train_steps"] == 90
    tokens = {nodes: each["metrics"]["num_useful_tokens"] for nodes, each in found.items()}
    for nodes in (2, 4):
        assert tokens[nodes] == pytest.approx(nodes * tokens[1], rel=0.05)
