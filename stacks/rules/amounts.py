"""Rules of how much one cluster holds: nodes in all, filesystems of a machine, the largest
release, disks of a size that is hardly meant.

Each set's own count is bounded where it is decoded (load.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stacks.catalog import BOOT_DISK_LARGE_GIB, DISK_LARGE_GIB
from stacks.errors import Findings
from stacks.load import CLUSTER_NODES_MOST
from stacks.machines import node_groups
from stacks.rules.worker_disks import disks_of
from stacks.spec import StackSpec

_PAIRS_MOST: Final = 39_000
"""Helm keeps values, gzipped and in base64, in one Secret of 1 MiB, beside chart and manifest
(helm.sh/docs/topics/advanced, storage backends; kubernetes.io/docs/concepts/configuration/secret;
read 2026-11-21). Each set lists each submount, which takes 26.6 bytes of it: 1,597,696 bytes of the
values of 300 sets with 200 submounts, 2026-11-21."""
_FILESYSTEMS_ADVISED: Final = 32
"""Devices of one PCI bus (PCI Local Bus Specification 3.0, 3.2.2.3.2); each filesystem is one."""


def _disks(spec: StackSpec) -> Iterator[tuple[str, int, int]]:
    """Path and GiB of every disk, and from where on its size is doubted."""
    for _, path, group in node_groups(spec):
        yield f"{path}.boot_disk", group.boot_disk.size_gib, BOOT_DISK_LARGE_GIB
    for index, worker in enumerate(spec.nodes.workers):
        for path, size_gib, _ in disks_of(worker, f"nodes.workers[{index}]"):
            yield path, size_gib, DISK_LARGE_GIB
    if spec.nfs is not None:
        yield "nfs.boot_disk", spec.nfs.boot_disk.size_gib, BOOT_DISK_LARGE_GIB
        yield "nfs.data_disks", spec.nfs.data_disks.size_gib, DISK_LARGE_GIB
    if spec.soperator.nfs_home is not None:
        yield "soperator.nfs_home", spec.soperator.nfs_home.size_gib, DISK_LARGE_GIB


def check_amounts(spec: StackSpec, findings: Findings) -> None:
    """What is too much for one cluster although each part of it would do."""
    num_nodes = sum(spec.nodes.counts(group)[1] for _, _, group in node_groups(spec))
    if num_nodes > CLUSTER_NODES_MOST:
        findings.error(
            "nodes",
            f"{num_nodes:,} nodes in all groups at max_nodes, but Kubernetes holds "
            f"{CLUSTER_NODES_MOST:,}; lower max_nodes, or declare a second stack",
            rule="nodes.cluster-most",
        )
    num_sets, num_submounts = len(spec.nodes.workers), len(spec.storage.submounts)
    if num_sets * num_submounts > _PAIRS_MOST:
        findings.error(
            "nodes.workers",
            f"{num_sets} sets with {num_submounts} submounts each do not fit the release "
            f"'nodesets', which Helm keeps in 1 MiB (about {_PAIRS_MOST:,} in all); declare larger "
            "sets, or folders on fewer filesystems",
            rule="nodes.sets-and-submounts",
        )
    for path, size_gib, large_gib in _disks(spec):
        if size_gib > large_gib:
            findings.warn(
                f"{path}.size_gib",
                f"{size_gib:,} GiB are {size_gib / 1024:,.0f} TiB on one disk; if they are MiB, "
                f"write {size_gib // 1024}",
                rule="storage.disk-large",
            )
    own = (spec.storage.jail, *spec.storage.submounts)
    if len(own) > _FILESYSTEMS_ADVISED:
        findings.warn(
            "storage.submounts",
            f"{len(own)} filesystems with the jail on every login and worker node; no source says "
            f"that a machine takes more than {_FILESYSTEMS_ADVISED}: declare folders on fewer "
            "filesystems, or ask Nebius support",
            rule="storage.submounts-many",
        )
