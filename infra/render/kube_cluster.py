"""The mk8s control plane of a stack: spec -> what the API takes. Pure."""

from __future__ import annotations

from typing import Any

from stacks.spec import StackSpec


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
