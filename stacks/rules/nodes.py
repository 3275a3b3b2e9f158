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
from stacks.errors import SpareNodes
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
            problem = (
                f"'{preset.name}' has {preset.vcpus} vCPUs; Soperator's recipe calls less than "
                f"{advised} insufficient for {role} nodes"
            )
            findings.add("nodes.insufficient", f"{path}.preset", problem)
        check_labels(path, group, findings)
    for index, worker in enumerate(spec.nodes.workers):
        _check_worker(spec, worker, f"nodes.workers[{index}]", findings)
    if not spec.nodes.workers:
        problem = "no nodeset, so no job could run; declare at least one"
        findings.add("nodes.no-worker", "nodes.workers", problem)
    findings.unique("nodes.name-twice", "nodes.workers", spec.nodes.workers, key="name")
    check_workers(spec, findings)
    if spec.slurm.accounting and spec.nodes.accounting is None:
        problem = "missing, but slurm.accounting is true; declare the group or set it to false"
        findings.add("nodes.accounting-missing", "nodes.accounting", problem)
    if not spec.slurm.accounting and spec.nodes.accounting is not None:
        problem = "declared, but slurm.accounting is false; remove the group or set it to true"
        findings.add("nodes.accounting-unused", "nodes.accounting", problem)


def check_hardware(region: str, path: str, group: MachineSpec, findings: Findings) -> None:
    """Platform and preset of a machine: known, and offered in the region."""
    if isinstance(group.platform, Alias):
        problem = f"'{group.platform.written}' is another name of '{group.platform}'; write that"
        findings.add("nodes.platform-alias", f"{path}.platform", problem)
    platform = PLATFORMS.get(group.platform)
    if platform is None:
        problem = (
            f"'{group.platform}' is not a platform (has: {', '.join(PLATFORMS)}); "
            "see stacks/catalog.py"
        )
        findings.add("nodes.platform", f"{path}.platform", problem)
        return
    if group.preset not in platform.presets:
        problem = (
            f"'{group.preset}' is not a preset of '{platform.name}' "
            f"(has: {', '.join(platform.presets)}); see stacks/catalog.py"
        )
        findings.add("nodes.preset", f"{path}.preset", problem)
    if region not in platform.regions:
        problem = (
            f"'{platform.name}' is not offered in {region} (is in: {', '.join(platform.regions)})"
        )
        findings.add("nodes.platform-region", f"{path}.platform", problem)


def _check_boot_disk(role: str, path: str, disk: BootDiskSpec, findings: Findings) -> None:
    if disk.size_gib < BOOT_DISK_MIN_GIB:
        problem = f"{disk.size_gib} GiB; the API accepts {BOOT_DISK_MIN_GIB} or more"
        findings.add("nodes.boot-disk-least", f"{path}.size_gib", problem)
    elif disk.size_gib < BOOT_DISK_ADVISED_GIB[role]:
        problem = (
            f"{disk.size_gib} GiB; Soperator's recipe wants {BOOT_DISK_ADVISED_GIB[role]} or more "
            f"for {role} nodes (images and logs fill less)"
        )
        findings.add("nodes.boot-disk-advised", f"{path}.size_gib", problem)
    step, most = stripe_problems(disk.size_gib, disk.type)
    findings.add("nodes.boot-disk-step", f"{path}.size_gib", step)
    findings.add("nodes.boot-disk-most", f"{path}.size_gib", most)


def _check_counts(role: str, path: str, group: NodeGroupSpec, findings: Findings) -> None:
    if group.min_nodes > group.max_nodes:
        problem = f"{group.min_nodes} is more than max_nodes ({group.max_nodes})"
        findings.add("nodes.count-order", f"{path}.min_nodes", problem)
    if role != "worker" and group.max_nodes > NODES_PER_GROUP_MAX:
        problem = f"{group.max_nodes}; a role has one node group, which holds {NODES_PER_GROUP_MAX}"
        findings.add("nodes.count-most", f"{path}.max_nodes", problem)
    if role != "worker" and group.min_nodes == 0:
        problem = f"0; without a {role} node Soperator does not start"
        findings.add("nodes.role-empty", f"{path}.min_nodes", problem)
    if role == "system" and 0 < group.min_nodes < SYSTEM_MIN_NODES_ADVISED:
        problem = (
            f"{group.min_nodes}; Soperator's recipe wants {SYSTEM_MIN_NODES_ADVISED} system nodes"
        )
        findings.add("nodes.system-advised", f"{path}.min_nodes", problem)
    if role in ("controller", "accounting", "nfs") and group.max_nodes > 1:
        spare = group.max_nodes - 1
        findings.add(
            "nodes.spare",
            f"{path}.max_nodes",
            f"{group.max_nodes} nodes, but Soperator runs one {role} and no backup: "
            f"{spare} never used; set nodes to 1",
            spare_nodes=SpareNodes(role=role, count=spare),
        )
    if role != "worker" and group.billing is Billing.PREEMPTIBLE:
        problem = f"preemptible: losing a {role} node stops the cluster"
        findings.add("nodes.preemptible-role", f"{path}.billing", problem)


