"""One node that trains by day and serves by night, by two schedules of a real Slurm.

A day is three minutes here. The invariant: each gives the node away at its time limit without
being told by anybody, the training with what it has learnt, and goes on from there the next day.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import openai
import pytest

from infra.clients import slurm
from infra.clients.ssh import Connection
from infra.jobs import follow, server
from infra.render.delivery import code_files
from infra.state import CHECKOUT
from stacks.spec import StackSpec
from stacks.spec.slurm import JobSpec
from tests.local import test_serve_job as serving
from tests.local.jobs_cluster import JobsCluster, running_cluster

pytestmark = [pytest.mark.local, pytest.mark.timeout(1500)]
_SHIFT = timedelta(minutes=3)
# All GPUs of the node each: two of them never run at once.
_JOB = JobSpec(
    name="finetune",
    module="workloads.train",
    recipe="day",
    nodes=1,
    gpus_per_node=2,
    cpus_per_task=1,
    time_limit="00:03:00",
    save_s=45,
    args=("--resume", "auto"),
)
_SERVE = replace(
    _JOB,
    name="serve",
    module="workloads.serve",
    recipe="smollm2_135m_serve_cpu",
    args=tuple(word for each in serving._SETS for word in ("--set", each)),
)
# Longer than any day, and saved when it is told to stop only.
_RECIPE: dict[str, Any] = {
    "model": "generated/bert",
    "train": {
        "dataset": "generated",
        "task": "text_classification",
        "method": "full",
        "dtype": "fp32",
        "sequence_length": 32,
        "micro_batch_size": 8,
        "gradient_accumulation": 4,
        "max_steps": 1_000_000,
        "learning_rate": 1e-3,
        "checkpoint_every": 0,
        "cpu_threads": 1,
    },
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[JobsCluster]:
    identity = tmp_path / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", identity], check=True)
    public = Path(f"{identity}.pub").read_text().strip()
    with running_cluster(tmp_path, public, identity, num_workers=1) as made:
        yield made


@pytest.mark.feature("S004-30")
def test_a_training_gives_its_node_to_a_server_by_night_and_goes_on_by_day(
    cluster: JobsCluster,
) -> None:
    with Connection(cluster.outputs.endpoint(cluster.identity)) as connection:
        if not connection.run("command -v scrontab").ok:
            pytest.skip(
                "needs a Slurm with scrontab, which the project does not ship: "
                "SOPERATOR_SLURM=PREFIX (docs/contracts/local-stack.md)"
            )
        serving._make_model(cluster.path("/mnt/model/tiny"))
        # The cluster's clock is this machine's, in this machine's zone.
        days = [datetime.now().astimezone() + timedelta(seconds=120) + _SHIFT * n for n in range(3)]
        spec = _scheduled(cluster.spec, days)
        outputs = replace(cluster.outputs, jobs=dict.fromkeys(("finetune", "serve"), ""))
        recipe = {"workloads/recipes/day.json": json.dumps(_RECIPE).encode()}
        cluster.deliver(code_files(CHECKOUT, spec) | recipe)

        def ended(job: str, name: str) -> tuple[str, dict[str, Any]]:
            path = cluster.path(outputs.log_path(name, job))
            said = "its time limit is reached"
            _wait(lambda: path.is_file() and said in path.read_text(), connection, path)
            follow.follow(connection, outputs.log_path(name, job), job, write=lambda chunk: None)
            record = cluster.path(outputs.results_path(job)) / "run_record.json"
            return path.read_text(), json.loads(record.read_text())

        first = _submitted(connection, "finetune", set())
        log, record = ended(first, "finetune")
        assert record["exit_code"] == 75
        saved, step = re.findall(r"saved (/\S+/checkpoint-(\d+))$", log, re.MULTILINE)[-1]
        assert (cluster.path(saved) / "_SUCCESS").is_file()

        night = _submitted(connection, "serve", set())
        address = server.wait_until_up(connection, outputs, night, log=lambda _: None)
        key = (cluster.path(outputs.results_path(night)) / "api_key").read_text().strip()
        with serving.tunnel(cluster, address.port) as url:
            client = openai.OpenAI(base_url=url, api_key=key, max_retries=20, timeout=60)
            answer = client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=5
            )
        assert answer.usage is not None
        assert answer.usage.completion_tokens
        assert _ids(connection, "finetune", "--states=RUNNING,COMPLETING") == set()
        _, record = ended(night, "serve")
        assert (record["outcome"], record["metrics"]["num_answers"]) == ("PASS", 1)

        second = _submitted(connection, "finetune", {first})
        path = cluster.path(outputs.log_path("finetune", second))
        goes_on = re.compile(rf"goes on after step {step} of 1000000(?s:.*) step {int(step) + 1}/")
        _wait(lambda: path.is_file() and goes_on.search(path.read_text()), connection, path)
        assert _ids(connection, "serve", "--states=RUNNING,COMPLETING") == set()
        cluster.deliver(code_files(CHECKOUT, cluster.spec) | recipe)
        slurm.cancel(connection, [second])


def _scheduled(spec: StackSpec, days: list[datetime]) -> StackSpec:
    """The stack with both jobs: training at the first and the last time, the server between."""
    day, night, again = (each.minute for each in days)
    train = replace(_JOB, schedule=f"{min(day, again)},{max(day, again)} * * * *")
    return replace(spec, jobs=(train, replace(_SERVE, schedule=f"{night} * * * *")))


def _submitted(connection: Connection, name: str, before: set[str]) -> str:
    """The job of that name which the schedule submits next."""
    found: set[str] = set()

    def is_there() -> bool:
        found.update(_ids(connection, name, "--states=all") - before)
        return bool(found)

    _wait(is_there, connection)
    (job,) = found
    return job


def _ids(connection: Connection, name: str, states: str) -> set[str]:
    return set(connection.run(f"squeue -h --name={name} {states} -o %A").stdout.split())


def _wait(is_so: Callable[[], object], connection: Connection, *logs: Path) -> None:
    deadline_s = time.monotonic() + 2 * _SHIFT.total_seconds()
    while not is_so():
        if time.monotonic() > deadline_s:
            queue = connection.run("squeue -a; scrontab -l; sinfo; date").stdout
            pytest.fail("\n".join([queue, *(each.read_text() for each in logs if each.is_file())]))
        time.sleep(0.5)
