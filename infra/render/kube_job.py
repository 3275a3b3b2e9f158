"""A declared job as a Kubernetes Job or PyTorchJob: `soperator runs manifest`.

A claim is of its namespace, so places are claims of the same filesystems in Slurm's namespace. The
code comes with the image. `how_to_run` says how to free GPUs that slurmd's pods hold.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

from infra.render import names
from infra.render.charts import claim, replicas
from infra.render.sbatch import CONTAINER_PYTHON, RenderError, nodesets_of
from infra.render.templates import manifest
from stacks.catalog import GIB, node_capacity
from stacks.machines import MEMORY, cpus_per_rank, shared_mounts
from stacks.schedule import slurm_seconds
from stacks.spec import StackSpec
from stacks.spec.nodes import WorkerSpec
from stacks.spec.slurm import JobSpec

PORT: Final = 29500
_NAME: Final = re.compile(r"[a-z]([a-z0-9-]{0,40}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """What the pods of one job have in common; one pod a node."""

    name: str
    namespace: str
    nodes: int
    worker: WorkerSpec
    image: str
    script: str
    """For bash; `$NODE_RANK` is the pod's number from 0, `$MASTER_ADDR` the first pod."""
    gpus: int
    """GPUs of each pod."""
    environment: Mapping[str, str]
    volumes: Mapping[str, Mapping[str, Any]]
    """Name of a volume -> what stands behind it."""
    mounts: tuple[Mapping[str, str], ...]
    deadline_s: int | None = None
    """Time after which Kubernetes ends it."""
    asks: Mapping[str, str] = field(default_factory=dict[str, str])
    """CPU and memory of each pod; by default what goes with its GPUs."""
    fails_alone: bool = False
    """Whether a Job's other pods go on when one fails; else they are deleted, and their logs."""


def check(spec: StackSpec, pods: Pods) -> None:
    """Refuses a name that Kubernetes would not take and nodes that the set does not have."""
    if not _NAME.fullmatch(pods.name):
        raise RenderError(f"--name {pods.name}: use a-z, 0-9 and '-', at most 42, a letter first")
    if not 1 <= pods.nodes <= pods.worker.max_nodes:
        raise RenderError(
            f"--nodes {pods.nodes}: {spec.name} has {pods.worker.max_nodes} nodes of "
            f"{pods.worker.name}"
        )


_POLICY: Final = ("networking.k8s.io/v1", "NetworkPolicy")


def service_and_job(pods: Pods) -> list[dict[str, Any]]:
    """The service by which pods resolve `NAME-0.NAME`, their policy, and a Job of numbered pods."""
    return _objects(pods, ("v1", "Service"), _POLICY, ("batch/v1", "Job"))


def pytorch_job(pods: Pods) -> list[dict[str, Any]]:
    """The policy, and a PyTorchJob of Kubeflow's training operator, which makes the services.

    RANK of a pod is its number in every release of the operator, MASTER_ADDR and MASTER_PORT are
    the first one's: kubeflow/training-operator, pkg/controller.v1/pytorch/envvar.go (1417bbc).
    """
    return _objects(pods, _POLICY, ("kubeflow.org/v1", "PyTorchJob"))


def _objects(pods: Pods, *kinds: tuple[str, str]) -> list[dict[str, Any]]:
    worker, labels = pods.worker, {"app.kubernetes.io/name": pods.name}
    gpus = {names.GPU_RESOURCE: str(pods.gpus)} if pods.gpus else {}
    specs = manifest(
        "kube_job.yaml.j2",
        pods=pods,
        names=names,
        labels=labels,
        PORT=PORT,
        asks={**(pods.asks or share(worker, pods.gpus)), **gpus},
        environment={
            "SOPERATOR_PLATFORM": worker.platform,
            "SOPERATOR_PRESET": worker.preset,
            # What NCCL must be told; of InfiniBand as SkyPilot's examples/nebius_infiniband has it.
            **({"NCCL_IB_HCA": "mlx5"} if worker.has_fabric else {"NCCL_IB_DISABLE": "1"}),
            "PYTHONUNBUFFERED": "1",
            **pods.environment,
        },
    )
    place, metadata = (pods.name, pods.namespace), {"labels": labels}
    return [
        names.kube_object(version, kind, *place, metadata=metadata, spec=specs[kind])
        for version, kind in kinds
    ]


def to_yaml(objects: list[dict[str, Any]]) -> str:
    """The objects as documents that kubectl takes."""
    return "---\n".join(json.dumps(each, indent=2) + "\n" for each in objects)


