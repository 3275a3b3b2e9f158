"""A server as a Slurm job: reached by a tunnel through the login node, stopped by scancel.

The invariants: what runs when the job is cancelled is answered whole, and the record says so; and
`soperator serve --open` leaves nothing behind that it started.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from infra.clients import slurm
from infra.clients.ssh import Connection
from infra.jobs import follow, server, transfer
from infra.render.delivery import code_files, hash_files
from infra.state import CHECKOUT, PULUMI_VERSION
from stacks.spec.nodes import Billing
from stacks.spec.slurm import PartitionSpec
from tests.local.jobs_cluster import JobsCluster, running_cluster
from tests.ports import free_ports
from tests.unit.jobs.raw import submit
from tests.workloads.conftest import make_tokenizer

pytestmark = pytest.mark.local

_READY_S = 240.0
# As in test_faults.py: of `main`, `cancel` makes room for `urgent`, whose jobs nothing ends.
_QUEUES = (
    PartitionSpec(name="main", config="Default=YES State=UP OverSubscribe=YES"),
    PartitionSpec(name="urgent", config="State=UP PriorityTier=10 PreemptMode=OFF"),
    PartitionSpec(name="cancel", config="State=UP PreemptMode=CANCEL GraceTime=30"),
)
_SETS = (
    "model=tiny",
    "serve.port=0",
    "serve.dtype=fp32",
    "serve.cpu_threads=1",
    'serve.limits={"context_tokens": 2048, "max_output_tokens": 1700}',
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobsCluster]:
    folder = tmp_path_factory.mktemp("serve")
    identity = folder / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", identity], check=True)
    public = Path(f"{identity}.pub").read_text().strip()
    # Slurm holds a requeued job back as long as its old credential is good: 2 minutes by default.
    with running_cluster(folder, public, identity, credential_s=15, partitions=_QUEUES) as made:
        _make_model(made.path("/mnt/model/tiny"))
        workers = tuple(
            replace(each, billing=Billing.PREEMPTIBLE) for each in made.spec.nodes.workers
        )
        slurm_spec = replace(made.spec.slurm, partitions=_QUEUES)
        nodes = replace(made.spec.nodes, workers=workers)
        yield replace(made, spec=replace(made.spec, nodes=nodes, slurm=slurm_spec))


def _make_model(folder: Path) -> None:
    """A two-layer model with random weights: what it says does not matter here."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=2048,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # safetensors closes its files to others; a shared model is read by every user.
    subprocess.run(["chmod", "-R", "a+rX", folder], check=True)


@contextlib.contextmanager
def tunnel(cluster: JobsCluster, port: int) -> Iterator[str]:
    """The server's port on this machine, as `ssh -L` through the login node brings it."""
    (local,) = free_ports(1)
    known = cluster.folder / "known_hosts"
    outputs = cluster.outputs
    known.write_text(f"[127.0.0.1]:{outputs.ssh_port} {outputs.login_host_key}\n")
    options = [f"UserKnownHostsFile={known}", "ExitOnForwardFailure=yes", "BatchMode=yes"]
    command = ["ssh", "-N", "-F", "none", "-i", str(cluster.identity), "-p", str(outputs.ssh_port)]
    command += [word for option in options for word in ("-o", option)]
    command += ["-L", f"127.0.0.1:{local}:127.0.0.1:{port}", "root@127.0.0.1"]
    process = subprocess.Popen(command)
    try:
        yield f"http://127.0.0.1:{local}/v1"
    finally:
        process.terminate()
        process.wait()


