"""Kube cluster, node groups and machines as the API wants them, with cloud-init and kubeconfig.

The kubeconfig's user runs `soperator kube-token`, so neither the nebius CLI nor kubectl is needed
on the laptop and no token is ever written down.

A set that grows over 100 nodes gets another group, `<name>-1`, and the one that it has stays as it
is. Ids that only exist after a create (subnet, filesystems, GPU cluster, disks) are passed through.

Sources, all at 7b687e5 (2026-04-21) of nebius-solutions-library: soperator/modules/k8s/templates/
cloud_init.yaml.tftpl with pull request 1072 (old signatures are wiped before an array is made), and
modules/nfs-server, which makes an array of a single disk too and formats whatever it finds; here
one disk stays one disk, and a disk that holds something is never formatted.
"""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from infra.render import names
from infra.render.templates import manifest
from stacks.catalog import NODES_PER_GROUP_MAX
from stacks.spec import StackSpec
from stacks.spec.cluster import GpuDrivers
from stacks.spec.nodes import (
    LocalNvmeSpec,
    MachineSpec,
    NodeGroupSpec,
    NodesSpec,
    NodeUserSpec,
    VolumeFilesystem,
    WorkerSpec,
)
from stacks.spec.storage import DiskType, FilesystemSpec, SubmountSpec


def login_allocation(spec: StackSpec, *, subnet_id: Any) -> tuple[str, dict[str, Any]]:
    """Name inside the stack and AllocationSpec; another kind of address is another allocation."""
    if spec.login.public_ip:
        return "login", {"ipv4_public": {"subnet_id": subnet_id}}
    return "login-private", {"ipv4_private": {"subnet_id": subnet_id}}


def kube_cluster_spec(spec: StackSpec, *, subnet_id: Any) -> dict[str, Any]:
    """The API's ClusterSpec."""
    return manifest("kube_cluster.yaml.j2", {"subnet_id": subnet_id}, spec=spec)


_TOKEN: Final = {
    "exec": {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "soperator",
        "args": ["kube-token"],
        "interactiveMode": "Never",
        "installHint": "activate the environment: `soperator env`",
    }
}


def kubeconfig(
    *, name: str, endpoint: str, ca_certificate: str, user: Mapping[str, Any] = _TOKEN
) -> str:
    """Kubeconfig as JSON text; `ca_certificate` is PEM, as in the mk8s cluster's status."""
    authority = base64.b64encode(ca_certificate.encode()).decode()
    cluster = {"server": endpoint, "certificate-authority-data": authority}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    return json.dumps(config, indent=2)


def filesystem_spec(declared: FilesystemSpec | SubmountSpec) -> dict[str, Any]:
    """Type, GiB and whether the API refuses to delete it; the block size stays the API's own.

    WEKA takes no block size at all (recipe, modules/filestore).
    """
    spec: dict[str, Any] = {"type": declared.type.value, "size_gibibytes": declared.size_gib}
    if declared.forbid_deletion:
        spec["forbid_deletion"] = True
    return spec


def nvidia_operators(spec: StackSpec, cluster_id: Any) -> dict[str, dict[str, Any]]:
    """The API's K8sReleaseSpec of each operator by name, in order; none without GPUs."""
    if spec.cluster.gpu_drivers is GpuDrivers.PREINSTALLED:
        return {}
    if not any(worker.gpus for worker in spec.nodes.workers):
        return {}
    return manifest("nvidia_operators.yaml.j2", {"cluster_id": cluster_id})


_HEADER: Final = "#cloud-config\n"
_MODPROBE: Final = "/etc/modprobe.d/nvidia_config.conf"
# Every boot, because drives of the machine are empty after a stop and drivers load anew.
_EVERY_BOOT: Final = "/var/lib/cloud/scripts/per-boot"
# Options that the driver shows under another name.
# Source: developer.nvidia.com/nvidia-development-tools-solutions-err_nvgpuctrperm, 2026-11.
_SHOWN_AS: Final = {"RestrictProfilingToAdminUsers": "RmProfilingAdminOnly"}