def how_to_run(spec: StackSpec, pods: Pods, *reads: str, file: str | None = None) -> list[str]:
    """What to type, with the GPUs freed first: every pod of slurmd holds all GPUs of its node.

    `reads` are lines that fetch a result before the objects are deleted; `file` has the objects.
    """
    slurm, worker = spec.cluster.namespace, pods.worker
    nodes = " ".join(f"{worker.name}-{index}" for index in range(worker.max_nodes))
    kubectl = f"kubectl -n {pods.namespace}"
    label = f"app.kubernetes.io/name={pods.name}"
    file = shlex.quote(file or f"{pods.name}.yaml")

    def scale(count: int) -> str:
        patch = json.dumps({"spec": {"replicas": count}})
        return f"  kubectl -n {slurm} patch nodeset {worker.name} --type merge -p '{patch}'"

    return [
        (
            f"slurmd's pods hold every GPU of {worker.name}. Free them; the machines stay, because "
            "their node group counts them. Bring the pods back after:"
        ),
        f"  soperator cluster drain {nodes} --reason 'a Kubernetes Job' --wait --stack {spec.name}",
        scale(0),
        f"  kubectl apply -f {file} && {kubectl} get pods -w -l {label}",
        (
            f"  {kubectl} logs -f -l {label} --all-containers --prefix "
            f"--max-log-requests={pods.nodes} --tail=-1"  # by a label kubectl begins with 10 lines
        ),
        *(f"  {kubectl} {line}" for line in reads),
        f"  kubectl delete -f {file}",
        scale(replicas(worker)["replicas"]),
        f"  soperator cluster drain {nodes} --undo --stack {spec.name}",
    ]