def _check_worker(spec: StackSpec, worker: WorkerSpec, path: str, findings: Findings) -> None:
    problem = name_problem(worker.name, longest=_NODESET_NAME_MAX)
    findings.add("nodes.name", f"{path}.name", problem)
    if worker.name in ROLES:
        problem = f"'{worker.name}' is the node group of a role; rename it"
        findings.add("nodes.name-role", f"{path}.name", problem)
    elif not worker.name.startswith("worker"):
        problem = f"'{worker.name}': the jail's ssh config only knows hosts called worker-*"
        findings.add("nodes.name-worker", f"{path}.name", problem)
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
        problem = (
            f"none, so nodes of '{preset.name}' talk over Ethernet; name a fabric "
            f"({_fabrics(region, worker.platform)})"
        )
        findings.add("nodes.no-fabric", f"{path}.infiniband_fabric", problem)
    elif preset.gpus and not preset.allows_gpu_cluster and worker.max_nodes > 1:
        problem = (
            f"'{preset.name}' of '{worker.platform}' cannot join an InfiniBand fabric, so its "
            f"nodes talk over Ethernet{able and f'; these can: {able}'}"
        )
        findings.add("nodes.ethernet", f"{path}.preset", problem)


def _check_gpu_cluster(worker: WorkerSpec, allows: bool, path: str, findings: Findings) -> None:
    """A GPU cluster that exists: its fabric is already chosen."""
    key, id_ = f"{path}.gpu_cluster_id", worker.gpu_cluster_id or ""
    able = _with_fabric(worker.platform)
    if not id_.startswith("computegpucluster-"):
        problem = f"'{id_}' is no GPU cluster; its id starts with 'computegpucluster-'"
        findings.add("nodes.gpu-cluster-id", key, problem)
    if worker.infiniband_fabric is not None:
        problem = (
            f"beside infiniband_fabric '{worker.infiniband_fabric}'; the GPU cluster has its own "
            "fabric: give one of the two"
        )
        findings.add("nodes.gpu-cluster-or-fabric", key, problem)
    if not allows:
        problem = (
            f"'{worker.preset}' of '{worker.platform}' cannot join a GPU cluster"
            f"{able and f'; these can: {able}'}"
        )
        findings.add("nodes.fabric-preset", key, problem)


def _with_fabric(platform: str) -> str:
    """Presets of the platform that can join a fabric; empty when there are none."""
    presets = PLATFORMS[platform].presets.values()
    return ", ".join(each.name for each in presets if each.allows_gpu_cluster)


def _check_fabric(
    region: str, worker: WorkerSpec, allows: bool, path: str, findings: Findings
) -> None:
    key, name = f"{path}.infiniband_fabric", worker.infiniband_fabric
    fabric = FABRICS.get(name or "")
    refused = findings.add("nodes.fabric-form", key, word_problem(name or ""))
    if not allows:
        able = _with_fabric(worker.platform)
        problem = (
            f"'{name}': '{worker.preset}' of '{worker.platform}' cannot join a GPU cluster; "
            f"{able and f'use {able} or '}remove the fabric"
        )
        findings.add("nodes.fabric-preset", key, problem)
    elif fabric is None and not refused:
        problem = (
            f"'{name}' is not in stacks/catalog.py (has: {_fabrics(region, worker.platform)}); "
            "only the API can tell"
        )
        findings.add("nodes.fabric-unknown", key, problem)
    elif fabric is not None and (fabric.region != region or fabric.platform != worker.platform):
        here = _fabrics(region, worker.platform) or "none known"
        problem = (
            f"'{name}' is a fabric of {fabric.platform} in {fabric.region}, not of "
            f"{worker.platform} in {region} (has: {here})"
        )
        findings.add("nodes.fabric-place", key, problem)


def _fabrics(region: str, platform: str) -> str:
    here = (each for each in FABRICS.values() if each.region == region)
    return ", ".join(fabric.name for fabric in here if fabric.platform == platform)
