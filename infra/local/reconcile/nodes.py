"""Kubernetes nodes out of mk8s node groups, as the managed control plane makes them.

Owns the reading of ready node groups over the Nebius API and the Node objects with their labels,
taints, capacity and attached filesystems. No kubelet stands behind them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from infra.clients.kube import KubeClient
from infra.clients.kube_rules import GPU_RESOURCE, condition
from infra.local.reconcile.snapshot import FILESYSTEMS, TOPOLOGY_LABELS, Object, annotation, name_of
from infra.render.names import kube_object
from stacks.catalog import PLATFORMS

NODESET_NAME_LABEL: Final = "slurm.nebius.ai/nodeset-name"
GROUP_LABEL: Final = "local.soperator/node-group"
_APPLIED: Final = "local.soperator/applied"
_MANAGER: Final = "mk8s"
_MAX_PODS: Final = 110


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """One ready node group."""

    id: str
    num_nodes: int
    platform: str
    preset: str
    max_nodes: int = 0
    """To how many nodes it grows by itself; below num_nodes it has a fixed count."""
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[dict[str, str], ...] = ()
    filesystems: tuple[tuple[str, str], ...] = ()
    """Mount tag and filesystem id of each attached filesystem."""
    gpu_cluster: str = ""


def node_objects(groups: Iterable[NodeGroup]) -> list[Object]:
    """The nodes of the groups, named after their group."""
    return [_node(group, index) for group in groups for index in range(group.num_nodes)]


def grown(groups: Iterable[NodeGroup], power_states: Iterable[Object]) -> list[NodeGroup]:
    """The groups as the autoscaler of the cloud makes them for the pods that are powered up."""
    wanted: dict[str, int] = {}
    for state in power_states:
        spec = state["spec"]
        wanted[spec["nodeSetRef"]] = len(spec.get("activeNodes") or ())
    return [
        replace(
            group,
            num_nodes=max(
                group.num_nodes,
                min(group.max_nodes, wanted.get(group.labels.get(NODESET_NAME_LABEL, ""), 0)),
            ),
        )
        for group in groups
    ]


def reconcile_nodes(client: KubeClient, groups: Iterable[NodeGroup], nodes: list[Object]) -> bool:
    """Apply the nodes that differ from `nodes`, the live ones, and remove those without a group.

    True if anything was to do.
    """
    ours = [each for each in nodes if GROUP_LABEL in (each["metadata"].get("labels") or {})]
    live = {name_of(node): node for node in ours}
    changed = False
    for node in node_objects(groups):
        found = live.pop(name_of(node), None)
        if found is None or not _is_current(found, node):
            changed = True
            status = node.pop("status")
            client.apply(node, field_manager=_MANAGER)
            # Admission puts a not-ready taint on every new node; a second apply takes it off.
            client.apply(node, field_manager=_MANAGER)
            named = kube_object("v1", "Node", name_of(node), status=status)
            client.apply_status(named, field_manager=_MANAGER)
    for node in live.values():
        client.delete(node)
    return changed or bool(live)


def read_groups(sdk: Any, projects: Sequence[str]) -> tuple[list[NodeGroup], bool]:
    """The node groups that run in every mk8s cluster of the projects, and whether more will.

    A group is on its way then, or a cluster waits for its first one.
    """
    from nebius.api.nebius.mk8s import v1 as mk8s

    clusters, groups = mk8s.ClusterServiceClient(sdk), mk8s.NodeGroupServiceClient(sdk)
    found: list[NodeGroup] = []
    in_motion = False
    for project in projects:
        for cluster in clusters.list(mk8s.ListClustersRequest(parent_id=project)).wait().items:
            request = mk8s.ListNodeGroupsRequest(parent_id=cluster.metadata.id)
            items = groups.list(request).wait().items
            running = [_group(item) for item in items if item.status.state.name == "RUNNING"]
            in_motion = in_motion or not items or len(running) < len(items)
            found += running
    return sorted(found, key=lambda group: group.id), in_motion


def read_projects(sdk: Any) -> list[str]:
    """Ids of every project that the emulator has."""
    from nebius.api.nebius.iam import v2 as iam

    tenants = iam.TenantServiceClient(sdk).list(iam.ListTenantsRequest()).wait().items
    projects = iam.ProjectServiceClient(sdk)
    return [
        project.metadata.id
        for tenant in tenants
        for project in projects.list(iam.ListProjectsRequest(parent_id=tenant.metadata.id))
        .wait()
        .items
    ]


def _group(item: Any) -> NodeGroup:
    template = item.spec.template
    return NodeGroup(
        id=item.metadata.id,
        num_nodes=item.status.target_node_count,
        platform=template.resources.platform,
        preset=template.resources.preset,
        max_nodes=item.spec.autoscaling.max_node_count if item.spec.autoscaling else 0,
        labels=dict(template.metadata.labels),
        taints=tuple(
            # NO_SCHEDULE is NoSchedule to Kubernetes.
            {
                "key": taint.key,
                "value": taint.value,
                "effect": taint.effect.name.title().replace("_", ""),
            }
            for taint in template.taints
        ),
        filesystems=tuple(
            (attached.mount_tag, attached.existing_filesystem.id)
            for attached in template.filesystems
        ),
        gpu_cluster=template.gpu_cluster.id if template.gpu_cluster else "",
    )


def _node(group: NodeGroup, index: int) -> Object:
    preset = PLATFORMS[group.platform].presets[group.preset]
    capacity = {
        "cpu": str(preset.vcpus),
        "memory": f"{preset.memory_gib}Gi",
        "pods": str(_MAX_PODS),
    }
    if preset.gpus:
        capacity[GPU_RESOURCE] = str(preset.gpus)
    name = f"{group.id}-{index}"
    labels = {
        **group.labels,
        GROUP_LABEL: group.id,
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }
    if group.gpu_cluster:
        labels |= dict.fromkeys(TOPOLOGY_LABELS, group.gpu_cluster)
    attached = ",".join(f"{tag}={id_}" for tag, id_ in group.filesystems)
    status = {
        "capacity": capacity,
        "allocatable": capacity,
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "conditions": [{"type": "Ready", "status": "True", "reason": "NodeGroupRunning"}],
    }
    metadata = {"labels": labels, "annotations": {FILESYSTEMS: attached}}
    spec = {"taints": [dict(taint) for taint in group.taints]}
    node = kube_object("v1", "Node", name, metadata=metadata, spec=spec, status=status)
    text = json.dumps(node, sort_keys=True)
    node["metadata"]["annotations"][_APPLIED] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return node


def _is_current(found: Object, wanted: Object) -> bool:
    taints = (found.get("spec") or {}).get("taints") or []
    return (
        annotation(found, _APPLIED) == annotation(wanted, _APPLIED)
        and len(taints) == len(wanted["spec"]["taints"])
        and bool(condition(found, "Ready"))
    )