def share(worker: WorkerSpec, gpus: int) -> dict[str, str]:
    """CPU and memory that go with `gpus` of a node: half of its vCPUs, 7/8 of its memory.

    64 and 1400Gi of the 8-GPU presets. A small node keeps more than an eighth for
    itself.
    """
    preset = worker.hardware
    assert preset is not None
    offered = node_capacity(preset, worker.boot_disk.size_gib).memory_mib // GIB
    memory_gib = min(preset.memory_gib * 7 // 8, offered)
    part, whole = (gpus, preset.gpus) if gpus else (1, 1)
    return {
        "cpu": str(preset.vcpus // 2 * part // whole),
        "memory": f"{memory_gib * part // whole}Gi",
    }


_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108


def training_pods(
    spec: StackSpec,
    job: JobSpec,
    *,
    image: str | None = None,
    name: str | None = None,
    nodeset: str | None = None,
    settings: Sequence[str] = (),
    operator: bool = False,
) -> Pods:
    """The pods of `job`, one a node; `operator` is for a PyTorchJob, which brings the address.

    `settings` are further words of the module, such as `--set train.max_steps=8`. All pods are on
    one nodeset: `nodeset`, by default the first of the job's partition that has nodes enough.
    """
    if job.is_server:
        raise RenderError(
            f"{spec.name}: jobs.{job.name}: serves until it is stopped, a Kubernetes Job ends; "
            "submit it to Slurm"
        )
    if job.environment_file is not None:
        raise RenderError(
            f"{spec.name}: jobs.{job.name}.environment_file: {job.environment_file} is read on the "
            "cluster's login node and workers, not in a pod; submit the job to Slurm"
        )
    chosen = image or job.container
    if chosen is None:
        raise RenderError(
            f"{spec.name}: jobs.{job.name}.container: missing; declare it or give --image, with "
            "this code and torch in it (infra/setup/image/build.sh)"
        )
    if chosen.endswith(".sqsh"):
        raise RenderError(
            f"{spec.name}: jobs.{job.name}.container: {chosen} is a file of enroot, which "
            "Kubernetes cannot pull; give --image with an image of a registry"
        )
    worker = _worker(spec, job, nodeset)
    name = name or job.name
    ranks = max(1, job.gpus_per_node)
    volumes, mounts = _places(spec, worker)
    places = sorted(spec.storage.places.items())
    pods = Pods(
        name=name,
        # A claim can be used in its own namespace only.
        namespace=spec.cluster.namespace,
        nodes=job.nodes,
        worker=worker,
        image=chosen.replace("#", "/", 1),
        script=_script(job, ranks, settings, port="$MASTER_PORT" if operator else str(PORT)),
        gpus=job.gpus_per_node,
        environment={
            "SOPERATOR_STACK": spec.name,
            "SOPERATOR_JOB": job.name,
            "SOPERATOR_JOB_ID": f"kube-{name}",
            **{f"SOPERATOR_PLACE_{place.upper()}": path for place, path in places},
            "OMP_NUM_THREADS": str(cpus_per_rank([worker], job)),
            **job.environment,
            **({"SOPERATOR_DECLARED": " ".join(job.environment)} if job.environment else {}),
        },
        volumes=volumes,
        mounts=mounts,
        deadline_s=slurm_seconds(job.time_limit),
        asks=_asks(worker, job, ranks),
    )
    check(spec, pods)
    return pods


def _worker(spec: StackSpec, job: JobSpec, nodeset: str | None) -> WorkerSpec:
    fitting = nodesets_of(spec, job)
    have = ", ".join(f"{each.name} has {each.max_nodes} nodes" for each in fitting)
    if nodeset is not None and nodeset not in {each.name for each in fitting}:
        raise RenderError(
            f"{spec.name}: --nodeset {nodeset}: not one of the job's partition with GPUs enough "
            f"({have})"
        )
    for worker in fitting:
        if nodeset in (None, worker.name) and job.nodes <= worker.max_nodes:
            return worker
    raise RenderError(
        f"{spec.name}: jobs.{job.name}.nodes: {job.nodes}, and pods of one job are on one nodeset "
        f"({have}); name another with --nodeset, or submit it to Slurm"
    )


def _script(job: JobSpec, ranks: int, settings: Sequence[str], *, port: str) -> str:
    words = shlex.join(["-m", job.module, "--recipe", job.recipe, *job.args, *settings])
    folders = (
        'mkdir -p "$SOPERATOR_PLACE_RESULTS" '
        '"${SOPERATOR_PLACE_CHKPT:-$SOPERATOR_PLACE_RESULTS}" || exit 78'
    )
    if job.nodes == 1 and not job.gpus_per_node:
        return f"{folders}\nexec {CONTAINER_PYTHON} {words}"
    return "\n".join(
        [
            folders,
            f"exec {CONTAINER_PYTHON} -m torch.distributed.run --nnodes={job.nodes} \\",
            f'  --nproc-per-node={ranks} --node-rank="$NODE_RANK" \\',
            f'  --master-addr="$MASTER_ADDR" --master-port="{port}" \\',
            f"  {words}",
        ]
    )


def _asks(worker: WorkerSpec, job: JobSpec, ranks: int) -> dict[str, str]:
    """Nothing with GPUs, whose share counts; else the CPUs and what memory goes with them."""
    if job.gpus_per_node:
        return {}
    preset = worker.hardware
    assert preset is not None
    cpus = (job.cpus_per_task or 1) * ranks
    return {"cpu": str(cpus), "memory": f"{max(2, preset.memory_gib * cpus // preset.vcpus)}Gi"}


def _places(
    spec: StackSpec, worker: WorkerSpec
) -> tuple[dict[str, dict[str, Any]], tuple[dict[str, str], ...]]:
    """Volumes and mounts behind every declared place, the shortest mount path first."""
    storage = spec.storage
    own: dict[str, tuple[str, dict[str, Any]]] = {
        disk.mount_path: (f"disk-{disk.name}", {"emptyDir": {}}) for disk in worker.local_disks
    }
    # Soperator's own RAM disk, whose place is taken here by one of the pod's own.
    own[MEMORY] = ("soperator-memory", {"emptyDir": {"medium": "Memory"}})
    if storage.memory is not None:
        limit = {"medium": "Memory", "sizeLimit": f"{storage.memory.size_gib}Gi"}
        own[storage.memory.mount_path] = ("memory", {"emptyDir": limit})
    if worker.local_nvme is not None:
        own[worker.local_nvme.mount_path] = ("local-nvme", {"emptyDir": {}})
    for submount in storage.submounts:
        tag = names.submount_tag(submount.name)
        own[submount.mount_path] = (tag, claim(tag))
    others = {path: key for key, path in shared_mounts(spec).items() if path not in own}
    volumes: dict[str, dict[str, Any]] = {"shm": {"emptyDir": {"medium": "Memory"}}}
    mounts: dict[str, dict[str, str]] = {
        _SHARED_MEMORY: {"name": "shm", "mountPath": _SHARED_MEMORY}
    }
    for place, path in sorted(storage.places.items()):
        over = [each for each in (*own, *others) if PurePosixPath(path).is_relative_to(each)]
        mount = max(over, key=len, default=None)
        if mount in others:
            raise RenderError(
                f"{spec.name}: storage.places.{place}: {path} is on {others[mount]}, which pods "
                "outside Slurm do not mount; name a place on a submount or in the jail"
            )
        if mount is None:
            # A folder of the jail, at the path that it has there.
            volumes[names.JAIL] = claim(names.JAIL)
            mounts[path] = {"name": names.JAIL, "mountPath": path, "subPath": path.lstrip("/")}
            continue
        name, source = own[mount]
        volumes[name] = source
        mounts[mount] = {"name": name, "mountPath": mount}
    return volumes, tuple(mounts[path] for path in sorted(mounts))