def cloud_init(group: NodeGroupSpec, users: Sequence[NodeUserSpec]) -> str | None:
    """User data of the group's nodes, or None where they need none."""
    document: dict[str, Any] = {}
    files: list[dict[str, str]] = []
    if isinstance(group, WorkerSpec):
        if lines := group.nvidia_config_lines:
            options = "\n".join(lines) + "\n"
            files.append({"path": _MODPROBE, "permissions": "0644", "content": options})
            files.append(every_boot_script("10-nvidia-config", _driver_check(lines)))
        if group.local_nvme is not None:
            document["packages"] = ["mdadm", "nvme-cli"]
            files.append(every_boot_script("20-local-nvme", _nvme_script(group.local_nvme)))
    if files:
        document["write_files"] = files
    return user_data(users, document) if users or document else None


def user_data(users: Sequence[NodeUserSpec], document: Mapping[str, Any]) -> str:
    """The document as cloud-init takes it, with users whose sudo asks for no password."""
    entries = [
        {
            "name": user.name,
            "sudo": "ALL=(ALL) NOPASSWD:ALL",
            "shell": "/bin/bash",
            "ssh_authorized_keys": list(user.ssh_public_keys),
        }
        for user in users
    ]
    first = {"users": ["default", *entries]} if entries else {}
    # JSON is YAML in which no text can be taken for anything else.
    return _HEADER + json.dumps({**first, **document}, indent=1) + "\n"


def every_boot_script(name: str, text: str) -> dict[str, str]:
    """A file of `write_files` that runs at every boot."""
    return {"path": f"{_EVERY_BOOT}/{name}", "permissions": "0755", "content": text}


def _driver_check(lines: Sequence[str]) -> str:
    """Restarts the node once where the loaded driver has other options than those declared."""
    checks = "\n".join(
        f"check {shlex.quote(name)} {shlex.quote(value)}" for name, value in driver_options(lines)
    )
    return f'{names.shell_file("driver_check")}\n{checks}\nrm -f "$restarted"\n'


