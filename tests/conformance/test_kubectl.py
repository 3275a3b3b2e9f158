"""What a Kubernetes Job of the acceptance and of a training says to type, typed to kubectl itself.

Two machines with kubelets run the pods, under the controllers of Kubernetes and Soperator's
definitions. The image is this machine's own Python with this code; GPUs are counted and not there.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from infra.clients.kube import KubeClient
from infra.render.kube_job import Pods, how_to_run, service_and_job, to_yaml, training_pods
from infra.render.names import NODESET_NAME_LABEL
from infra.reports.acceptance import comparison
from infra.state import CHECKOUT
from stacks.load import load_stack
from stacks.spec import StackSpec
from tests.conformance.machines import (
    Image,
    Size,
    api_server_that_asks_kubelets,
    machines,
    own_network,
    python_mounts,
)
from tests.local.kube_server import kubeconfig, running_cluster

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(600)]

_IMAGE = Image(
    name="registry.example/soperator:sha-1",
    files={"app/workloads": CHECKOUT / "workloads"},
    env={"PATH": f"{sys.prefix}/bin:/usr/bin:/bin", "PYTHONPATH": "/app", "PYTHONUNBUFFERED": "1"},
)
_H100 = Size(cpus=128, memory_gib=1600, gpus=8, labels={NODESET_NAME_LABEL: "worker"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """A shell whose kubectl is the real one, and who may look at its server."""

    client: KubeClient
    environment: dict[str, str]

    def typed(self, line: str, *, seconds: float | None = None) -> subprocess.CompletedProcess[str]:
        """The line in a shell; one that watches is ended after `seconds`."""
        words = ["bash", "-c", line]
        if seconds is not None:
            words = ["timeout", str(seconds), *words]
        return subprocess.run(
            words, capture_output=True, text=True, check=False, env=self.environment, timeout=300
        )


@pytest.fixture(scope="module")
def stand(sources, tmp_path_factory) -> Iterator[Stand]:
    folder = tmp_path_factory.mktemp("kubectl")
    program = Path(sources.program("kubectl"))
    with pytest.MonkeyPatch.context() as patch:
        api_server_that_asks_kubelets(folder, patch)
        names = ("machine-0", "machine-1")
        with (
            own_network(),
            running_cluster(folder) as config,
            machines(
                sources,
                config,
                folder / "of",
                dict.fromkeys(names, _H100),
                [_IMAGE],
                mounts=python_mounts(),
            ),
        ):
            file = folder / "kubeconfig"
            file.write_text(kubeconfig(config))
            yield Stand(
                client=KubeClient(config.access()),
                environment={
                    "PATH": f"{program.parent}:/usr/bin:/bin",
                    "HOME": str(folder),
                    "KUBECONFIG": str(file),
                },
            )


def test_the_benchmark_runs_as_it_is_and_fails_for_its_gpus(
    stand: Stand, tmp_path: Path, public_key_file: Path, record_property
) -> None:
    spec = load_stack("h100-prod")
    pods = benchmark(spec)
    lines = run_as_told(stand, spec, pods, tmp_path, (comparison.read_by(pods),), "Failed")
    result = json.loads((tmp_path / "acceptance.json").read_text())
    assert (result["outcome"], result["hardware"]["world_size"]) == ("FAIL", 16)
    assert {each["name"] for each in result["nodes"]} == {"machine-0", "machine-1"}
    (failed,) = {each["id"] for each in result["checks"] if each["outcome"] == "FAIL"}
    assert failed == "readiness.gpus"
    pods_of_lines = {line.split()[0] for line in lines}
    assert len(pods_of_lines) == 2
    record_property("pods run by kubelets", 2)


@pytest.mark.feature("S001-17", "S001-74", "S001-75", "S001-76", "S001-77")
def test_the_benchmark_passes_in_two_pods_with_the_recipe_for_cpus(
    stand: Stand, tmp_path: Path, public_key_file: Path, record_property
) -> None:
    spec = load_stack("h100-prod")
    pods = benchmark(spec)
    script = pods.script.replace("accept_gpu", "accept_cpu")
    pods = replace(pods, script=script.replace("--nproc-per-node=8", "--nproc-per-node=1"))
    lines = run_as_told(stand, spec, pods, tmp_path, (comparison.read_by(pods),), "Complete")
    result = json.loads((tmp_path / "acceptance.json").read_text())
    assert (result["outcome"], result["hardware"]["world_size"]) == ("PASS", 2)
    assert [line for line in lines if line.endswith("connectivity.pairs 1 of 1 pairs")]
    record_property("pods run by kubelets", 2)


@pytest.mark.feature("S001-74", "S001-75", "S001-76", "S001-77")
def test_a_training_runs_in_two_pods_on_its_claims(
    stand: Stand, tmp_path: Path, public_key_file: Path, record_property
) -> None:
    spec = load_stack("local")
    declared = next(job for job in spec.jobs if job.name == "finetune")
    pods = training_pods(spec, replace(declared, recipe="bert_full_1xcpu"), image=_IMAGE.name)
    for each in claims(pods, tmp_path):
        stand.client.apply(each)
    lines = run_as_told(stand, spec, pods, tmp_path, (), "Complete")
    assert len({line.split()[0] for line in lines}) == 2
    (record,) = [
        json.loads(file.read_text())
        for file in tmp_path.rglob("*.json")
        if file.is_relative_to(tmp_path / "claims") and "outcome" in file.read_text()
    ]
    assert (record["outcome"], record["job_id"]) == ("PASS", "kube-finetune")
    record_property("pods run by kubelets", 2)


def benchmark(spec: StackSpec) -> Pods:
    (worker,) = spec.nodes.workers
    return comparison.kube_pods(spec, worker, name="accept", image=_IMAGE.name, nodes=2)


def claims(pods: Pods, folder: Path) -> Iterator[dict[str, Any]]:
    """The claims of the pods and a folder of both machines behind each."""
    for volume in pods.volumes.values():
        if (claim := volume.get("persistentVolumeClaim")) is None:
            continue
        name = claim["claimName"]
        place = folder / "claims" / name
        place.mkdir(parents=True)
        common = {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "of-the-test",
        }
        yield {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                **common,
                "capacity": {"storage": "1Gi"},
                "hostPath": {"path": str(place)},
                "claimRef": {"name": name, "namespace": pods.namespace},
            },
        }
        yield {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": pods.namespace},
        }
        yield {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": pods.namespace},
            "spec": {**common, "resources": {"requests": {"storage": "1Gi"}}},
        }


def run_as_told(
    stand: Stand, spec: StackSpec, pods: Pods, folder: Path, reads: Sequence[str], ends: str
) -> list[str]:
    """Types each line of kubectl that is said, in their order; returns the job's log."""
    for space in {pods.namespace, spec.cluster.namespace} - {"default"}:
        stand.client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}})
    file = folder / "objects of a job.yaml"
    objects = service_and_job(pods)
    file.write_text(to_yaml(objects))
    lines = how_to_run(spec, pods, *reads, file=str(file))
    free, bring, *follow = [line.strip() for line in lines if line.startswith("  kubectl")]
    *looked, delete, back = follow
    nodeset = free.split()[5]
    made = stand.client.get(nodeset_object(spec, nodeset))
    if made is None:
        stand.client.apply(nodeset_object(spec, nodeset))
    scaled(stand, spec, free, nodeset, 0)

    apply, _, watch = bring.partition(" && ")
    done = stand.typed(apply)
    assert done.returncode == 0, done.stderr
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["created"] * 3
    assert stand.typed(apply).returncode == 0, "a second time"
    deadline = time.monotonic() + 120
    while len(seen := pods_that_started(stand, watch)) < pods.nodes:
        assert time.monotonic() < deadline, seen
    log, *reads_of_result = looked
    done = stand.typed(log)
    assert done.returncode == 0, done.stderr
    text = done.stdout
    ended: Any = {}
    while ends not in (kinds := [each["type"] for each in ended.get("conditions", [])]):
        assert time.monotonic() < deadline + 240, (kinds, text[-3000:])
        time.sleep(0.5)
        ended = (stand.client.get(objects[-1]) or {}).get("status", {})
    for line in reads_of_result:
        done = stand.typed(f"cd {shlex.quote(str(folder))} && {line}", seconds=20)
        assert done.returncode == 0, done.stderr
    done = stand.typed(delete)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("deleted") == 3
    assert [stand.client.get(each) for each in objects] == [None] * 3
    scaled(stand, spec, back, nodeset, 2)
    return text.splitlines()


