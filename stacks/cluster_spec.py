"""Where a stack lives in Nebius, its mk8s cluster and the Soperator release on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NebiusSpec:
    """Where in Nebius the stack lives; ids as the console shows them."""

    tenant_id: str
    project_id: str
    region: str
    network_id: str | None = None
    """Existing network; None makes one."""
    subnet_id: str | None = None
    """Existing subnet; None makes one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """The mk8s cluster and the Soperator release on it."""

    kubernetes_version: str = "1.33"
    etcd_size: int = 3
    soperator_version: str = "4.1.7"
    slurm_cluster_name: str = "soperator"
    namespace: str = "soperator"
