"""Rules of node groups: hardware, disks, counts, names, labels, and which nodes join a fabric; of
nodesets also roll-out, capacity, users, and the disks that every worker has for itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from stacks.catalog import (
    BOOT_DISK_ADVISED_GIB,
    BOOT_DISK_MIN_GIB,
    FABRICS,
    LOCAL_NVME,
    MAX_PODS,
    NODES_PER_GROUP_MAX,
    PLATFORMS,
    STRIPED_DISK_MAX_GIB,
    STRIPED_DISK_STEP_GIB,
    SYSTEM_MIN_NODES_ADVISED,
    VCPUS_ADVISED,
    Alias,
    Preset,
)
from stacks.errors import Spare
from stacks.machines import ROLES, VOLUMES, disks, node_groups, shared_mounts
from stacks.rules import Findings
from stacks.rules.cluster import check_public_keys
from stacks.rules.naming import (
    is_under,
    name_problem,
    path_problem,
    reserved_problem,
    word_problem,
)
from stacks.spec import StackSpec
from stacks.spec.nodes import (
    IMAGE_PATH,
    SHARED_MEMORY_GIB,
    Billing,
    BootDiskSpec,
    MachineSpec,
    NodeGroupSpec,
    Reservation,
    StrategySpec,
    WorkerSpec,
)
from stacks.spec.storage import DiskType

# Slurm nodes and pods are called <nodeset>-<ordinal>; a pod's name has 63 characters.
_NODESET_NAME_MAX: Final = 50
_LABEL_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
# https://kubernetes.io/docs/concepts/overview/working-with-objects/labels, read 2026-11-22: the
# prefix is a DNS subdomain.
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_SUBDOMAIN_MAX: Final = 253
_OURS: Final = ("slurm.nebius.ai/", "nebius.com/")
_SYSTEM: Final = ("kubernetes.io", "k8s.io")
_FEATURE: Final = re.compile(r"[A-Za-z0-9_.:=-]+")
_OPTION: Final = re.compile(r"(options|blacklist|alias|install|softdep|remove) \S.*")
_USER_NAME_MAX: Final = 32


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
        _check_labels(path, group, findings)
    for index, worker in enumerate(spec.nodes.workers):
        _check_worker(spec, worker, f"nodes.workers[{index}]", findings)
    if not spec.nodes.workers:
        findings.add("nodes.no-worker", "nodes.workers")
    findings.unique("nodes.name-twice", "nodes.workers", spec.nodes.workers, key="name")
    _check_workers(spec, findings)
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
        findings.add("nodes.platform-region", f"{path}.platform", platform=platform)


def _check_boot_disk(role: str, path: str, disk: BootDiskSpec, findings: Findings) -> None:
    path, advised = f"{path}.size_gib", BOOT_DISK_ADVISED_GIB[role]
    if disk.size_gib < BOOT_DISK_MIN_GIB:
        findings.add("nodes.boot-disk-least", path, least=BOOT_DISK_MIN_GIB)
    elif disk.size_gib < advised:
        findings.add("nodes.boot-disk-advised", path, advised=advised, role=role)
    step, most = _stripe_problems(disk.size_gib, disk.type)
    findings.add_text("nodes.boot-disk-step", path, step)
    findings.add_text("nodes.boot-disk-most", path, most)


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
        spare = Spare(role, group.max_nodes - 1)
        findings.add("nodes.spare", f"{path}.max_nodes", spare=spare)
    if role != "worker" and group.billing is Billing.PREEMPTIBLE:
        findings.add("nodes.preemptible-role", f"{path}.billing", role=role)


def _check_worker(spec: StackSpec, worker: WorkerSpec, path: str, findings: Findings) -> None:
    problem = name_problem(worker.name, longest=_NODESET_NAME_MAX)
    findings.add_text("nodes.name", f"{path}.name", problem)
    if worker.name in ROLES:
        findings.add("nodes.name-role", f"{path}.name")
    elif not worker.name.startswith("worker"):
        findings.add("nodes.name-worker", f"{path}.name")
    if (preset := worker.hardware) is not None:
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
        known = _fabrics(region, worker.platform)
        findings.add("nodes.no-fabric", f"{path}.infiniband_fabric", known=known)
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
    presets = PLATFORMS[platform].presets.values() if platform in PLATFORMS else ()
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
        findings.add("nodes.fabric-place", key, fabric=fabric, here=here)


def _fabrics(region: str, platform: str) -> str:
    here = (each for each in FABRICS.values() if each.region == region)
    return ", ".join(fabric.name for fabric in here if fabric.platform == platform)


def _check_workers(spec: StackSpec, findings: Findings) -> None:
    """Every nodeset beyond its hardware, and the users of the nodes."""
    for index, worker in enumerate(spec.nodes.workers):
        path = f"nodes.workers[{index}]"
        if worker.created_nodes is not None and worker.created_nodes > worker.min_nodes:
            findings.add("nodes.created-order", f"{path}.created_nodes")
        _check_strategy(worker.strategy, f"{path}.strategy", findings)
        _check_capacity(worker, path, findings)
        for number, feature in enumerate(worker.features):
            if not _FEATURE.fullmatch(feature):
                findings.add("nodes.feature-form", f"{path}.features[{number}]")
        _check_machine(spec, worker, path, findings)
        _check_disks(spec, worker, path, findings)
    # A set of more than one group takes `<name>-1` and so on; another set may not be called so.
    names = {worker.name: index for index, worker in enumerate(spec.nodes.workers)}
    for worker in spec.nodes.workers:
        for number in range(1, -(-worker.max_nodes // NODES_PER_GROUP_MAX)):
            taken = f"{worker.name}-{number}"
            if taken in names:
                path = f"nodes.workers[{names[taken]}].name"
                findings.add("nodes.name-group", path, number=number + 1, worker=worker)
    _check_users(spec, findings)
    if spec.nodes.nfs is not None and spec.soperator.nfs_home is None and spec.nfs is None:
        findings.add("nodes.nfs-server", "nodes.nfs")


def _check_labels(path: str, group: NodeGroupSpec, findings: Findings) -> None:
    """Labels of any node group: Kubernetes syntax, and none of the charts' own."""
    for key, value in group.labels.items():
        at = f"{path}.labels.{key}"
        prefix, slash, name = key.rpartition("/")
        is_subdomain = len(prefix) <= _SUBDOMAIN_MAX and _SUBDOMAIN.fullmatch(prefix)
        fits = _LABEL_NAME.fullmatch(name) and (not slash or is_subdomain)
        if not fits or (value and not _LABEL_NAME.fullmatch(value)):
            findings.add("nodes.label-form", at, key=key, text=value)
        elif key.startswith(_OURS):
            findings.add("nodes.label-charts", at, key=key)
        elif prefix.endswith(_SYSTEM):
            findings.add("nodes.label-system", at, key=key, system=" and ".join(_SYSTEM))