def pods_that_started(stand: Stand, watch: str) -> set[str]:
    """Names of the pods that the watch shows with a container that runs or has ended."""
    rows = [line.split() for line in stand.typed(watch, seconds=3).stdout.splitlines()]
    return {row[0] for row in rows if row[2] in ("Running", "Completed", "Error")}


def scaled(stand: Stand, spec: StackSpec, line: str, nodeset: str, replicas: int) -> None:
    done = stand.typed(line)
    assert done.returncode == 0, done.stderr
    assert f"nodeset.slurm.nebius.ai/{nodeset} patched" in done.stdout
    made = stand.client.get(nodeset_object(spec, nodeset))
    assert made is not None
    assert made["spec"]["replicas"] == replicas


def nodeset_object(spec: StackSpec, name: str) -> dict[str, Any]:
    """What Soperator's definition asks of a set of workers at least."""
    volume: dict[str, Any] = {}
    container = {"image": {"repository": "registry.example/slurm"}, "resources": {"cpu": "1"}}
    return {
        "apiVersion": "slurm.nebius.ai/v1alpha1",
        "kind": "NodeSet",
        "metadata": {"name": name, "namespace": spec.cluster.namespace},
        "spec": {
            "replicas": 1,
            "munge": container,
            "slurmd": {**container, "volumes": {"jail": volume, "spool": volume}},
        },
    }
