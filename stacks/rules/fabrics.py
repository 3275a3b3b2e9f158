"""Rules of fabrics: which nodes join one, which fabric, and GPU clusters that exist."""

from __future__ import annotations

from stacks.catalog import FABRICS, PLATFORMS, Preset
from stacks.errors import Findings
from stacks.spec.nodes import WorkerSpec


def check_network(
    region: str, worker: WorkerSpec, preset: Preset, path: str, findings: Findings
) -> None:
    """What the nodes of a nodeset talk over."""
    if worker.gpu_cluster_id is not None:
        _check_gpu_cluster(worker, preset.allows_gpu_cluster, path, findings)
    elif worker.infiniband_fabric is not None:
        _check_fabric(region, worker, preset.allows_gpu_cluster, path, findings)
    elif preset.allows_gpu_cluster and worker.max_nodes > 1:
        findings.warn(
            f"{path}.infiniband_fabric",
            f"none, so nodes of '{preset.name}' talk over Ethernet; name a fabric "
            f"({', '.join(_fabrics(region, worker.platform))})",
            rule="nodes.no-fabric",
        )
    elif preset.gpus and not preset.allows_gpu_cluster and worker.max_nodes > 1:
        findings.warn(
            f"{path}.preset",
            f"'{preset.name}' of '{worker.platform}' cannot join an InfiniBand fabric, so its "
            f"nodes talk over Ethernet{_with_fabric(worker.platform)}",
            rule="nodes.ethernet",
        )


def _check_gpu_cluster(worker: WorkerSpec, allows: bool, path: str, findings: Findings) -> None:
    """A GPU cluster that exists: its fabric is already chosen."""
    key, id_ = f"{path}.gpu_cluster_id", worker.gpu_cluster_id or ""
    if not id_.startswith("computegpucluster-"):
        findings.error(
            key,
            f"'{id_}' is no GPU cluster; its id starts with 'computegpucluster-'",
            rule="nodes.gpu-cluster-id",
        )
    if worker.infiniband_fabric is not None:
        findings.error(
            key,
            f"beside infiniband_fabric '{worker.infiniband_fabric}'; the GPU cluster has its own "
            "fabric: give one of the two",
            rule="nodes.gpu-cluster-or-fabric",
        )
    if not allows:
        findings.error(
            key,
            f"'{worker.preset}' of '{worker.platform}' cannot join a GPU cluster"
            f"{_with_fabric(worker.platform)}",
            rule="nodes.fabric-preset",
        )


def _with_fabric(platform: str) -> str:
    """Presets of the platform that can join a fabric, as a hint; empty when there are none."""
    able = [item.name for item in PLATFORMS[platform].presets.values() if item.allows_gpu_cluster]
    return f"; these can: {', '.join(able)}" if able else ""


def _check_fabric(
    region: str, worker: WorkerSpec, allows: bool, path: str, findings: Findings
) -> None:
    key, name = f"{path}.infiniband_fabric", worker.infiniband_fabric
    fabric = FABRICS.get(name or "")
    if not allows:
        with_fabric = [
            preset.name
            for preset in PLATFORMS[worker.platform].presets.values()
            if preset.allows_gpu_cluster
        ]
        instead = (
            f"use {', '.join(with_fabric)} or remove the fabric"
            if with_fabric
            else "remove the fabric"
        )
        findings.error(
            key,
            f"'{name}': '{worker.preset}' of '{worker.platform}' cannot join a GPU cluster; "
            f"{instead}",
            rule="nodes.fabric-preset",
        )
    elif fabric is None:
        findings.warn(
            key,
            f"'{name}' is not in stacks/catalog.py (has: "
            f"{', '.join(_fabrics(region, worker.platform))}); only the API can tell",
            rule="nodes.fabric-unknown",
        )
    elif fabric.region != region or fabric.platform != worker.platform:
        here = ", ".join(_fabrics(region, worker.platform)) or "none known"
        findings.error(
            key,
            f"'{name}' is a fabric of {fabric.platform} in {fabric.region}, not of "
            f"{worker.platform} in {region} (has: {here})",
            rule="nodes.fabric-place",
        )


def _fabrics(region: str, platform: str) -> tuple[str, ...]:
    return tuple(
        fabric.name
        for fabric in FABRICS.values()
        if fabric.region == region and fabric.platform == platform
    )