def _check_strategy(strategy: StrategySpec, path: str, findings: Findings) -> None:
    pairs = (
        ("max_unavailable", strategy.max_unavailable_percent, strategy.max_unavailable_nodes),
        ("max_surge", strategy.max_surge_percent, strategy.max_surge_nodes),
    )
    for key, percent, count in pairs:
        if percent is not None and count is not None:
            findings.add("nodes.strategy-both", f"{path}.{key}_nodes", key=key)
        if percent is not None and percent > 100:
            findings.add("nodes.strategy-percent", f"{path}.{key}_percent")
    away, extra = ((percent if count is None else count) for _, percent, count in pairs)
    if away == 0 and not extra:
        findings.add("nodes.strategy-still", path)


def _check_capacity(worker: WorkerSpec, path: str, findings: Findings) -> None:
    """On demand, preemptible or out of a reservation: each excludes the others."""
    reservation = worker.reservation
    if reservation is None:
        return
    at = f"{path}.reservation"
    forbids = reservation.policy is Reservation.FORBID
    if worker.billing is Billing.PREEMPTIBLE and not forbids:
        findings.add("nodes.reservation-preemptible", at)
    if worker.billing is Billing.RESERVED and forbids:
        findings.add("nodes.reservation-forbidden", f"{at}.policy")
    if forbids and reservation.ids:
        findings.add("nodes.reservation-ids", f"{at}.ids")
    for index, id_ in enumerate(reservation.ids):
        if not id_.startswith("capacityblockgroup-"):
            findings.add("nodes.reservation-id", f"{at}.ids[{index}]")


def _check_machine(spec: StackSpec, worker: WorkerSpec, path: str, findings: Findings) -> None:
    preset = worker.hardware
    if worker.max_pods is not None and worker.max_pods not in MAX_PODS:
        findings.add("nodes.max-pods", f"{path}.max_pods", first=MAX_PODS[0], last=MAX_PODS[-1])
    if preset is not None and worker.shared_memory_gib >= preset.memory_gib:
        default = " (the default)" if worker.shared_memory_gib == SHARED_MEMORY_GIB else ""
        place, half = f"{path}.shared_memory_gib", preset.memory_gib // 2
        findings.add("nodes.shared-memory", place, default=default, half=half)
    if preset is not None and not preset.gpus and worker.nvidia_config_lines:
        findings.add("nodes.nvidia-no-gpu", f"{path}.nvidia_config_lines")
    for index, line in enumerate(worker.nvidia_config_lines):
        if not _OPTION.fullmatch(line):
            findings.add("nodes.nvidia-line", f"{path}.nvidia_config_lines[{index}]")
    if worker.local_nvme is not None:
        place = (spec.nebius.region, worker.platform, worker.preset)
        if preset is not None and place not in LOCAL_NVME:
            known = "; ".join(" ".join(each) for each in sorted(LOCAL_NVME))
            findings.add("nodes.local-nvme", f"{path}.local_nvme", known=known)
    has_user_data = worker.nvidia_config_lines or worker.local_nvme is not None
    if has_user_data and not spec.nodes.ssh_users:
        findings.add("nodes.user-data-key", "nodes.ssh_users", worker=worker)


