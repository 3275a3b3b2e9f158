"""What runs beside a server on one cluster: a load test that asks it, jobs that do not.

The invariants: the load test's record names the server's preset and engine, so the price of a chat
is measured; a server answers while a fine-tune's steps go on, and all three end well.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import openai
import pytest

from cost.run_record import parse_run_record
from infra.clients import slurm
from infra.clients.pulumi import StackOutputs
from infra.clients.ssh import Connection
from infra.jobs import follow, server, transfer
from infra.jobs.history import Submission
from infra.render.delivery import code_files, hash_files
from infra.state import CHECKOUT
from stacks.spec.slurm import JobSpec
from tests.local import test_serve_job as serving
from tests.local.jobs_cluster import JobsCluster, running_cluster
from tests.unit.jobs.raw import submit
from tests.workloads.conftest import RECIPE
from workloads.data import __main__ as prepare_data
from workloads.evaluate import compare_models
from workloads.evaluate.compare_models import ROWS
from workloads.job import run_job

pytestmark = pytest.mark.local

_LOAD_SETS = (
    "model=tiny",
    "load.sweep=[1, 2]",
    "load.requests_per_stream=2",
    "load.open_loop.requests=4",
    'load.prompt_tokens={"mean": 64}',
    'load.output_tokens={"mean": 8}',
)
# On both nodes, so also on the server's; half the rows a rank are the rows a step of one rank.
_FINETUNE = JobSpec(
    name="finetune",
    module="workloads.train",
    recipe="t5_full_1xcpu",
    nodes=2,
    gpus_per_node=1,
    cpus_per_task=1,
    time_limit="00:20:00",
)
_INFERENCE = tuple(
    JobSpec(
        name=f"inference-{side}",
        module=f"workloads.evaluate.inference_{side}",
        recipe="bfcl_smollm2",
        gpus_per_node=1,  # without, a job takes all memory of its node
        cpus_per_task=1,
        time_limit="00:20:00",
    )
    for side in ("original", "trained")
)
_ON_BOTH_NODES = replace(_INFERENCE[0], name="inference-on-both-nodes", nodes=2)
_INFERENCE_SETS = (
    "model=tiny",
    "evaluate.dataset=prepared",
    "evaluate.num_rows=3",
    "evaluate.num_perplexity_rows=4",
    "evaluate.max_new_tokens=4",
    "evaluate.cpu_threads=1",
    "evaluate.dtype=fp32",
)
BOTH = ("worker-[0-1]", "worker-0")
"""Nodes of the fine-tune and of the server."""


@dataclass(frozen=True)
class Served:
    """A cluster on which a server takes requests."""

    cluster: JobsCluster
    connection: Connection
    outputs: StackOutputs
    code_hash: str
    job_id: str
    endpoint: dict[str, Any]

    def submit(self, job: str, *sets: str) -> Submission:
        return submit(self.connection, self.outputs, job, code_hash=self.code_hash, sets=sets)

    def result(self, job_id: str, name: str) -> Path:
        """A file that the job leaves."""
        return self.cluster.path(self.outputs.results_path(job_id)) / name

    def end_of(self, submission: Submission) -> str:
        """The log of the job, which must end well."""
        job = follow.follow(
            self.connection, submission.log_path, submission.job_id, write=lambda chunk: None
        )
        log = self.cluster.path(submission.log_path).read_text()
        assert job.status == 0, log
        # What jq reads: the results that the log has among its lines, and nothing else.
        results = self.cluster.path(submission.log_path).with_suffix(".out").read_text()
        assert json.loads(results.splitlines()[-1])["job_id"] == job.id
        assert results in log
        return log


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of a tiny model; at the end it must have ended well."""
    folder = tmp_path_factory.mktemp("load")
    identity = folder / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", identity], check=True)
    public = Path(f"{identity}.pub").read_text().strip()
    with running_cluster(folder, public, identity) as cluster:
        serving._make_model(cluster.path("/mnt/model/tiny"))
        servers = tuple(job for job in cluster.spec.jobs if job.is_server or job.is_load_test)
        jobs = (*servers, _FINETUNE, *_INFERENCE, _ON_BOTH_NODES)
        files = code_files(CHECKOUT, replace(cluster.spec, jobs=jobs))
        outputs = replace(cluster.outputs, jobs={job.name: "" for job in jobs})
        with Connection(outputs.endpoint(cluster.identity)) as connection:
            transfer.send(connection, outputs, files)
            code = hash_files(files)
            made = submit(connection, outputs, "serve", code_hash=code, sets=serving._SETS)
            path = cluster.path(outputs.results_path(made.job_id)) / "endpoint.json"
            endpoint = serving._endpoint(path, cluster.path(made.log_path))
            here = Served(cluster, connection, outputs, code, made.job_id, endpoint)
            yield here
            slurm.cancel(connection, [made.job_id])
            follow.follow(connection, made.log_path, made.job_id, write=lambda chunk: None)
            record = json.loads(here.result(made.job_id, "run_record.json").read_text())
            assert record["outcome"] == "PASS"


