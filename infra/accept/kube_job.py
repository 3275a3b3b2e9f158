"""The Kubernetes Job of an acceptance: a headless service and one pod a node, all its GPUs. Pure.

Rank 0's pod prints the result as its last line: nothing of it is lost with the pod. Owns what the
pods ask for and the words on how to free GPUs that slurmd's pods hold. Applies nothing.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from infra.accept.errors import AcceptError
from infra.render import names
from stacks.catalog import find_preset
from stacks.node_capacity import GIB, node_capacity
from stacks.node_spec import WorkerSpec
from stacks.spec import StackSpec

PORT: Final = 29500
_NAME: Final = re.compile(r"[a-z]([a-z0-9-]{0,40}[a-z0-9])?")
_RESULTS: Final = "/results"
# torchrun ends with 1 whatever a rank ended with: NOT RUN is told by the result.
_PRINT: Final = (
    "import glob, json; "
    f"found = json.load(open(glob.glob('{_RESULTS}/*/acceptance.json')[0])); "
    "print(json.dumps(found)); "
    "raise SystemExit({'FAIL': 1, 'NOT_RUN': 69}.get(found['outcome'], 0))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeJob:
    """What differs from job to job."""

    name: str
    image: str
    """With this project's `workloads` on PYTHONPATH or as its working directory, and torch."""
    nodes: int
    profile: str = "quick"
    namespace: str = "default"


def render(spec: StackSpec, worker: WorkerSpec, job: KubeJob) -> list[dict[str, Any]]:
    """The service and the Job; refused where the nodeset has fewer nodes."""
    if not _NAME.fullmatch(job.name):
        raise AcceptError(f"--name {job.name}: use a-z, 0-9 and '-', at most 42, a letter first")
    if not 1 <= job.nodes <= worker.max_nodes:
        raise AcceptError(
            f"--nodes {job.nodes}: {spec.name} has {worker.max_nodes} nodes of {worker.name}"
        )
    labels = {"app.kubernetes.io/name": job.name}
    meta = {"name": job.name, "namespace": job.namespace, "labels": labels}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta,
        "spec": {
            "clusterIP": "None",
            "selector": labels,
            # Ranks look for each other before any of them is ready.
            "publishNotReadyAddresses": True,
            "ports": [{"name": "rendezvous", "port": PORT}],
        },
    }
    batch = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta,
        "spec": {
            "completionMode": "Indexed",
            "completions": job.nodes,
            "parallelism": job.nodes,
            "backoffLimit": 0,
            "template": {"metadata": {"labels": labels}, "spec": _pod(spec, worker, job)},
        },
    }
    return [service, batch]


def to_yaml(objects: list[dict[str, Any]]) -> str:
    """The objects as documents that kubectl takes."""
    return "---\n".join(json.dumps(each, indent=2) + "\n" for each in objects)


def _pod(spec: StackSpec, worker: WorkerSpec, job: KubeJob) -> dict[str, Any]:
    preset = find_preset(worker.platform, worker.preset)
    assert preset is not None
    gpus = {names.GPU_RESOURCE: str(preset.gpus)} if preset.gpus else {}
    # Half of the vCPUs and 7/8 of the memory: 64 and 1400Gi of the 8-GPU presets of seed 001. A
    # small node keeps more than an eighth for itself.
    offered = node_capacity(preset, worker.boot_disk.size_gib).memory_mib // GIB
    memory_gib = min(preset.memory_gib * 7 // 8, offered)
    asks = {"cpu": str(preset.vcpus // 2), "memory": f"{memory_gib}Gi", **gpus}
    environment = {
        "MASTER_ADDR": f"{job.name}-0.{job.name}",
        "SOPERATOR_PLATFORM": worker.platform,
        "SOPERATOR_PRESET": worker.preset,
        "SOPERATOR_STACK": spec.name,
        "SOPERATOR_PLACE_RESULTS": _RESULTS,
        "SOPERATOR_PLACE_SCRATCH": "/scratch",
        "PYTHONUNBUFFERED": "1",
    }
    if not worker.has_fabric:
        environment["NCCL_IB_DISABLE"] = "1"
    volumes = {"results": "", "scratch": "", "shm": "Memory"}
    paths = {"results": _RESULTS, "scratch": "/scratch", "shm": "/dev/shm"}  # noqa: S108
    # InfiniBand registers memory, which counts against the limit of locked pages.
    security = {"capabilities": {"add": ["IPC_LOCK"]}} if worker.has_fabric else {}
    container = {
        "name": "accept",
        "image": job.image,
        "command": ["bash", "-c", _script(job, max(1, preset.gpus))],
        "env": [
            *({"name": name, "value": value} for name, value in environment.items()),
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        "resources": {"limits": asks, "requests": asks},
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in paths.items()],
        **({"securityContext": security} if security else {}),
    }
    return {
        "subdomain": job.name,
        "restartPolicy": "Never",
        "nodeSelector": {names.NODESET_NAME_LABEL: worker.name},
        "tolerations": [{"key": names.GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [container],
        "volumes": [
            {"name": name, "emptyDir": {"medium": medium} if medium else {}}
            for name, medium in volumes.items()
        ],
    }


def _script(job: KubeJob, ranks: int) -> str:
    return "\n".join(
        [
            f"python -m torch.distributed.run --nnodes={job.nodes} --nproc-per-node={ranks} \\",
            '  --node-rank="$JOB_COMPLETION_INDEX" --master-addr="$MASTER_ADDR" \\',
            f"  --master-port={PORT} -m workloads.accept --recipe accept_gpu \\",
            # A pod's folders are its own: any other place would be measured as one that is shared.
            f"  --set accept.profile={job.profile} --set 'accept.storage.places=[\"scratch\"]'",
            "status=$?",
            f'[ "$JOB_COMPLETION_INDEX" != 0 ] || python -c "{_PRINT}" || status=$?',
            "exit $status",
        ]
    )


def how_to_run(spec: StackSpec, worker: WorkerSpec, job: KubeJob) -> list[str]:
    """What to type, with the GPUs freed first: every pod of slurmd holds all GPUs of its node."""
    slurm = spec.cluster.namespace
    nodes = " ".join(f"{worker.name}-{index}" for index in range(worker.max_nodes))
    kubectl = f"kubectl -n {job.namespace}"
    first = f"batch.kubernetes.io/job-name={job.name},batch.kubernetes.io/job-completion-index=0"

    def replicas(count: int) -> str:
        patch = json.dumps({"spec": {"replicas": count}})
        return f"  kubectl -n {slurm} patch nodeset {worker.name} --type merge -p '{patch}'"

    return [
        (
            f"slurmd's pods hold every GPU of {worker.name}. Free them; the machines stay, because "
            "their node group counts them. Bring the pods back after:"
        ),
        f"  soperator drain {nodes} --reason 'a Kubernetes Job' --wait --stack {spec.name}",
        replicas(0),
        f"  kubectl apply -f {job.name}.yaml && {kubectl} get jobs -w",
        f"  {kubectl} logs -f job/{job.name} --all-containers",
        f"  {kubectl} logs -l {first} --tail=1 > acceptance.json",
        f"  kubectl delete -f {job.name}.yaml",
        replicas(worker.min_nodes),
        f"  soperator drain {nodes} --undo --stack {spec.name}",
    ]
