"""Rules of node groups: platform, preset, disks, counts, names, and which nodes join a fabric."""

from __future__ import annotations

from typing import Final

from stacks.catalog import (
    BOOT_DISK_ADVISED_GIB,
    BOOT_DISK_MIN_GIB,
    FABRICS,
    NODES_PER_GROUP_MAX,
    PLATFORMS,
    SYSTEM_MIN_NODES_ADVISED,
    VCPUS_ADVISED,
    Alias,
    Preset,
)
from stacks.errors import Spare
from stacks.machines import ROLES, node_groups
from stacks.rules import Findings
from stacks.rules.naming import name_problem, word_problem
from stacks.rules.workers import check_labels, check_workers, stripe_problems
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing, BootDiskSpec, MachineSpec, NodeGroupSpec, WorkerSpec

# Slurm nodes and pods are called <nodeset>-<ordinal>; a pod's name has 63 characters.
_NODESET_NAME_MAX: Final = 50


def check_nodes(spec: StackSpec, findings: Findings) -> None:
    """Every node group on its own, then what holds between them."""
    for role, path, group in node_groups(spec):
        check_hardware(spec.nebius.region, path, group, findings)
        _check_boot_disk(role, f"{path}.boot_disk", group.boot_disk, findings)
        _check_counts(role, path, group, findings)
        preset = group.hardware
        advised = VCPUS_ADVISED.get(role)
        if preset is not None and advised is not None and preset.vcpus < advised:
            findings.add("nodes.insufficient", f"{path}.preset", advised=advised, role=role)
        check_labels(path, group, findings)
    for index, worker in enumerate(spec.nodes.workers):
        _check_worker(spec, worker, f"nodes.workers[{index}]", findings)
    if not spec.nodes.workers:
        findings.add("nodes.no-worker", "nodes.workers")
    findings.unique("nodes.name-twice", "nodes.workers", spec.nodes.workers, key="name")
    check_workers(spec, findings)
    if spec.slurm.accounting and spec.nodes.accounting is None:
        findings.add("nodes.accounting-missing", "nodes.accounting")
    if not spec.slurm.accounting and spec.nodes.accounting is not None:
        findings.add("nodes.accounting-unused", "nodes.accounting")


def check_hardware(region: str, path: str, group: MachineSpec, findings: Findings) -> None:
    """Platform and preset of a machine: known, and offered in the region."""
    if isinstance(group.platform, Alias):
        findings.add("nodes.platform-alias", f"{path}.platform")
    platform = PLATFORMS.get(group.platform)
    if platform is None:
        findings.add("nodes.platform", f"{path}.platform", known=PLATFORMS)
        return
    if group.preset not in platform.presets:
        findings.add("nodes.preset", f"{path}.preset", platform=platform)
    if region not in platform.regions:
        findings.add("nodes.platform-region", f"{path}.platform", platform=platform, region=region)


def _check_boot_disk(role: str, path: str, disk: BootDiskSpec, findings: Findings) -> None:
    if disk.size_gib < BOOT_DISK_MIN_GIB:
        findings.add("nodes.boot-disk-least", f"{path}.size_gib", least=BOOT_DISK_MIN_GIB)
    elif disk.size_gib < BOOT_DISK_ADVISED_GIB[role]:
        findings.add(
            "nodes.boot-disk-advised",
            f"{path}.size_gib",
            advised=BOOT_DISK_ADVISED_GIB[role],
            role=role,
        )
    step, most = stripe_problems(disk.size_gib, disk.type)
    findings.add_text("nodes.boot-disk-step", f"{path}.size_gib", step)
    findings.add_text("nodes.boot-disk-most", f"{path}.size_gib", most)