def test_a_load_test_measures_the_server_that_runs_beside_it(served: Served) -> None:
    spec = served.cluster.spec
    chosen = server.choose(spec, slurm.recent(served.connection, days=1), None)
    assert chosen.id == served.job_id
    loaded = served.submit("load", *server.job_settings(spec, chosen), *_LOAD_SETS)
    served.end_of(loaded)
    path = served.result(loaded.job_id, "run_record.json")
    record = parse_run_record(path.read_text(), str(path))
    (worker,) = spec.nodes.workers
    assert record.hardware is not None
    assert (record.hardware.platform, record.hardware.preset) == (worker.platform, worker.preset)
    assert (record.kind, record.engine, record.model) == ("load", "transformers", "tiny")
    assert record.metrics["output_tokens_per_s"] > 0
    result = json.loads(served.result(loaded.job_id, "load.json").read_text())
    assert [each["concurrency"] for each in result["curve"]] == [1, 2, None, None]
    assert {each["num_ok"] for each in result["curve"]} == {8, 4}
    # The template's tokens are in the prompt that was asked for.
    assert result["curve"][0]["mean_prompt_tokens"] == 64


@pytest.mark.feature(
    "S000-05",
    "S000-09",
    "S000-125",
    "S000-35",
    "S000-38",
    "S001-01",
    "S001-31",
    "S002-02",
    "S002-37",
)
def test_a_server_answers_while_a_fine_tune_makes_its_steps_beside_it(served: Served) -> None:
    tuned = served.submit("finetune", "train.gradient_accumulation=1")
    curve = served.result(tuned.job_id, "loss_curve.jsonl")
    steps_during_answers: list[int] = []
    with serving.tunnel(served.cluster, served.endpoint["port"]) as url:
        key = served.result(served.job_id, "api_key").read_text().strip()
        client = openai.OpenAI(base_url=url, api_key=key, max_retries=20, timeout=60)
        while not (found := slurm.find(served.connection, tuned.job_id)).finished:
            before = _steps(curve)
            answer = client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "hello"}],
                max_tokens=20,
                extra_body={"ignore_eos": True},
            )
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 20
            if before:
                steps_during_answers.append(_steps(curve) - before)
    served.end_of(tuned)
    assert (found.where, slurm.find(served.connection, served.job_id).where) == BOTH
    assert sum(steps_during_answers) > 0, "no step was made while the server wrote an answer"
    record = json.loads(served.result(tuned.job_id, "run_record.json").read_text())
    assert (record["kind"], record["outcome"], record["world_size"]) == ("train", "PASS", 2)


