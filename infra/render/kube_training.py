"""A declared job as Kubernetes pods: the same module, recipe and ranks, without Slurm. Pure.

Owns where the declared places are for a pod: claims of the same filesystems, in Slurm's namespace,
because a claim is of its namespace. The code comes with the image: its workloads/ is what runs.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from infra.render import names
from infra.render.job_mounts import CONTAINER_PYTHON
from infra.render.job_nodes import RenderError, cpus_per_rank, nodesets_of
from infra.render.kube_job import PORT, Pods, check
from infra.render.values.mounts import claim
from stacks.catalog import find_preset
from stacks.mounts import shared_mounts
from stacks.node_spec import WorkerSpec
from stacks.slurm_spec import JobSpec
from stacks.slurm_time import slurm_seconds
from stacks.soperator_mounts import MEMORY
from stacks.spec import StackSpec

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
            "this code and torch in it (infra/image/build.sh)"
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
            **{f"SOPERATOR_PLACE_{place.upper()}": path for place, path in _sorted_places(spec)},
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


def _sorted_places(spec: StackSpec) -> list[tuple[str, str]]:
    return sorted(spec.storage.places.items())


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
    preset = find_preset(worker.platform, worker.preset)
    assert preset is not None
    cpus = (job.cpus_per_task or 1) * ranks
    return {"cpu": str(cpus), "memory": f"{max(2, preset.memory_gib * cpus // preset.vcpus)}Gi"}


def _places(
    spec: StackSpec, worker: WorkerSpec
) -> tuple[dict[str, dict[str, Any]], tuple[dict[str, str], ...]]:
    """Volumes and mounts behind every declared place, the shortest mount path first."""
    storage = spec.storage
    claimed = {
        submount.mount_path: (
            names.submount_tag(submount.name),
            claim(names.submount_tag(submount.name)),
        )
        for submount in storage.submounts
    }
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
    others = {path: key for key, path in shared_mounts(spec).items() if path not in claimed}
    volumes: dict[str, dict[str, Any]] = {"shm": {"emptyDir": {"medium": "Memory"}}}
    mounts: dict[str, dict[str, str]] = {
        _SHARED_MEMORY: {"name": "shm", "mountPath": _SHARED_MEMORY}
    }
    for place, path in _sorted_places(spec):
        mount = _deepest(path, [*claimed, *own, *others])
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
        name, source = {**claimed, **own}[mount]
        volumes[name] = source
        mounts[mount] = {"name": name, "mountPath": mount}
    return volumes, tuple(mounts[path] for path in sorted(mounts))


def _deepest(path: str, mounts: Sequence[str]) -> str | None:
    over = [each for each in mounts if PurePosixPath(path).is_relative_to(each)]
    return max(over, key=len, default=None)