def _check_counts(role: str, path: str, group: NodeGroupSpec, findings: Findings) -> None:
    if group.min_nodes > group.max_nodes:
        findings.add("nodes.count-order", f"{path}.min_nodes")
    if role != "worker" and group.max_nodes > NODES_PER_GROUP_MAX:
        findings.add("nodes.count-most", f"{path}.max_nodes", most=NODES_PER_GROUP_MAX)
    if role != "worker" and group.min_nodes == 0:
        findings.add("nodes.role-empty", f"{path}.min_nodes", role=role)
    if role == "system" and 0 < group.min_nodes < SYSTEM_MIN_NODES_ADVISED:
        findings.add("nodes.system-advised", f"{path}.min_nodes", advised=SYSTEM_MIN_NODES_ADVISED)
    if role in ("controller", "accounting", "nfs") and group.max_nodes > 1:
        spare = group.max_nodes - 1
        findings.add(
            "nodes.spare",
            f"{path}.max_nodes",
            role=role,
            unused=spare,
            spare=Spare(role, spare),
        )
    if role != "worker" and group.billing is Billing.PREEMPTIBLE:
        findings.add("nodes.preemptible-role", f"{path}.billing", role=role)


def _check_worker(spec: StackSpec, worker: WorkerSpec, path: str, findings: Findings) -> None:
    problem = name_problem(worker.name, longest=_NODESET_NAME_MAX)
    findings.add_text("nodes.name", f"{path}.name", problem)
    if worker.name in ROLES:
        findings.add("nodes.name-role", f"{path}.name")
    elif not worker.name.startswith("worker"):
        findings.add("nodes.name-worker", f"{path}.name")
    preset = worker.hardware
    if preset is None:
        return
    _check_network(spec.nebius.region, worker, preset, path, findings)


def _check_network(
    region: str, worker: WorkerSpec, preset: Preset, path: str, findings: Findings
) -> None:
    """What the nodes of a nodeset talk over."""
    able = _with_fabric(worker.platform)
    if worker.gpu_cluster_id is not None:
        _check_gpu_cluster(worker, preset.allows_gpu_cluster, path, findings)
    elif worker.infiniband_fabric is not None:
        _check_fabric(region, worker, preset.allows_gpu_cluster, path, findings)
    elif preset.allows_gpu_cluster and worker.max_nodes > 1:
        findings.add(
            "nodes.no-fabric", f"{path}.infiniband_fabric", known=_fabrics(region, worker.platform)
        )
    elif preset.gpus and not preset.allows_gpu_cluster and worker.max_nodes > 1:
        findings.add("nodes.ethernet", f"{path}.preset", others=able and f"; these can: {able}")


def _check_gpu_cluster(worker: WorkerSpec, allows: bool, path: str, findings: Findings) -> None:
    """A GPU cluster that exists: its fabric is already chosen."""
    key, id_ = f"{path}.gpu_cluster_id", worker.gpu_cluster_id or ""
    able = _with_fabric(worker.platform)
    if not id_.startswith("computegpucluster-"):
        findings.add("nodes.gpu-cluster-id", key)
    if worker.infiniband_fabric is not None:
        findings.add("nodes.gpu-cluster-or-fabric", key)
    if not allows:
        problem = (
            f"'{worker.preset}' of '{worker.platform}' cannot join a GPU cluster"
            f"{able and f'; these can: {able}'}"
        )
        findings.add_text("nodes.fabric-preset", key, problem)


def _with_fabric(platform: str) -> str:
    """Presets of the platform that can join a fabric; empty when there are none."""
    presets = PLATFORMS[platform].presets.values()
    return ", ".join(each.name for each in presets if each.allows_gpu_cluster)


def _check_fabric(
    region: str, worker: WorkerSpec, allows: bool, path: str, findings: Findings
) -> None:
    key, name = f"{path}.infiniband_fabric", worker.infiniband_fabric
    fabric = FABRICS.get(name or "")
    refused = findings.add_text("nodes.fabric-form", key, word_problem(name or ""))
    if not allows:
        able = _with_fabric(worker.platform)
        problem = (
            f"'{name}': '{worker.preset}' of '{worker.platform}' cannot join a GPU cluster; "
            f"{able and f'use {able} or '}remove the fabric"
        )
        findings.add_text("nodes.fabric-preset", key, problem)
    elif fabric is None and not refused:
        findings.add("nodes.fabric-unknown", key, known=_fabrics(region, worker.platform))
    elif fabric is not None and (fabric.region != region or fabric.platform != worker.platform):
        here = _fabrics(region, worker.platform) or "none known"
        findings.add("nodes.fabric-place", key, fabric=fabric, region=region, here=here)


def _fabrics(region: str, platform: str) -> str:
    here = (each for each in FABRICS.values() if each.region == region)
    return ", ".join(fabric.name for fabric in here if fabric.platform == platform)
