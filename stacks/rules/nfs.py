"""Rules of the NFS server that has a machine of its own beside the cluster."""

from __future__ import annotations

from stacks.catalog import find_preset
from stacks.errors import Findings
from stacks.rules.nodes import check_hardware
from stacks.rules.worker_disks import check_stripes
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing
from stacks.spec.storage import DiskType


def check_nfs(spec: StackSpec, findings: Findings) -> None:
    """The machine, its disks, and that nothing else serves the same path."""
    nfs = spec.nfs
    if nfs is None:
        return
    check_hardware(spec.nebius.region, "nfs", nfs, findings)
    check_stripes("nfs.boot_disk", nfs.boot_disk.size_gib, nfs.boot_disk.type, findings)
    check_stripes("nfs.data_disks", nfs.data_disks.size_gib, nfs.data_disks.type, findings)
    if spec.soperator.nfs_home is not None:
        findings.error(
            "nfs",
            "beside soperator.nfs_home; one server serves the homes: keep this one, whose disks "
            "outlive the cluster, or that one",
            rule="nfs.home-twice",
        )
    if nfs.billing is not Billing.ON_DEMAND:
        findings.error(
            "nfs.billing",
            f"'{nfs.billing}'; a server that is taken away stops every node, and capacity blocks "
            "hold GPUs only: use on-demand",
            rule="nfs.billing",
        )
    preset = find_preset(nfs.platform, nfs.preset)
    if preset is not None and preset.gpus:
        findings.error(
            "nfs.platform",
            f"'{nfs.platform}' has GPUs, which a file server leaves idle; use cpu-d3 or cpu-e2",
            rule="nfs.gpus",
        )
    if nfs.data_disks.type is DiskType.NETWORK_SSD_NON_REPLICATED:
        findings.warn(
            "nfs.data_disks.type",
            "network-ssd-non-replicated keeps one copy: a lost disk takes every file along; "
            "network-ssd-io-m3 keeps three",
            rule="nfs.one-copy",
        )
    if spec.nodes.nfs is not None and spec.soperator.nfs_home is None:
        findings.error(
            "nodes.nfs",
            "is for the server of soperator.nfs_home inside the cluster; this one has a machine "
            "of its own: remove the group",
            rule="nfs.node-group",
        )