def driver_options(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Name and value of each option as the driver shows it: `NVreg_X=1` is `X: 1` there."""
    words = (word for line in lines for word in line.split() if word.startswith("NVreg_"))
    pairs = (word.removeprefix("NVreg_").split("=", 1) for word in words if "=" in word)
    return [(_SHOWN_AS.get(name, name), value.strip('"')) for name, value in pairs]


def _nvme_script(nvme: LocalNvmeSpec) -> str:
    """One array of the drives; the recipe expects 2 to 8, another number is another machine."""
    make = names.shell_file("local_nvme")
    if nvme.filesystem is VolumeFilesystem.XFS:
        make = make.replace("mkfs.$type -F", "mkfs.$type -f")
    path = shlex.quote(nvme.mount_path)
    return f"#!/bin/bash\nset -euo pipefail\npath={path}\ntype={nvme.filesystem}\n{make}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One mk8s node group, of those that a declared group needs, under its role."""

    name: str
    """Inside the stack: the role, or the nodeset's with its number."""
    min_nodes: int
    max_nodes: int
    """Equal to min_nodes where the group does not scale by itself."""
    label: str
    group: NodeGroupSpec
    tags: tuple[str, ...]
    """Mount tags of the filesystems its nodes attach."""

    @property
    def worker(self) -> WorkerSpec | None:
        """The nodeset, where the role is one."""
        return self.group if isinstance(self.group, WorkerSpec) else None


def roles(spec: StackSpec) -> tuple[Role, ...]:
    """Every node group of the stack, in the order they are created."""
    tags = [tag for tag, _ in names.filesystems(spec)]
    # Where the jail label is, DaemonSets mount every submount: a node without one never gets ready.
    jailed = tuple(tag for tag in tags if names.is_jailed(tag))
    own = (names.ACCOUNTING,) if names.ACCOUNTING in tags else ()
    nodes = spec.nodes
    declared: list[tuple[str, str, NodeGroupSpec | None, tuple[str, ...]]] = [
        ("system", "system", nodes.system, jailed),
        ("controller", "controller", nodes.controller, (names.CONTROLLER_SPOOL, *jailed)),
        ("login", "login", nodes.login, jailed),
        ("accounting", "accounting", nodes.accounting, (*jailed, *own)),
        ("nfs", "nfs", nodes.nfs, ()),
        *((worker.name, "worker", worker, jailed) for worker in nodes.workers),
    ]
    return tuple(
        Role(
            name=f"{name}-{index}" if index else name,
            min_nodes=least,
            max_nodes=most,
            label=label,
            group=group,
            tags=attached,
        )
        for name, label, group, attached in declared
        if group is not None
        for index, (least, most) in enumerate(_counts(nodes, group))
    )


def _counts(nodes: NodesSpec, group: NodeGroupSpec) -> Iterator[tuple[int, int]]:
    """Least and most nodes of each node group of a declared one; only the last one is not full."""
    least, most = nodes.counts(group)
    if isinstance(group, WorkerSpec) and group.created_nodes is not None and not nodes.paused:
        least = group.created_nodes
    # A paused set keeps its groups: their ids, and what hangs on them, outlive the pause.
    for first in range(0, max(group.max_nodes, 1), NODES_PER_GROUP_MAX):
        size = min(NODES_PER_GROUP_MAX, group.max_nodes - first) if most else 0
        yield min(max(least - first, 0), size), size


def minimum_nodes(spec: StackSpec) -> tuple[str, ...]:
    """Slurm node names that must be idle: each nodeset's declared minimum, from ordinal 0."""
    workers = spec.nodes.workers
    return tuple(name for each in workers for name in first_nodes(each, each.min_nodes))


def first_nodes(worker: WorkerSpec, count: int) -> list[str]:
    """Slurm's names of so many nodes of a nodeset."""
    return [f"{worker.name}-{ordinal}" for ordinal in range(count)]


def declared_fabrics(spec: StackSpec) -> tuple[str, ...]:
    """InfiniBand fabrics that need a GPU cluster of the stack's own, sorted."""
    fabrics = {worker.infiniband_fabric for worker in spec.nodes.workers}
    return tuple(sorted(fabric for fabric in fabrics if fabric is not None))


def labels(role: Role) -> dict[str, str]:
    """Node labels: what the charts' node selectors look for."""
    worker = role.worker
    has_gpus = role.group.gpus > 0
    found = {
        names.NODESET_LABEL: role.label,
        names.WORKLOAD_LABEL: "gpu" if has_gpus else "cpu",
    }
    if role.tags:
        found[names.JAIL_LABEL] = "true"
    if role.label != "login":
        # Or the balancer of the login service sends connections to nodes without its pod.
        found[names.NO_BALANCER_LABEL] = "true"
    if worker is not None:
        found[names.NODESET_NAME_LABEL] = worker.name
    if has_gpus:
        found[names.GPU_NODE_LABEL] = "true"
    return {**role.group.labels, **found}


def node_labels(spec: StackSpec) -> list[dict[str, str]]:
    """Labels of the nodes of every group, each set once."""
    found = dict.fromkeys(tuple(sorted(labels(role).items())) for role in roles(spec))
    return [dict(each) for each in found]


def node_group_spec(
    spec: StackSpec,
    role: Role,
    *,
    subnet_id: Any,
    filesystem_ids: Mapping[str, Any],
    gpu_cluster_id: Any = None,
) -> dict[str, Any]:
    """The API's NodeGroupSpec of `role`."""
    known = {
        **{tag: filesystem_ids[tag] for tag in role.tags},
        "subnet_id": subnet_id,
        "gpu_cluster_id": gpu_cluster_id,
        "user_data": cloud_init(role.group, spec.nodes.ssh_users),
    }
    return manifest(
        "node_group.yaml.j2",
        known,
        spec=spec,
        role=role,
        labels=labels(role),
        names=names,
    )


# nebius.compute.v1.AttachedDiskSpec.device_id has at most 20 characters (SDK of 2026-11).
DEVICE: Final = "data-{index}"
"""Name that the machine sees a data disk by: /dev/disk/by-id/virtio-data-0."""


_TYPES: Final = {
    DiskType.NETWORK_SSD: "ssd",
    DiskType.NETWORK_SSD_NON_REPLICATED: "nrd",
    DiskType.NETWORK_SSD_IO_M3: "io-m3",
    DiskType.NETWORK_HDD: "hdd",
}


def boot_disk_noun(type_: DiskType) -> str:
    """Last part of the boot disk's name: of another type it is another disk.

    It is made before the old one goes. Replaced under one name the old one would go first, which
    the machine that has it prevents.
    """
    return f"boot-{_TYPES[type_]}"


def disk_spec(type_: DiskType, size_gib: int, *, image_family: str | None = None) -> dict[str, Any]:
    """The API's DiskSpec: an empty disk, or one that starts as an image of the family."""
    spec: dict[str, Any] = {"type": type_.value, "size_gibibytes": size_gib}
    if image_family is not None:
        spec["source_image_family"] = {"image_family": image_family}
    return spec


def address_spec(subnet_id: Any) -> dict[str, Any]:
    """The API's AllocationSpec of a private address that outlives the machine that has it."""
    return {"ipv4_private": {"subnet_id": subnet_id}}


def machine_spec(
    machine: MachineSpec,
    *,
    subnet_id: Any,
    allocation_id: Any,
    boot_disk_id: Any,
    data_disk_ids: Sequence[Any] = (),
    user_data: Any = None,
) -> dict[str, Any]:
    """The API's InstanceSpec with disks that live on their own."""
    known = {
        "subnet_id": subnet_id,
        "allocation_id": allocation_id,
        "boot_disk_id": boot_disk_id,
        "user_data": user_data,
        **{f"data_disk_{index}": id_ for index, id_ in enumerate(data_disk_ids)},
    }
    return manifest(
        "machine.yaml.j2", known, machine=machine, num_disks=len(data_disk_ids), device=DEVICE
    )


IMAGE_FAMILY: Final = "ubuntu22.04-driverless"
"""Image of the machine (the same module)."""
EXPORT: Final = "/srv/nfs"
"""Path that clients mount; beside /home, where the machine's own users are."""
# `mp`: not exported while nothing is mounted there, or files would go to the boot disk.
_OPTIONS: Final = "rw,async,no_subtree_check,no_root_squash,mp"


def nfs_user_data(spec: StackSpec, cidrs: Sequence[str]) -> str:
    """User data of a server that exports to the given IPv4 blocks."""
    assert spec.nfs is not None, "the machine is made only where nfs is declared"
    clients = " ".join(f"{cidr}({_OPTIONS})" for cidr in cidrs)
    document = {
        "package_update": True,
        "packages": ["nfs-kernel-server", "mdadm"],
        "write_files": [
            {"path": "/etc/exports", "permissions": "0644", "content": f"{EXPORT} {clients}\n"},
            every_boot_script("30-nfs-volume", volume_script(spec.nfs.data_disks.count)),
        ],
    }
    return user_data(spec.nodes.ssh_users, document)


def volume_script(num_disks: int) -> str:
    """Mounts the volume of the data disks, made anew only of disks that are empty."""
    disks = " ".join(
        f"/dev/disk/by-id/virtio-{DEVICE.format(index=index)}" for index in range(num_disks)
    )
    # A member is never made part of another array: the files on it would be lost.
    parts = ("nfs_disks", "nfs_array" if num_disks > 1 else "nfs_disk", "nfs_mount")
    head = ("#!/bin/bash", "set -euo pipefail", f"path={EXPORT}", f"disks=({disks})")
    return "\n".join((*head, *map(names.shell_file, parts))) + "\n"
