"""The Kubernetes Job is really multi-node and asks for what seed 001 wrote, and what it forgot."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from infra.cli.main import app
from infra.render.kube_job import how_to_run, service_and_job, to_yaml
from infra.render.sbatch import RenderError
from infra.reports.acceptance import comparison
from stacks.catalog import PLATFORMS, node_capacity
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.nodes import WorkerSpec
from workloads.accept import storage
from workloads.recipes import load_recipe

JOB: dict[str, Any] = {"name": "accept", "image": "registry.example/soperator:sha-1", "nodes": 2}


@pytest.fixture
def spec(tmp_path: Path) -> StackSpec:
    key = tmp_path / "id.pub"
    key.write_text(
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0GfEGxMyQ8y0nh8JBLrWuOXbWhFJ5d0T0l9nYkzv5k a\n"
    )
    return load_stack("h100-prod", environ={"SOPERATOR_SSH_PUBLIC_KEY_FILE": str(key)})


def rendered(spec: StackSpec, worker: WorkerSpec, **changes: Any) -> list[dict[str, Any]]:
    return service_and_job(comparison.kube_pods(spec, worker, **{**JOB, **changes}))


def _pod(spec: StackSpec) -> dict[str, Any]:
    *_, job = rendered(spec, spec.nodes.workers[0])
    return job["spec"]["template"]["spec"]


@pytest.mark.feature("S001-78")
def test_each_pod_asks_for_8_gpus_1400_gib_and_64_cpus(spec: StackSpec) -> None:
    (container,) = _pod(spec)["containers"]
    asks = {"nvidia.com/gpu": "8", "memory": "1400Gi", "cpu": "64"}
    assert container["resources"] == {"limits": asks, "requests": asks}


@pytest.mark.parametrize("platform", sorted(PLATFORMS))
def test_no_pod_asks_for_more_memory_than_its_node_offers(platform: str, spec: StackSpec) -> None:
    for name, preset in PLATFORMS[platform].presets.items():
        worker = replace(spec.nodes.workers[0], platform=platform, preset=name)
        *_, job = rendered(spec, worker)
        (container,) = job["spec"]["template"]["spec"]["containers"]
        asked_gib = int(container["resources"]["limits"]["memory"].removesuffix("Gi"))
        assert asked_gib * 1024 <= node_capacity(preset, 512).memory_mib


@pytest.mark.feature("S001-17", "S001-74")
def test_the_pods_find_rank_0_by_name_before_they_are_ready(spec: StackSpec) -> None:
    """Without a subdomain `accept-0.accept` does not resolve, as in seed 001's manifest."""
    service, _policy, job = rendered(spec, spec.nodes.workers[0])
    pod = _pod(spec)
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == job["spec"]["template"]["metadata"]["labels"]
    environment = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    assert environment["MASTER_ADDR"] == "accept-0.accept"
    told = [job["spec"][key] for key in ("completionMode", "completions", "parallelism")]
    assert told == ["Indexed", 2, 2]
    # With backoffLimit the end of one pod deletes the others: the first one's log has the result.
    assert job["spec"]["backoffLimitPerIndex"] == 0
    assert "backoffLimit" not in job["spec"]
    assert job["spec"]["activeDeadlineSeconds"] == 3600, "one may wait for another that failed"
    script = pod["containers"][0]["command"][-1]
    assert script.startswith('NODE_RANK="$JOB_COMPLETION_INDEX"\n')
    assert '--node-rank="$NODE_RANK"' in script
    assert "--nnodes=2 --nproc-per-node=8" in script
    assert " -m workloads.accept --recipe accept_gpu " in script


@pytest.mark.feature("S001-78")
def test_infiniband_may_lock_memory_and_ethernet_is_told_to_nccl(spec: StackSpec) -> None:
    (container,) = _pod(spec)["containers"]
    assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    assert {"name": "NCCL_IB_HCA", "value": "mlx5"} in container["env"]
    worker = replace(spec.nodes.workers[0], infiniband_fabric=None)
    *_, job = rendered(spec, worker)
    (without,) = job["spec"]["template"]["spec"]["containers"]
    assert "securityContext" not in without
    assert {"name": "NCCL_IB_DISABLE", "value": "1"} in without["env"]


def test_the_result_outlives_the_pod_and_the_exit_status_is_the_suites(spec: StackSpec) -> None:
    script = _pod(spec)["containers"][0]["command"][-1]
    assert script.endswith("exit $status")
    assert "acceptance.json" in script