@pytest.mark.feature("S000-06", "S000-10", "S000-56", "S002-80", "S002-86")
def test_a_served_job_answers_through_the_login_node_and_ends_clean(cluster: JobsCluster) -> None:
    job = next(job for job in cluster.spec.jobs if job.is_server)
    files = code_files(CHECKOUT, replace(cluster.spec, jobs=(job,)))
    outputs = replace(cluster.outputs, jobs={job.name: ""})
    with Connection(outputs.endpoint(cluster.identity)) as connection:
        transfer.send(connection, outputs, files)
        submitted = submit(connection, outputs, job.name, code_hash=hash_files(files), sets=_SETS)
        results = cluster.path(outputs.results_path(submitted.job_id))
        log = cluster.path(submitted.log_path)
        endpoint = _endpoint(results / "endpoint.json", log)
        assert endpoint["models"] == ["tiny"]
        with tunnel(cluster, endpoint["port"]) as url:
            key = (results / "api_key").read_text().strip()
            client = openai.OpenAI(base_url=url, api_key=key, max_retries=20, timeout=60)
            answer = client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=5
            )
            assert answer.usage is not None
            assert 1 <= answer.usage.completion_tokens <= 5

            began_s = time.monotonic()
            client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "how fast"}],
                max_tokens=200,
                extra_body={"ignore_eos": True},
            )
            # Longer than Slurm needs to bring the signal here, and over in the drain of 20 s.
            num_tokens = min(1600, int(200 * 8 / (time.monotonic() - began_s)))
            running = client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "a long one"}],
                max_tokens=num_tokens,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            # The role comes before the answer has begun.
            next(chunk for chunk in running if chunk.choices[0].delta.content)
            slurm.cancel(connection, [submitted.job_id])
            rest = list(running)
            assert rest[-1].choices[0].finish_reason == "length"
        ended = follow.follow(
            connection, submitted.log_path, submitted.job_id, write=lambda chunk: None
        )
    assert ended.status != 0, "Slurm calls a cancelled job cancelled, however well it ended"
    record = json.loads((results / "run_record.json").read_text())
    assert (record["kind"], record["outcome"], record["job"]) == ("serve", "PASS", "serve")
    assert record["metrics"]["num_answers"] == 3
    assert record["metrics"]["num_output_tokens"] >= num_tokens + 201
    assert record["metrics"]["cold_start_s"] > record["metrics"]["load_s"] > 0
    assert json.loads((results / "config.json").read_text())["serve"]["port"] == 0
    text = log.read_text()
    assert "SIGTERM: no new requests; 0 are returned, 1 answers have 20 s to end" in text
    # The folder that stands for the RAM disk here is none.
    own = f"/mnt/memory/job_{submitted.job_id}/{outputs.user}"
    why = rf"weights are not staged: the place scratch, {own}, is \w+, not tmpfs or ramfs"
    assert re.search(why, text)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("partition", ["main", "cancel"])
def test_a_server_whose_node_is_taken_comes_back_by_itself(
    cluster: JobsCluster, partition: str
) -> None:
    """It ended well within the notice, so Slurm called the job COMPLETED, and that was all.

    Of its own preemption Slurm tells steps alone when the grace time begins, and this server is in
    none: it took chats until Slurm killed it, and with CANCEL it never came back.
    """
    served = next(job for job in cluster.spec.jobs if job.is_server)
    job = replace(served, partition=partition)
    files = code_files(CHECKOUT, replace(cluster.spec, jobs=(job,)))
    outputs = replace(cluster.outputs, jobs={job.name: ""})
    with Connection(outputs.endpoint(cluster.identity)) as connection:
        transfer.send(connection, outputs, files)
        submitted = submit(connection, outputs, job.name, code_hash=hash_files(files), sets=_SETS)
        results = cluster.path(outputs.results_path(submitted.job_id))
        log = cluster.path(submitted.log_path)
        first = server.wait_until_up(connection, outputs, submitted.job_id, log=lambda _: None)
        key = (results / "api_key").read_text()
        where = slurm.find(connection, submitted.job_id).where
        assert where is not None
        if partition == "main":
            cluster.lose(where, signal.SIGTERM)
        else:
            urgent = "sbatch -p urgent --nodes=2 --exclusive --output=/dev/null --wrap 'sleep 2'"
            assert connection.run(f"cd /tmp && {urgent}").ok
        deadline = time.monotonic() + _READY_S
        while "back into the queue" not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()
            assert "Slurm ends this job itself" not in log.read_text(), log.read_text()
            threading.Event().wait(0.2)
        cluster.bring_back()
        again = server.wait_until_up(connection, outputs, submitted.job_id, log=lambda _: None)
        assert again != first
        assert (results / "api_key").read_text() != key
        assert "0 are returned, 0 answers have" in log.read_text()
        slurm.cancel(connection, [submitted.job_id])
        ended = follow.follow(
            connection, submitted.log_path, submitted.job_id, write=lambda chunk: None
        )
    assert ended.state == "CANCELLED"


