"""Jobs in an image: the lines of sbatch under NVIDIA's own pyxis and enroot, on a real Slurm.

The image is made here, since no registry is asked: programs and libraries of this machine under a
root of their own, and an fstab by which enroot brings Python and its packages in from the node.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from infra.clients import slurm
from infra.clients.pulumi import StackOutputs
from infra.clients.ssh import Connection
from infra.jobs import follow, server, transfer
from infra.jobs.history import Submission
from infra.local.slurm.pod import SLURM_SETTING, SlurmSetup
from infra.render.delivery import code_files, hash_files
from infra.state import CHECKOUT
from stacks.spec.nodes import Billing
from stacks.spec.slurm import JobSpec
from tests.local import test_serve_job as serving
from tests.local.jobs_cluster import JobsCluster, running_cluster
from tests.unit.jobs.raw import submit

pytestmark = [
    pytest.mark.local,
    pytest.mark.skipif(
        not SlurmSetup.from_environ().has_pyxis,
        reason="needs a Slurm with pyxis and enroot, which the project does not ship: "
        f"{SLURM_SETTING}=PREFIX (docs/contracts/local-stack.md)",
    ),
]

IMAGE = "/mnt/model/image.sqsh"
_SAYS = "Python of the image"
_PROGRAMS = ("bash", "sh", "env", "cat", "ls", "id", "hostname", "mkdir", "rm", "sleep", "dirname")
_LIBRARIES = "/usr/lib/x86_64-linux-gnu"
_VENV = "/opt/soperator/venv"  # as the nodes have it: tests/local/jobs_cluster.py
_FINETUNE = JobSpec(
    name="finetune",
    module="workloads.train",
    recipe="t5_full_1xcpu",
    nodes=2,
    gpus_per_node=1,
    cpus_per_task=1,
    time_limit="00:20:00",
    container=IMAGE,
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobsCluster]:
    folder = tmp_path_factory.mktemp("containers")
    identity = folder / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", identity], check=True)
    public = Path(f"{identity}.pub").read_text().strip()
    # Slurm holds a requeued job back as long as its old credential is good: 2 minutes by default.
    with running_cluster(folder, public, identity, credential_s=15) as made:
        serving._make_model(made.path("/mnt/model/tiny"))
        _make_image(folder / "image", made.path(IMAGE))
        yield made


def _make_image(root: Path, image: Path) -> None:
    for name in ("usr/bin", "usr/lib", "usr/lib64", "etc", "proc", "sys", "dev", "tmp", "run"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    for name in _PROGRAMS:
        shutil.copy2(Path(shutil.which(name) or "").resolve(), root / "usr/bin" / name)
    shutil.copy2("/lib64/ld-linux-x86-64.so.2", root / "usr/lib64")
    python = root / "usr/bin/python3"
    python.write_text(f'#!/bin/sh\necho {_SAYS} >&2\nexec {_VENV}/bin/python "$@"\n')
    python.chmod(0o755)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (root / "etc/group").write_text("root:x:0:\n")
    (root / "etc/os-release").write_text(f"NAME='{_SAYS}'\n")
    # An image's own value, which would hide the job's code if it won.
    (root / "etc/environment").write_text("PATH=/usr/bin\nPYTHONPATH=/of/the/image\n")
    bound = (sys.base_prefix, _VENV, _LIBRARIES)
    lines = (f"{path} {path} none x-create=dir,bind,ro\n" for path in bound)
    (root / "etc/fstab").write_text("".join(lines))
    words = [root, image, "-all-root", "-no-progress", "-quiet"]
    subprocess.run([f"{SlurmSetup.from_environ().prefix}/bin/mksquashfs", *words], check=True)
    image.chmod(0o644)


@pytest.mark.feature("S000-62")
def test_a_step_in_an_image_sees_the_image_and_no_mount_of_the_node(cluster: JobsCluster) -> None:
    with Connection(cluster.outputs.endpoint(cluster.identity)) as connection:
        said = connection.run(
            f"srun -N2 --container-image={IMAGE} --no-container-mount-home "
            "bash -c 'cat /etc/os-release; echo \"user $(id -u)\"; ls -d /mnt/* 2>&1; true'"
        )
        user = connection.run("id -u").stdout.strip()
    assert said.ok, said.stderr
    assert said.stdout.count(f"NAME='{_SAYS}'") == said.stdout.count(f"user {user}\n") == 2
    assert said.stdout.count("No such file") == 2, "no mount of the node is in it"


@pytest.mark.feature("S000-62", "S003-71", "S003-84")
@pytest.mark.timeout(900)
def test_a_fine_tune_in_an_image_trains_on_two_nodes(cluster: JobsCluster) -> None:
    log, record = _run(cluster, _FINETUNE)
    assert log.count(_SAYS) == 2, "a launcher on each node, in the image"
    assert (record["outcome"], record["world_size"]) == ("PASS", 2)
    final = cluster.path(cluster.outputs.places["chkpt"]) / "finetune" / record["job_id"] / "final"
    assert (final / "model.safetensors").is_file()


@pytest.mark.feature("S000-10", "S000-17", "S000-62")
@pytest.mark.timeout(900)
def test_a_server_in_an_image_answers_through_the_login_node(cluster: JobsCluster) -> None:
    declared = next(job for job in cluster.spec.jobs if job.is_server)
    with Connection(cluster.outputs.endpoint(cluster.identity)) as connection:
        made, outputs = _submit(cluster, connection, replace(declared, container=IMAGE))
        results = cluster.path(outputs.results_path(made.job_id))
        log = cluster.path(made.log_path)
        endpoint = serving._endpoint(results / "endpoint.json", log)
        with serving.tunnel(cluster, endpoint["port"]) as url:
            key = (results / "api_key").read_text().strip()
            client = openai.OpenAI(base_url=url, api_key=key, max_retries=20, timeout=60)
            answer = client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=5
            )
        assert answer.usage is not None
        assert 1 <= answer.usage.completion_tokens <= 5
        slurm.cancel(connection, [made.job_id])
        follow.follow(connection, made.log_path, made.job_id, write=lambda chunk: None)
    assert _SAYS in log.read_text()
    record = json.loads((results / "run_record.json").read_text())
    assert (record["kind"], record["outcome"], record["metrics"]["num_answers"]) == (
        "serve",
        "PASS",
        1,
    )


@pytest.mark.timeout(900)
def test_a_server_in_an_image_ends_its_answers_when_its_node_is_taken(cluster: JobsCluster) -> None:
    """srun, which starts the image, gets the node's SIGTERM too, and would kill the server."""
    workers = tuple(
        replace(each, billing=Billing.PREEMPTIBLE) for each in cluster.spec.nodes.workers
    )
    nodes = replace(cluster.spec.nodes, workers=workers)
    taken = replace(cluster, spec=replace(cluster.spec, nodes=nodes))
    declared = next(job for job in taken.spec.jobs if job.is_server)
    with Connection(taken.outputs.endpoint(taken.identity)) as connection:
        made, outputs = _submit(taken, connection, replace(declared, container=IMAGE))
        results, log = taken.path(outputs.results_path(made.job_id)), taken.path(made.log_path)
        endpoint = serving._endpoint(results / "endpoint.json", log)
        where = slurm.find(connection, made.job_id).where
        assert where is not None
        with serving.tunnel(taken, endpoint["port"]) as url:
            key = (results / "api_key").read_text().strip()
            client = openai.OpenAI(base_url=url, api_key=key, max_retries=20, timeout=60)
            chunks = client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "hello"}],
                max_tokens=1500,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            next(chunk for chunk in chunks if chunk.choices[0].delta.content)
            # Were slurmd gone first, srun's order to kill would reach nobody.
            taken.lose(where, signal.SIGTERM, daemons_after_s=1)
            last = list(chunks)[-1]
        assert last.choices[0].finish_reason == "length", "the answer was ended, not cut off"
        deadline = time.monotonic() + 60
        while "back into the queue" not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        assert "0 are returned, 1 answers have" in log.read_text()
        record = json.loads((results / "run_record.json").read_text())
        assert (record["outcome"], record["metrics"]["num_answers"]) == ("PASS", 1), log.read_text()
        taken.bring_back()
        again = server.wait_until_up(connection, outputs, made.job_id, log=lambda _: None)
        assert again.port
        slurm.cancel(connection, [made.job_id])
        follow.follow(connection, made.log_path, made.job_id, write=lambda chunk: None)


def _run(cluster: JobsCluster, job: JobSpec) -> tuple[str, dict[str, Any]]:
    """The log and the record of a job that must end well."""
    with Connection(cluster.outputs.endpoint(cluster.identity)) as connection:
        made, outputs = _submit(cluster, connection, job)
        ended = follow.follow(connection, made.log_path, made.job_id, write=lambda chunk: None)
    log = cluster.path(made.log_path).read_text()
    assert ended.status == 0, log
    record = cluster.path(outputs.results_path(made.job_id)) / "run_record.json"
    return log, json.loads(record.read_text())


def _submit(
    cluster: JobsCluster, connection: Connection, job: JobSpec
) -> tuple[Submission, StackOutputs]:
    files = code_files(CHECKOUT, replace(cluster.spec, jobs=(job,)))
    outputs = replace(cluster.outputs, jobs={job.name: ""})
    transfer.send(connection, outputs, files)
    sets = serving._SETS if job.is_server else ()
    made = submit(connection, outputs, job.name, code_hash=hash_files(files), sets=sets)
    return made, outputs
