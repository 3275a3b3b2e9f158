"""A declared job in Kubernetes has the ranks, the recipe and the places that it has in Slurm."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from infra.cli.main import app
from infra.render import kube_job
from infra.render.kube_job import Pods, training_pods
from infra.render.sbatch import RenderError
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.nodes import BootDiskSpec, DataDisksSpec, NfsSpec
from stacks.spec.slurm import JobSpec
from stacks.spec.storage import SubmountSpec

IMAGE = "registry.example/soperator-jobs:sha-1"
SCHEMA = json.loads(Path(__file__).with_name("pytorchjob.schema.json").read_text())


@pytest.fixture
def spec(public_key_file: Path) -> StackSpec:
    return load_stack("h100-prod")


def job_of(spec: StackSpec, name: str = "finetune") -> JobSpec:
    return next(job for job in spec.jobs if job.name == name)


def pods_of(spec: StackSpec, **options: Any) -> Pods:
    return training_pods(spec, job_of(spec), image=IMAGE, **options)


def container_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (container,) = objects[-1]["spec"]["template"]["spec"]["containers"]
    return container


@pytest.mark.feature("S004-37")
def test_a_training_job_renders_as_its_golden_files(
    spec: StackSpec, golden: Callable[[str, str], None]
) -> None:
    job = kube_job.to_yaml(kube_job.service_and_job(pods_of(spec)))
    golden("kube/h100-prod/finetune-job.yaml", job)
    assert [each["kind"] for each in yaml.safe_load_all(job)] == ["Service", "NetworkPolicy", "Job"]
    other = kube_job.to_yaml(kube_job.pytorch_job(pods_of(spec, operator=True))[1:])
    golden("kube/h100-prod/finetune-pytorchjob.yaml", other)


@pytest.mark.feature("S004-37")
def test_the_verb_prints_the_pytorchjob_that_was_asked_for(
    public_key_file: Path, golden: Callable[[str, str], None]
) -> None:
    words = ["runs", "manifest", "finetune", "--stack", "h100-prod", "--image", IMAGE]
    done = CliRunner().invoke(app, [*words, "--pytorchjob"])
    _, made = done.stdout.split("---\n")
    golden("kube/h100-prod/finetune-pytorchjob.yaml", made)


def test_every_pod_starts_its_ranks_of_one_run(spec: StackSpec, tmp_path: Path) -> None:
    """Both pods once thought that they were rank 0: the number is read in the pod."""
    container = container_of(kube_job.service_and_job(pods_of(spec)))
    script = container["command"][-1]
    fake = tmp_path / "python3"
    fake.write_text('#!/bin/sh\necho "$@"\n')
    fake.chmod(0o755)
    environment = {each["name"]: each.get("value", "") for each in container["env"]}
    places = {"SOPERATOR_PLACE_RESULTS": f"{tmp_path}/r", "SOPERATOR_PLACE_CHKPT": f"{tmp_path}/c"}
    done = subprocess.run(
        ["bash", "-c", script],
        env={
            **environment,
            **places,
            "PATH": f"{tmp_path}:{os.defpath}",
            "JOB_COMPLETION_INDEX": "1",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert shlex.split(done.stdout) == [
        *("-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=8", "--node-rank=1"),
        *("--master-addr=finetune-0.finetune", "--master-port=29500"),
        *("-m", "workloads.train", "--recipe", "qwen2_7b_lora_16xh100"),
    ]


def test_the_places_are_the_same_filesystems_in_the_namespace_of_their_claims(
    spec: StackSpec,
) -> None:
    pods = pods_of(spec)
    assert pods.namespace == spec.cluster.namespace
    mounted = {each["mountPath"]: pods.volumes[each["name"]] for each in pods.mounts}
    claim = {"claimName": "jail-submount-training-pvc", "readOnly": False}
    assert mounted["/mnt/training"] == {"persistentVolumeClaim": claim}
    # Soperator's own is in its own pods only.
    assert mounted["/mnt/memory"] == {"emptyDir": {"medium": "Memory"}}
    for path in spec.storage.places.values():
        assert any(Path(path).is_relative_to(mount) for mount in mounted), path
    assert pods.environment["SOPERATOR_PLACE_DATA"] == "/mnt/training/data"


def test_a_place_without_a_mount_of_its_own_is_a_folder_of_the_jail(spec: StackSpec) -> None:
    places = {**spec.storage.places, "results": "/srv/results"}
    pods = pods_of(replace(spec, storage=replace(spec.storage, places=places)))
    mount = {"name": "jail", "mountPath": "/srv/results", "subPath": "srv/results"}
    assert mount in pods.mounts
    assert pods.volumes["jail"]["persistentVolumeClaim"]["claimName"] == "jail-pvc"


def test_a_place_on_nfs_is_refused_by_its_path(spec: StackSpec) -> None:
    nfs = NfsSpec(
        platform="cpu-d3",
        preset="8vcpu-32gb",
        boot_disk=BootDiskSpec(size_gib=128),
        data_disks=DataDisksSpec(size_gib=930, count=1),
        mount_path="/mnt/nfs",
    )
    places = {**spec.storage.places, "data": "/mnt/nfs/data"}
    changed = replace(spec, nfs=nfs, storage=replace(spec.storage, places=places))
    with pytest.raises(RenderError, match=r"storage\.places\.data: /mnt/nfs/data is on nfs"):
        pods_of(changed)


def test_a_whole_node_asks_for_1400_gib_and_half_of_the_gpus_for_half(spec: StackSpec) -> None:
    asks = container_of(kube_job.service_and_job(pods_of(spec)))["resources"]["limits"]
    assert asks == {"cpu": "64", "memory": "1400Gi", "nvidia.com/gpu": "8"}
    half = training_pods(spec, replace(job_of(spec), gpus_per_node=4), image=IMAGE)
    asks = container_of(kube_job.service_and_job(half))["resources"]["limits"]
    assert asks == {"cpu": "32", "memory": "700Gi", "nvidia.com/gpu": "4"}
    data = training_pods(spec, job_of(spec, "prepare-data"), image=IMAGE)
    asks = container_of(kube_job.service_and_job(data))["resources"]["limits"]
    assert asks == {"cpu": "64", "memory": "800Gi"}
    assert "torch.distributed" not in data.script, "one process needs no launcher"


def test_the_time_limit_and_the_name_of_the_run_go_with_it(spec: StackSpec) -> None:
    objects = kube_job.service_and_job(pods_of(spec, name="second", settings=["--set", "a.b=1"]))
    assert objects[-1]["spec"]["activeDeadlineSeconds"] == 6 * 3600
    container = container_of(objects)
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert environment["SOPERATOR_JOB_ID"] == "kube-second", "results of two runs stay apart"
    assert environment["MASTER_ADDR"] == "second-0.second"
    assert container["command"][-1].endswith("--set a.b=1")


@pytest.mark.feature("S004-37")
def test_a_pytorchjob_has_the_fields_that_the_operator_knows_and_no_other(
    spec: StackSpec,
) -> None:
    _, made = kube_job.pytorch_job(pods_of(spec, operator=True))
    jsonschema.validate(made, SCHEMA)
    made["spec"]["runPolicy"]["cleanPodsPolicy"] = "Running"
    with pytest.raises(jsonschema.ValidationError, match="cleanPodsPolicy"):
        jsonschema.validate(made, SCHEMA)


def test_no_other_pod_of_the_cluster_reaches_the_ranks(spec: StackSpec) -> None:
    """Ranks take what comes to their ports for what their peers say."""
    pods = pods_of(spec)
    _, policy, job = kube_job.service_and_job(pods)
    own = {"podSelector": {"matchLabels": job["spec"]["template"]["metadata"]["labels"]}}
    assert policy["kind"] == "NetworkPolicy"
    assert policy["metadata"]["namespace"] == pods.namespace
    assert policy["spec"] == {**own, "policyTypes": ["Ingress"], "ingress": [{"from": [own]}]}


@pytest.mark.feature("S004-37")
def test_a_pytorchjob_is_one_master_and_the_other_nodes(spec: StackSpec) -> None:
    _, made = kube_job.pytorch_job(pods_of(spec, operator=True))
    replicas = made["spec"]["pytorchReplicaSpecs"]
    assert {name: each["replicas"] for name, each in replicas.items()} == {"Master": 1, "Worker": 1}
    (container,) = replicas["Worker"]["template"]["spec"]["containers"]
    assert container["name"] == "pytorch", "the operator tells no other container its rank"
    assert "MASTER_ADDR" not in {each["name"] for each in container["env"]}
    assert container["command"][-1].startswith('NODE_RANK="$RANK"\n')
    assert '--master-port="$MASTER_PORT"' in container["command"][-1]
    one = training_pods(spec, replace(job_of(spec), nodes=1), image=IMAGE, operator=True)
    _, made = kube_job.pytorch_job(one)
    assert list(made["spec"]["pytorchReplicaSpecs"]) == ["Master"]


@pytest.mark.parametrize("value", ["a: #b", "~", "yes", "\u2028\u2029\x85\x7f", "\u00e9\U0001f600"])
def test_every_text_of_a_job_reaches_its_pods_as_it_is(spec: StackSpec, value: str) -> None:
    """To YAML some letters end a line, and others are none; JSON has them as they are."""
    pods = replace(pods_of(spec), environment={"A": value})
    *_, job = kube_job.service_and_job(pods)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert {"name": "A", "value": value} in container["env"]


@pytest.mark.parametrize("name", ["null", "true", "false"])
def test_a_name_that_is_a_word_of_yaml_stays_a_name(spec: StackSpec, name: str) -> None:
    """Without its subdomain the address of the first pod, `null-0.null`, does not resolve."""
    service, _policy, job = kube_job.service_and_job(pods_of(spec, name=name))
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"] == name


def test_the_image_is_the_jobs_own_unless_another_is_named(spec: StackSpec) -> None:
    """enroot divides the registry from the path by '#', Kubernetes by '/'."""
    job = replace(job_of(spec), container="registry.example#team/jobs:v1")
    assert training_pods(spec, job).image == "registry.example/team/jobs:v1"
    assert training_pods(spec, job, image=IMAGE).image == IMAGE
    with pytest.raises(RenderError, match=r"jobs\.finetune\.container: missing"):
        training_pods(spec, job_of(spec))
    file = replace(job_of(spec), container="/mnt/shared/images/jobs.sqsh")
    with pytest.raises(RenderError, match=r"jobs\.sqsh is a file of enroot"):
        training_pods(spec, file)
    assert training_pods(spec, file, image=IMAGE).image == IMAGE


def test_an_elastic_nodeset_gets_all_its_pods_back(spec: StackSpec) -> None:
    """The chart counts the most of an elastic set; one of fewer would lose nodes for good."""
    worker = replace(spec.nodes.workers[0], min_nodes=0, max_nodes=2)
    elastic = replace(spec, nodes=replace(spec.nodes, workers=(worker,)))
    pods = training_pods(elastic, job_of(elastic), image=IMAGE)
    lines = kube_job.how_to_run(elastic, pods, file="my job.yaml")
    patches = [line for line in lines if "patch nodeset" in line]
    assert [
        '{"spec": {"replicas": 0}}' in patches[0],
        '{"spec": {"replicas": 2}}' in patches[1],
    ] == [
        True,
        True,
    ]
    assert sum("-f 'my job.yaml'" in line for line in lines) == 2


def test_the_pods_are_on_the_first_nodeset_with_nodes_enough_or_on_the_named_one(
    spec: StackSpec,
) -> None:
    """The first one was taken, and a job of two nodes refused although the second set has them."""
    small, big = (
        replace(spec.nodes.workers[0], name=name, min_nodes=count, max_nodes=count)
        for name, count in (("small", 1), ("big", 2))
    )
    both = replace(spec, nodes=replace(spec.nodes, workers=(small, big)))
    one = replace(job_of(both), nodes=1)
    assert training_pods(both, job_of(both), image=IMAGE).worker.name == "big"
    assert training_pods(both, one, image=IMAGE).worker.name == "small"
    assert training_pods(both, one, image=IMAGE, nodeset="big").worker.name == "big"
    with pytest.raises(RenderError, match=r"small has 1 nodes, big has 2 nodes"):
        training_pods(both, replace(one, nodes=3), image=IMAGE)
    with pytest.raises(RenderError, match=r"--nodeset other: not one of the job's partition"):
        training_pods(both, one, image=IMAGE, nodeset="other")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"module": "workloads.serve"}, "serves until it is stopped"),
        ({"nodes": 3}, r"jobs\.finetune\.nodes: 3, and .* one nodeset \(worker has 2 nodes\)"),
        ({"name": "Fine_tune"}, "--name Fine_tune: use a-z"),
        ({"gpus_per_node": 9}, "9 is more than a node has"),
    ],
)
def test_what_kubernetes_could_not_run_is_refused(
    change: dict[str, Any], message: str, spec: StackSpec
) -> None:
    with pytest.raises(RenderError, match=message):
        training_pods(spec, replace(job_of(spec), **change), image=IMAGE)


def test_a_submount_mounted_twice_is_one_volume(spec: StackSpec) -> None:
    submount = SubmountSpec(name="deep", mount_path="/mnt/training/deep", size_gib=1)
    storage = replace(
        spec.storage,
        submounts=(*spec.storage.submounts, submount),
        places={**spec.storage.places, "cache": "/mnt/training/deep/cache"},
    )
    pods = pods_of(replace(spec, storage=storage))
    paths = [each["mountPath"] for each in pods.mounts]
    assert paths == sorted(set(paths)), "an inner mount comes after the one that it lies in"
    assert "/mnt/training/deep" in paths
