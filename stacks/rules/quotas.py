"""Rules of how much: what the stack would use of each declared quota, and what one cluster holds
although each part of it would do. Each set's own count is bounded where it is decoded (load.py).

Names: docs.nebius.com/overview/limits, as collected by nebius-physical-ai
npa/cluster_backends/quotas.py, 2026-08. Sizes are GiB here; the API's own limits are bytes.
mk8s accepts a node group over its quota and the nodes never come, so it is refused before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from stacks.catalog import BOOT_DISK_LARGE_GIB, DISK_LARGE_GIB, PLATFORMS
from stacks.errors import nearest
from stacks.machines import disks, machines, node_groups
from stacks.rules import Findings
from stacks.spec import StackSpec
from stacks.spec.decode import CLUSTER_NODES_MOST
from stacks.spec.nodes import Billing, NodeGroupSpec
from stacks.spec.storage import DiskType, FilesystemType


def gpu_quota(platform: str) -> str:
    """Name of the GPU quota of a platform: `gpu-h100-sxm` -> `compute.instance.gpu.h100`."""
    return f"compute.instance.gpu.{platform.split('-')[1]}"


_NAMES: Final = (
    "compute.instance.count",
    "compute.instance.non-gpu.vcpu",
    *dict.fromkeys(gpu_quota(item.name) for item in PLATFORMS.values() if item.gres_type),
    "compute.gpucluster.count",
    "compute.disk.count",
    *(f"compute.disk.size.{kind}" for kind in DiskType),
    "compute.filesystem.count",
    *(f"compute.filesystem.size.{kind}" for kind in FilesystemType),
    "mk8s.cluster.count",
    "vpc.allocation.count",
)
ADDRESSES_PER_NODE: Final = 2
"""Allocations of a node: its own address and its pods' (the same list of quotas, 2026-08)."""


def quota_use(spec: StackSpec, *, at_max: bool) -> Mapping[str, int]:
    """Quota name -> GiB, GPUs, vCPUs or a count that the stack uses at max_nodes or min_nodes."""
    used: Counter[str] = Counter()
    for path, machine in machines(spec):
        # The address of an NFS server is an allocation, and so is its public one.
        num, addresses = 1, 1 + machine.public_ip
        if isinstance(machine, NodeGroupSpec):
            num, addresses = spec.nodes.counts(machine)[1 if at_max else 0], ADDRESSES_PER_NODE
        used["compute.instance.count"] += num
        used["vpc.allocation.count"] += num * addresses
        for _, size_gib, kind, count in disks(machine, path):
            used["compute.disk.count"] += num * count
            used[f"compute.disk.size.{kind}"] += num * count * size_gib
        if not machine.gpus:
            used["compute.instance.non-gpu.vcpu"] += num * machine.vcpus
        # GPUs of capacity blocks count against no quota of GPUs.
        elif machine.billing is not Billing.RESERVED:
            used[gpu_quota(machine.platform)] += num * machine.gpus
    # One cluster and the address of the login node.
    used["mk8s.cluster.count"] = 1
    used["vpc.allocation.count"] += 1
    made = [worker for worker in spec.nodes.workers if worker.gpu_cluster_id is None]
    used["compute.gpucluster.count"] = len({worker.infiniband_fabric for worker in made} - {None})
    storage = spec.storage
    own = [storage.jail, storage.controller_spool, storage.accounting, *storage.submounts]
    for filesystem in own:
        if filesystem is not None and filesystem.size_gib is not None:
            used["compute.filesystem.count"] += 1
            used[f"compute.filesystem.size.{filesystem.type}"] += filesystem.size_gib
    return used


def check_quotas(spec: StackSpec, findings: Findings) -> None:
    """Every declared quota: an error when the least of the stack is over it, else a warning."""
    findings.unique("quotas.twice", "quotas", spec.quotas, key="name")
    least, most = quota_use(spec, at_max=False), quota_use(spec, at_max=True)
    for index, quota in enumerate(spec.quotas):
        path = f"quotas[{index}]"
        if quota.name not in _NAMES:
            hint = nearest(quota.name, _NAMES)
            findings.add("quotas.name", f"{path}.name", hint=hint)
        elif least.get(quota.name, 0) > quota.limit:
            findings.add("quotas.over", f"{path}.limit", needed=least[quota.name])
        elif most.get(quota.name, 0) > quota.limit:
            findings.add("quotas.over-at-most", f"{path}.limit", needed=most[quota.name])


_PAIRS_MOST: Final = 39_000
"""Helm keeps values, gzipped and in base64, in one Secret of 1 MiB, beside chart and manifest
(helm.sh/docs/topics/advanced, storage backends; kubernetes.io/docs/concepts/configuration/secret;
read 2026-11-21). Each set lists each submount, which takes 26.6 bytes of it: 1,597,696 bytes of the
values of 300 sets with 200 submounts, 2026-11-21."""
_FILESYSTEMS_ADVISED: Final = 32
"""Devices of one PCI bus (PCI Local Bus Specification 3.0, 3.2.2.3.2); each filesystem is one."""


def _sizes(spec: StackSpec) -> Iterator[tuple[str, int, int]]:
    """Path and GiB of every disk, and from where on its size is doubted."""
    for path, machine in machines(spec):
        for at, size_gib, _, _ in disks(machine, path):
            yield at, size_gib, BOOT_DISK_LARGE_GIB if at.endswith(".boot_disk") else DISK_LARGE_GIB
    if spec.soperator.nfs_home is not None:
        yield "soperator.nfs_home", spec.soperator.nfs_home.size_gib, DISK_LARGE_GIB


def check_amounts(spec: StackSpec, findings: Findings) -> None:
    """What is too much for one cluster although each part of it would do."""
    num_nodes = sum(spec.nodes.counts(group)[1] for _, _, group in node_groups(spec))
    if num_nodes > CLUSTER_NODES_MOST:
        findings.add("nodes.cluster-most", "nodes", count=num_nodes, most=CLUSTER_NODES_MOST)
    sets, submounts = len(spec.nodes.workers), len(spec.storage.submounts)
    if sets * submounts > _PAIRS_MOST:
        at, most = "nodes.workers", _PAIRS_MOST
        findings.add("nodes.sets-and-submounts", at, sets=sets, submounts=submounts, most=most)
    for path, size_gib, large_gib in _sizes(spec):
        if size_gib > large_gib:
            tib, meant = size_gib / 1024, size_gib // 1024
            findings.add("storage.disk-large", f"{path}.size_gib", tib=tib, meant=meant)
    count, advised = 1 + submounts, _FILESYSTEMS_ADVISED  # with the jail
    if count > advised:
        findings.add("storage.submounts-many", "storage.submounts", count=count, advised=advised)