def _check_users(spec: StackSpec, findings: Findings) -> None:
    findings.unique("nodes.ssh-user-twice", "nodes.ssh_users", spec.nodes.ssh_users, key="name")
    for index, user in enumerate(spec.nodes.ssh_users):
        path = f"nodes.ssh_users[{index}]"
        problem = name_problem(user.name, longest=_USER_NAME_MAX)
        if user.name in ("root", "nebius"):
            problem = f"'{user.name}' is a user of the image; choose another"
        findings.add_text("nodes.ssh-user-name", f"{path}.name", problem)
        check_public_keys(user.ssh_public_keys, path, findings, rule="nodes.ssh-user-key")


STRIPED: Final = (DiskType.NETWORK_SSD_NON_REPLICATED, DiskType.NETWORK_SSD_IO_M3)
# A claim's name is <disk>-<pod>; 63 characters in all.
_DISK_NAME_MAX: Final = 22


def _check_disks(spec: StackSpec, worker: WorkerSpec, path: str, findings: Findings) -> None:
    """Every local disk and the image disk of one nodeset."""
    check_stripes([*disks(worker, path)][1:], findings)
    if worker.image_disk is not None and worker.image_disk.type not in STRIPED:
        striped = " or ".join(STRIPED)
        findings.add("nodes.image-disk-type", f"{path}.image_disk.type", striped=striped)
    findings.unique("nodes.disk-twice", f"{path}.local_disks", worker.local_disks, key="name")
    taken = VOLUMES | {each.name for each in spec.storage.submounts}
    for index, disk in enumerate(worker.local_disks):
        at = f"{path}.local_disks[{index}]"
        problem = name_problem(disk.name, longest=_DISK_NAME_MAX)
        findings.add_text("nodes.disk-name", f"{at}.name", problem)
        if disk.name in taken:
            findings.add("nodes.disk-name-taken", f"{at}.name")
        for folder in disk.folders:
            if path_problem(f"/{folder}"):
                findings.add("nodes.disk-folder", f"{at}.folders", folder=folder)
    storage, taken = spec.storage, dict(shared_mounts(spec))
    if storage.memory is not None:
        taken["storage.memory"] = storage.memory.mount_path
    own = {
        f"{path}.local_disks[{i}].mount_path": each.mount_path
        for i, each in enumerate(worker.local_disks)
    }
    if worker.local_nvme is not None:
        own[f"{path}.local_nvme.mount_path"] = worker.local_nvme.mount_path
    if worker.image_disk is not None:
        own[f"{path}.image_disk"] = IMAGE_PATH
    for at, mount_path in own.items():
        problem = path_problem(mount_path)
        if problem is None and mount_path == "/":
            problem = "'/' is the jail itself; choose a directory in it"
        problem = problem or reserved_problem(mount_path)
        for other, there in taken.items():
            if problem is None and (is_under(mount_path, there) or is_under(there, mount_path)):
                problem = f"'{mount_path}' and '{there}' of {other} hide each other; put them apart"
        findings.add_text("nodes.disk-path", at, problem)
        taken[at.removesuffix(".mount_path")] = mount_path


def check_stripes(found: Iterable[tuple[str, int, DiskType, int]], findings: Findings) -> None:
    """Sizes of disks that are made of stripes."""
    for path, size_gib, type_, _ in found:
        step, most = _stripe_problems(size_gib, type_)
        findings.add_text("nodes.disk-step", f"{path}.size_gib", step)
        findings.add_text("nodes.disk-most", f"{path}.size_gib", most)


def _stripe_problems(size_gib: int, type_: DiskType) -> tuple[str | None, str | None]:
    """Why a disk of such a type cannot be cut into stripes, and why it is too large."""
    step, most = STRIPED_DISK_STEP_GIB, STRIPED_DISK_MAX_GIB
    use = f"{size_gib} GiB is not a multiple of {step}, as {type_} needs; use "
    return (
        f"{use}{-(-size_gib // step) * step}" if type_ in STRIPED and size_gib % step else None,
        f"{size_gib} GiB; {type_} ends at {most}" if type_ in STRIPED and size_gib > most else None,
    )
