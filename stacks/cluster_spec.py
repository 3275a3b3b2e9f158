"""Where a stack lives in Nebius, its mk8s cluster and the Soperator release on it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class GpuDrivers(StrEnum):
    """Where GPU nodes get their drivers from."""

    PREINSTALLED = "preinstalled"
    """In the node image, as `drivers_preset` names it."""
    OPERATORS = "operators"
    """From NVIDIA's network and GPU operators, installed as applications of the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NebiusSpec:
    """Where in Nebius the stack lives; ids as the console shows them."""

    tenant_id: str
    """Id of the tenant; only tools and messages use it."""
    project_id: str
    """Id of the project that every resource is made in."""
    region: str
    """Region of the project, such as `eu-north1`."""
    network_id: str | None = None
    """Existing network; None makes one."""
    subnet_id: str | None = None
    """Existing subnet; None makes one."""
    discover_network: bool = False
    """Whether the only subnet of the project is used; refused where there are several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """The mk8s cluster and the Soperator release on it."""

    kubernetes_version: str = "1.33"
    """MAJOR.MINOR of the control plane and the nodes."""
    etcd_size: int = 3
    """Members of etcd: 1 or 3."""
    audit_logs: bool = False
    """Whether the API server's audit log goes to the service's logs."""
    public_endpoint: bool = True
    """Whether the Kubernetes API has a public address."""
    allowed_cidrs: tuple[str, ...] = ()
    """IPv4 blocks that may reach the public address; empty is everybody."""
    os: str = "ubuntu24.04"
    """System of every node image."""
    gpu_drivers: GpuDrivers = GpuDrivers.PREINSTALLED
    """How the GPU drivers come onto the nodes."""
    drivers_preset: str = "cuda13.0"
    """Drivers in the image of GPU nodes, as the API names the set."""
    soperator_version: str = "4.1.7"
    """Version of every Soperator chart."""
    slurm_cluster_name: str = "soperator"
    """Name of the SlurmCluster object; another needs `soperator.checks: off`."""
    namespace: str = "soperator"
    """Kubernetes namespace of the Slurm cluster; another needs `soperator.checks: off`."""