def _endpoint(path: Path, log: Path) -> dict[str, Any]:
    """What the server wrote when it took requests."""
    deadline = time.monotonic() + _READY_S
    while not path.is_file():
        assert time.monotonic() < deadline, log.read_text() if log.is_file() else "no log"
        threading.Event().wait(0.2)
    return json.loads(path.read_text())


@pytest.mark.feature("S000-50")
@pytest.mark.timeout(600)
def test_ctrl_c_closes_page_tunnel_and_the_job_that_was_submitted_for_it(
    cluster: JobsCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (port,) = free_ports(1)
    words = ["serve", "--open", "--port", str(port), "--sync", "-i", str(cluster.identity)]
    key_file = f"{cluster.outputs.places['chkpt']}/serve.key"
    sets = (*_SETS, f"serve.api_key_file={key_file}")
    words += [word for each in sets for word in ("--set", each)]
    errors = tmp_path / "stderr"
    with errors.open("wb") as stderr:
        command = subprocess.Popen(
            [sys.executable, "-m", "infra.cli.main", *words],
            cwd=CHECKOUT,
            env=_deployed(cluster, tmp_path),
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    request.addfinalizer(command.kill)
    assert command.stdout is not None
    opens = command.stdout.readline().decode().strip()
    said = errors.read_text()
    address, _, token = opens.partition("?token=")
    assert address == f"http://127.0.0.1:{port}/", said
    assert httpx.get(address).status_code == 401
    assert "<gradio-app" in httpx.get(opens, follow_redirects=True).text
    assert not [line for line in _command_lines() if token in line]
    pages = _processes(f"--port {port}")
    assert len(pages) == 1
    key = cluster.path(key_file).read_text().strip()
    assert len(key) >= 32, "the server made one"
    assert not [line for line in _command_lines() if key in line]
    assert "serve is job " in said
    assert "not tmpfs or ramfs" in said, "lines of the log are shown while it loads"
    job_id = said.split("serve is job ")[1].split()[0]

    command.send_signal(signal.SIGINT)
    assert command.wait(60) == 130, errors.read_text()
    assert f"job {job_id} is told to end" in errors.read_text()
    assert not _processes(f"--port {port}")
    with pytest.raises(httpx.ConnectError):
        httpx.get(address)
    with Connection(cluster.outputs.endpoint(cluster.identity)) as connection:
        log = cluster.outputs.log_path("serve", job_id)
        ended = follow.follow(connection, log, job_id, write=lambda chunk: None)
    assert ended.state == "CANCELLED"
    assert key not in errors.read_text()
    kept = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert kept, "the submission is written down"
    assert not [path for path in kept if key.encode() in path.read_bytes()]


def _deployed(cluster: JobsCluster, folder: Path) -> dict[str, str]:
    """An environment in which `local` is deployed and is this cluster."""
    outputs = asdict(cluster.outputs.before) | {"code_hash": "none"}
    (folder / "outputs.json").write_text(json.dumps(outputs))
    programs = folder / "bin"
    programs.mkdir()
    answers = f'[ "$1" = version ] && echo v{PULUMI_VERSION} || cat {folder / "outputs.json"}'
    for name in ("pulumi", "pulumi-language-python"):
        (programs / name).write_text(f"#!/bin/sh\n{answers}\n")
        (programs / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SOPERATOR_STATE": str(folder / "state"),
        "SOPERATOR_SSH_PUBLIC_KEY_FILE": f"{cluster.identity}.pub",
    }


def _processes(words: str) -> list[str]:
    """Command lines of chat pages that have these words in them."""
    return [line for line in _command_lines() if "workloads.chat" in line and words in line]


def _command_lines() -> list[str]:
    """What `ps` shows to everyone."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found
