"""A load test as a Slurm job beside the server that it asks, found as `soperator load` finds it.

The invariant: the record names the server's preset and engine, so the price of a chat is measured.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cost.run_record import parse_run_record
from infra.jobs import load_target, logs, slurm, submit, sync
from infra.jobs.ssh import Connection
from infra.local.state import CHECKOUT
from infra.render.archive import code_files, hash_files
from tests.local import test_serve_job as serving
from tests.local.jobs_cluster import JobsCluster, running_cluster

pytestmark = pytest.mark.local

_SETS = (
    "model=tiny",
    "load.sweep=[1, 2]",
    "load.requests_per_stream=2",
    "load.open_loop.requests=4",
    'load.prompt_tokens={"mean": 64}',
    'load.output_tokens={"mean": 8}',
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobsCluster]:
    folder = tmp_path_factory.mktemp("load")
    identity = folder / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", identity], check=True)
    public = Path(f"{identity}.pub").read_text().strip()
    with running_cluster(folder, public, identity) as made:
        serving._make_model(made.path("/mnt/model/tiny"))
        yield made


def test_a_load_test_measures_the_server_that_runs_beside_it(cluster: JobsCluster) -> None:
    jobs = tuple(job for job in cluster.spec.jobs if job.is_server or job.is_load_test)
    files = code_files(CHECKOUT, replace(cluster.spec, jobs=jobs))
    outputs = replace(cluster.outputs, jobs={job.name: "" for job in jobs})
    code_hash = hash_files(files)
    with Connection(outputs.endpoint(cluster.identity)) as connection:
        sync.send(connection, outputs.code_path, files)
        served = submit.submit(
            connection, outputs, "serve", code_hash=code_hash, sets=serving._SETS
        )
        results = cluster.path("/mnt/chkpt/results")
        serving._endpoint(results / served.job_id / "endpoint.json", cluster.path(served.log_path))
        server = load_target.choose(cluster.spec, slurm.recent(connection, days=1), None)
        assert server.id == served.job_id
        sets = (*load_target.job_settings(cluster.spec, server), *_SETS)
        loaded = submit.submit(connection, outputs, "load", code_hash=code_hash, sets=sets)
        ended = logs.follow(connection, loaded.log_path, loaded.job_id, write=lambda chunk: None)
        slurm.cancel(connection, [served.job_id])
    log = cluster.path(loaded.log_path).read_text()
    assert ended.status == 0, log
    path = results / loaded.job_id / "run_record.json"
    record = parse_run_record(path.read_text(), str(path))
    (worker,) = cluster.spec.nodes.workers
    assert record.hardware is not None
    assert (record.hardware.platform, record.hardware.preset) == (worker.platform, worker.preset)
    assert (record.kind, record.engine, record.model) == ("load", "transformers", "tiny")
    assert record.metrics["output_tokens_per_s"] > 0
    result = json.loads((results / loaded.job_id / "load.json").read_text())
    assert [each["concurrency"] for each in result["curve"]] == [1, 2, None, None]
    assert {each["num_ok"] for each in result["curve"]} == {8, 4}
    # The template's tokens are in the prompt that was asked for.
    assert result["curve"][0]["mean_prompt_tokens"] == 64
