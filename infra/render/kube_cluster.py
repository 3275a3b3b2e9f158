"""The managed Kubernetes cluster as the API wants it, with its network and kubeconfig.

The kubeconfig's user runs `soperator kube-token`, so neither the nebius CLI nor kubectl is needed
on the laptop and no token is ever written down. Source of the operators: nebius-solutions-library
modules/network-operator and modules/gpu-operator (commit 7b687e5, 2026-04-21).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from stacks.spec import StackSpec
from stacks.spec.cluster import GpuDrivers
from stacks.spec.storage import FilesystemSpec, SubmountSpec


def login_allocation(spec: StackSpec, *, subnet_id: Any) -> tuple[str, dict[str, Any]]:
    """Name inside the stack and AllocationSpec; another kind of address is another allocation."""
    if spec.login.public_ip:
        return "login", {"ipv4_public": {"subnet_id": subnet_id}}
    return "login-private", {"ipv4_private": {"subnet_id": subnet_id}}


def kube_cluster_spec(spec: StackSpec, *, subnet_id: Any) -> dict[str, Any]:
    """The API's ClusterSpec; an empty mapping switches on what it names."""
    cluster = spec.cluster
    control_plane: dict[str, Any] = {
        "version": cluster.kubernetes_version,
        "subnet_id": subnet_id,
        "etcd_cluster_size": cluster.etcd_size,
    }
    if cluster.public_endpoint:
        guard = {"allowed_cidrs": list(cluster.allowed_cidrs)} if cluster.allowed_cidrs else {}
        control_plane["endpoints"] = {"public_endpoint": guard}
    if cluster.audit_logs:
        control_plane["audit_logs"] = {}
    return {"control_plane": control_plane}


_EXEC_API: Final = "client.authentication.k8s.io/v1"


_TOKEN: Final = {
    "exec": {
        "apiVersion": _EXEC_API,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One application of the Nebius marketplace."""

    name: str
    """Name of the application and of its namespace."""
    product_slug: str
    set: Mapping[str, str]
    """Values of its chart, by path."""

    def spec(self, cluster_id: Any) -> dict[str, Any]:
        """The API's K8sReleaseSpec."""
        return {
            "cluster_id": cluster_id,
            "product_slug": self.product_slug,
            "namespace": self.name,
            "application_name": self.name,
            "set": dict(self.set),
        }


_NETWORK: Final = Operator(
    name="network-operator",
    product_slug="nebius/nvidia-network-operator",
    set=MappingProxyType(
        {
            "operator.resources.limits.cpu": "500m",
            "operator.resources.limits.memory": "1280Mi",
            # Its probe kills the driver's container while the module is still being built.
            "ofedDriver.livenessProbe.enabled": "false",
        }
    ),
)
_GPU: Final = Operator(
    name="gpu-operator",
    product_slug="nebius/nvidia-gpu-operator",
    # Soperator's own exporter maps GPUs to jobs; two of them would count every GPU twice.
    set=MappingProxyType({"dcgmExporter.enabled": "false"}),
)


def nvidia_operators(spec: StackSpec) -> tuple[Operator, ...]:
    """The operators in the order in which they are installed; none without GPUs."""
    if spec.cluster.gpu_drivers is GpuDrivers.PREINSTALLED:
        return ()
    if not any(worker.gpus for worker in spec.nodes.workers):
        return ()
    return _NETWORK, _GPU
