"""The Kubernetes Job of an acceptance: one pod a node, all its GPUs. Pure.

Rank 0's pod prints the result as its last line: nothing of it is lost with the pod. Owns what runs
in the pods; how they find each other and what they ask for is infra/render/kube_job.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from infra.render import kube_job
from infra.render.kube_job import PORT, Pods
from stacks.catalog import find_preset
from stacks.node_spec import WorkerSpec
from stacks.spec import StackSpec

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
    pods = _pods(spec, worker, job)
    kube_job.check(spec, pods)
    return kube_job.service_and_job(pods)


def how_to_run(
    spec: StackSpec, worker: WorkerSpec, job: KubeJob, *, file: str | None = None
) -> list[str]:
    """What to type, with the GPUs freed first and the result read before the pods go.

    `file` has the objects.
    """
    first = f"batch.kubernetes.io/job-name={job.name},batch.kubernetes.io/job-completion-index=0"
    return kube_job.how_to_run(
        spec,
        _pods(spec, worker, job),
        f"logs -l {first} --tail=1 > acceptance.json",
        file=file,
    )


def _pods(spec: StackSpec, worker: WorkerSpec, job: KubeJob) -> Pods:
    preset = find_preset(worker.platform, worker.preset)
    assert preset is not None
    volumes = {"results": "", "scratch": "", "shm": "Memory"}
    paths = {"results": _RESULTS, "scratch": "/scratch", "shm": "/dev/shm"}  # noqa: S108
    return Pods(
        name=job.name,
        namespace=job.namespace,
        nodes=job.nodes,
        worker=worker,
        image=job.image,
        script=_script(job, max(1, preset.gpus)),
        gpus=preset.gpus,
        environment={
            "SOPERATOR_STACK": spec.name,
            "SOPERATOR_PLACE_RESULTS": _RESULTS,
            "SOPERATOR_PLACE_SCRATCH": "/scratch",
        },
        volumes={
            name: {"emptyDir": {"medium": medium} if medium else {}}
            for name, medium in volumes.items()
        },
        mounts=tuple({"name": name, "mountPath": path} for name, path in paths.items()),
    )


def _script(job: KubeJob, ranks: int) -> str:
    return "\n".join(
        [
            f"python -m torch.distributed.run --nnodes={job.nodes} --nproc-per-node={ranks} \\",
            '  --node-rank="$NODE_RANK" --master-addr="$MASTER_ADDR" \\',
            f"  --master-port={PORT} -m workloads.accept --recipe accept_gpu \\",
            # A pod's folders are its own: any other place would be measured as one that is shared.
            f"  --set accept.profile={job.profile} --set 'accept.storage.places=[\"scratch\"]'",
            "status=$?",
            f'[ "$NODE_RANK" != 0 ] || python -c "{_PRINT}" || status=$?',
            "exit $status",
        ]
    )
