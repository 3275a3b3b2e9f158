"""Disks that the Soperator charts claim from the cloud, beside the declared filesystems.

infra/render writes the claims, cost/ prices them: one rule for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from stacks.soperator_spec import Observability
from stacks.spec import StackSpec

_OBSERVABILITY_GIB: Final[Mapping[Observability, Mapping[str, int]]] = MappingProxyType(
    {
        Observability.OFF: MappingProxyType({}),
        # Defaults of helm/soperator-fluxcd at 4.1.7.
        Observability.SMALL: MappingProxyType({"metrics": 30, "logs": 30}),
        # nebius-solutions-library soperator/modules/slurm, commit 7b687e5, 2026-04-21.
        Observability.FULL: MappingProxyType({"metrics": 512, "logs": 256}),
    }
)


def home_volume_gib(spec: StackSpec) -> int:
    """GiB that the NFS server of `/home` claims on network SSD; 0 without one."""
    return 0 if spec.soperator.nfs_home is None else spec.soperator.nfs_home.size_gib


def observability_volumes(spec: StackSpec) -> Mapping[str, int]:
    """GiB that metrics and logs claim on network SSD, by what they keep; empty without them."""
    return _OBSERVABILITY_GIB[spec.soperator.observability]
