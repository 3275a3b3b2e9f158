"""Values of the charts of the Slurm cluster: helm-slurm-cluster, helm-nodesets and its checks.

The values are in charts/; here is what they are decided by. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from infra.render.login import minimum_nodes
from infra.render.values.pods import chart_values, preset_of
from stacks.catalog import PLATFORMS
from stacks.machines import checks_know
from stacks.spec import StackSpec
from stacks.spec.cluster import ChecksProfile, Maintenance, SssdSpec
from stacks.spec.nodes import LocalDiskSpec, WorkerSpec

# What slurm.conf needs beside the chart's own lines for accounts to bind: a job of nobody's account
# or over a limit is refused.
_ENFORCE: Final = "AccountingStorageEnforce=associations,limits,qos"


def slurm_cluster_values(spec: StackSpec, known: Mapping[str, Any]) -> dict[str, Any]:
    """One SlurmCluster on the stack's nodes; `known` are address and keys of the login service."""
    return chart_values(
        spec,
        "slurm-cluster",
        known,
        maintenance=maintenance(spec),
        is_elastic=any(map(is_elastic, spec.nodes.workers)),
        references=_sssd_references,
        lines=[
            *([_ENFORCE] if spec.slurm.accounts else []),
            *_kept_awake(spec),
            *spec.slurm.config_lines,
        ],
    )


def nodesets_values(spec: StackSpec, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """One NodeSet per declared worker group."""
    return chart_values(
        spec,
        "nodesets",
        known,
        replicas=replicas,
        gres=gres,
        features=features,
        references=_sssd_references,
        open_folders=_open_folders,
    )


def _sssd_references(sssd: SssdSpec) -> dict[str, str]:
    """Names of what the sidecar reads, in the keys that both charts have for them."""
    found = {"sssdConfSecretRefName": sssd.config_secret}
    if sssd.ca_config_map is not None:
        found["sssdLdapCAConfigMapRefName"] = sssd.ca_config_map
    return found


def maintenance(spec: StackSpec) -> str:
    """Mode of the SlurmCluster: a paused stack has no pods of Slurm, whatever else is declared."""
    if spec.nodes.paused and not spec.soperator.maintenance.startswith(Maintenance.DOWNSCALE):
        return Maintenance.DOWNSCALE.value
    return spec.soperator.maintenance.value


def is_stopped(spec: StackSpec) -> bool:
    """Whether no pod of Slurm runs: nobody can enter, and no check can run."""
    return maintenance(spec).startswith(Maintenance.DOWNSCALE)


def _kept_awake(spec: StackSpec) -> list[str]:
    """Keeps the least nodes of an elastic set awake: their machines are there and paid anyway.

    The operator excepts the nodes of fixed sets alone. Of two lines Slurm takes the later one,
    which is this, so it names those too ("specified more than once, latest value used").
    """
    if not any(0 < worker.min_nodes < worker.max_nodes for worker in spec.nodes.workers):
        return []
    return [f"SuspendExcNodes={','.join(minimum_nodes(spec))}"]


def gres(worker: WorkerSpec) -> str | None:
    """Gres of one node, such as `gpu:nvidia_l40s:2`; None without GPUs."""
    preset = preset_of(worker)
    if not preset.gpus:
        return None
    type_ = PLATFORMS[worker.platform].gres_type
    return f"gpu:{type_}:{preset.gpus}" if type_ else f"gpu:{preset.gpus}"


def is_elastic(worker: WorkerSpec) -> bool:
    """Whether Slurm itself brings and drops nodes between the least and the most."""
    return worker.min_nodes < worker.max_nodes


def features(worker: WorkerSpec) -> list[str]:
    """What `--constraint` may name: platform and boot disk as in the recipe, then its own."""
    hardware = (worker.platform, str(worker.boot_disk.type))
    return [*dict.fromkeys((*(name.replace("-", "_") for name in hardware), *worker.features))]


def replicas(worker: WorkerSpec) -> dict[str, Any]:
    """How many pods of slurmd the nodeset has, as its chart counts them."""
    if not is_elastic(worker):
        return {"replicas": worker.min_nodes}
    # The chart makes one of zero replicas; of an elastic set it counts the most.
    return {
        "replicas": worker.max_nodes,
        "ephemeralNodes": True,
        "initialNumberEphemeralNodes": worker.min_nodes,
    }


def _open_folders(spec: StackSpec, disk: LocalDiskSpec) -> list[str]:
    """Folders of the disk that every user writes into: declared ones, the disk if it has places."""
    places = (PurePosixPath(path) for path in spec.storage.places.values())
    has_places = any(path.is_relative_to(disk.mount_path) for path in places)
    return [*(["."] if has_places else []), *disk.folders]


# Minutes on an exclusive node each.
_QUICK_GPU: Final = (
    *("cuda-samples", "all-reduce-perf-nccl-without-ib", "mem-perf", "dcgmi-diag-r2"),
)
_QUICK_FABRIC: Final = ("all-reduce-perf-nccl-with-ib", "ib-gpu-perf")
# Up to two hours on an exclusive node each, or started by another check.
_LONG_GPU: Final = ("all-reduce-perf-nccl-in-docker", "gpu-fryer", "dcgmi-diag-r3")


def active_checks_values(spec: StackSpec) -> dict[str, Any]:
    """The checks of the declared profile on this stack's hardware.

    GPU checks: none on hardware that the health checker does not know.
    """
    workers, profile = spec.nodes.workers, spec.soperator.checks
    has_fabric = any(worker.has_fabric for worker in workers)
    chosen: list[str] = []
    if profile in (ChecksProfile.QUICK, ChecksProfile.FULL) and any(map(checks_know, workers)):
        chosen = [
            *_QUICK_GPU,
            *(_QUICK_FABRIC if has_fabric else ()),
            *(_LONG_GPU if profile is ChecksProfile.FULL else ()),
        ]
    return chart_values(
        spec,
        "soperator-activechecks",
        has_fabric=has_fabric,
        known_gpu_checks=(*_QUICK_GPU, *_QUICK_FABRIC, *_LONG_GPU),
        gpu_checks=chosen,
        num_gpus=[count for worker in workers if (count := preset_of(worker).gpus)],
    )