def test_only_the_place_that_each_pod_has_for_itself_is_measured(spec: StackSpec) -> None:
    script = _pod(spec)["containers"][0]["command"][-1]
    words = shlex.split(script.partition("status=")[0])
    assert words.pop() == 'accept.storage.places=["scratch"]'
    recipe = load_recipe("accept_gpu", ['accept.storage.places=["scratch"]'])
    assert recipe.accept is not None
    assert set(recipe.accept.storage.places) <= set(storage.PRIVATE_PLACES)


@pytest.mark.feature("S001-17")
@pytest.mark.parametrize(
    ("torchrun", "outcome", "index", "code"),
    [
        (0, "PASS", 0, 0),
        (1, "FAIL", 0, 1),
        (1, "NOT_RUN", 0, 69),
        (1, "PASS", 0, 1),  # broken after the last stage
        (1, "NOT_RUN", 1, 1),  # only rank 0's pod has the result
    ],
)
def test_the_first_pod_ends_with_what_the_result_says(
    torchrun: int, outcome: str, index: int, code: int, spec: StackSpec, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "acceptance.json").write_text(json.dumps({"outcome": outcome}))
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" = -m ] && exit {torchrun}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    script = _pod(spec)["containers"][0]["command"][-1].replace("/results/", f"{tmp_path}/")
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "JOB_COMPLETION_INDEX": str(index),
        "MASTER_ADDR": "accept-0.accept",
    }
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert bool(done.stdout) == (index == 0)


@pytest.mark.feature("S001-74", "S001-75", "S001-76", "S001-77")
def test_the_words_free_the_gpus_first_and_give_them_back_last(spec: StackSpec) -> None:
    pods = comparison.kube_pods(spec, spec.nodes.workers[0], **JOB)
    lines = how_to_run(spec, pods, comparison.read_by(pods))
    order = [
        next(index for index, line in enumerate(lines) if text in line)
        for text in (
            "drain worker-0 worker-1 --reason",
            '"replicas": 0',
            "kubectl apply -f accept.yaml",
            "get pods -w -l",
            "logs -f -l app.kubernetes.io/name=accept --all-containers",
            "kubectl delete -f accept.yaml",
            '"replicas": 2',
            "--undo",
        )
    ]
    assert order == sorted(order)
    text = "\n".join(lines)
    *_, job = service_and_job(pods)
    labels = {
        **job["spec"]["template"]["metadata"]["labels"],
        "batch.kubernetes.io/job-name": job["metadata"]["name"],
        "batch.kubernetes.io/job-completion-index": "0",
    }
    asked = ",".join(re.findall(r" -l (\S+)", text)).split(",")
    assert {*asked} <= {f"{key}={value}" for key, value in labels.items()}
    namespaces = re.findall(r"kubectl(?: -n (\S+))? (?:get pods|logs) ", text)
    assert namespaces == [job["metadata"]["namespace"]] * 3
    (requests,) = re.findall(r"--max-log-requests=(\d+)", text)
    assert int(requests) >= job["spec"]["completions"]


@pytest.mark.feature("S001-74", "S001-77")
def test_the_words_name_the_file_that_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public_key_file: Path
) -> None:
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path / "state"))
    file = tmp_path / "own.yaml"
    words = [
        "runs",
        "overhead",
        "--kube-job",
        "--stack",
        "h100-prod",
        "--image",
        "i",
        "-o",
        str(file),
    ]
    done = CliRunner().invoke(app, words)
    assert f"kubectl apply -f {file}" in done.stderr
    assert f"kubectl delete -f {file}" in done.stderr
    assert "accept.yaml" not in done.stderr


def test_more_nodes_than_there_are_and_a_bad_name_are_refused(spec: StackSpec) -> None:
    with pytest.raises(RenderError, match="--nodes 3: h100-prod has 2 nodes of worker"):
        rendered(spec, spec.nodes.workers[0], nodes=3)
    with pytest.raises(RenderError, match="--name Bad_name"):
        rendered(spec, spec.nodes.workers[0], name="Bad_name")


@pytest.mark.feature("S001-74")
def test_the_file_is_what_kubectl_reads(spec: StackSpec) -> None:
    text = to_yaml(rendered(spec, spec.nodes.workers[0]))
    assert [each["kind"] for each in yaml.safe_load_all(text)] == [
        "Service",
        "NetworkPolicy",
        "Job",
    ]