@pytest.mark.feature("S002-51", "S002-52", "S002-61")
@pytest.mark.timeout(900)
def test_both_inference_jobs_run_at_the_same_time_and_their_folders_are_compared(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 002 submits the two one after the other's end; they share no file and need no order."""
    _prepare(served.cluster, monkeypatch, tmp_path)
    made = [served.submit(job.name, *_INFERENCE_SETS) for job in _INFERENCE]
    for each in made:
        served.end_of(each)
    ended = [slurm.find(served.connection, each.job_id) for each in made]
    starts = [str(job.started) for job in ended]
    ends = [str(job.ended) for job in ended]
    assert max(starts) < min(ends), f"one waited for the other: {starts} {ends}"
    results = served.cluster.path(served.outputs.places["results"])
    report = tmp_path / "comparison_report.json"
    assert (
        compare_models.main(
            [
                *("--original-results", str(results / "original")),
                *("--trained-results", str(results / "trained")),
                *("--output", str(report)),
            ]
        )
        == 0
    )
    assert json.loads(report.read_text())["num_rows"] == 3


@pytest.mark.feature("S002-06")
@pytest.mark.timeout(900)
def test_the_rows_of_an_inference_job_are_shared_out_over_two_nodes(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _prepare(served.cluster, monkeypatch, tmp_path)
    # Other answers than those of the test above, which would be taken as finished.
    made = served.submit(_ON_BOTH_NODES.name, *_INFERENCE_SETS, "evaluate.max_new_tokens=5")
    served.end_of(made)
    assert slurm.find(served.connection, made.job_id).where == BOTH[0]
    record = json.loads(served.result(made.job_id, "run_record.json").read_text())
    assert (record["outcome"], record["world_size"]) == ("PASS", 2)
    results = served.cluster.path(served.outputs.places["results"])
    by_rank = {
        path.suffixes[0]: {
            line["row"]
            for line in map(json.loads, path.read_text().splitlines())
            if line["part"] == "answer"
        }
        for path in (results / "rows").rglob(f"{made.job_id}.*.jsonl")
    }
    assert by_rank == {".0": {0, 2}, ".1": {1}}
    answers = (results / "original" / ROWS).read_text().splitlines()
    assert len(answers) == 3


def _prepare(cluster: JobsCluster, monkeypatch: pytest.MonkeyPatch, scratch: Path) -> None:
    """Prepared rows, and an adapter with random weights: what it says does not matter here."""
    import peft
    from transformers import AutoModelForCausalLM

    for place in ("data", "model", "chkpt"):
        own = cluster.path(cluster.outputs.places[place])
        monkeypatch.setenv(f"SOPERATOR_PLACE_{place.upper()}", str(own))
        monkeypatch.setenv(f"SOPERATOR_SHARED_{place.upper()}", str(cluster.path(f"/mnt/{place}")))
    monkeypatch.setenv("SOPERATOR_PLACE_RESULTS", str(scratch))
    recipe = scratch / "recipe.json"
    recipe.write_text(json.dumps({"model": "tiny", "data": RECIPE["data"]}))
    assert run_job("prepare-data", prepare_data.main, ["--recipe", str(recipe)]) == 0
    base = AutoModelForCausalLM.from_pretrained(cluster.path("/mnt/model/tiny"))
    config = peft.LoraConfig(
        r=2,
        target_modules=["q_proj"],
        init_lora_weights=False,
        base_model_name_or_path="/mnt/model/tiny",
        task_type="CAUSAL_LM",
    )
    chkpt = cluster.path(cluster.outputs.places["chkpt"])
    peft.get_peft_model(base, config).save_pretrained(chkpt / "finetune" / "1" / "final")
    (chkpt / "latest").write_text("finetune/1/final\n")
    # What root made here stands for what jobs of the user made.
    for place in ("data", "chkpt"):
        own = cluster.path(cluster.outputs.places[place])
        subprocess.run(["chown", "-R", f"--reference={own}", own], check=True)


def _steps(curve: Path) -> int:
    """Steps that the fine-tune has made."""
    return curve.read_text().count("\n") if curve.is_file() else 0
