"""The mk8s node group of one role: spec -> NodeGroupSpec in the API's field names. Pure.

Owns labels, taints and which filesystems a role gets. Ids that only exist after a create (subnet,
filesystems, GPU cluster) are passed through untouched, known or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from infra.render import names
from stacks.catalog import find_preset
from stacks.node_spec import Billing, NodeGroupSpec, WorkerSpec
from stacks.spec import StackSpec

# Recipe: nebius-solutions-library soperator/modules/k8s, 2026-04-21. CUDA images carry the driver.
_OS: Final = "ubuntu24.04"
_DRIVERS_PRESET: Final = "cuda12.8"
_GPU_TAINT: Final = {"key": names.GPU_RESOURCE, "value": "true", "effect": "NO_SCHEDULE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One node group of a stack under its role."""

    name: str
    """Name of the group inside the stack: the role, or the nodeset's name."""
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
    jailed = tuple(tag for tag in tags if names.is_jailed(tag))
    spool = (names.JAIL, names.CONTROLLER_SPOOL)
    nodes = spec.nodes
    found = [
        Role(name="system", label="system", group=nodes.system, tags=jailed),
        Role(name="controller", label="controller", group=nodes.controller, tags=spool),
        Role(name="login", label="login", group=nodes.login, tags=jailed),
    ]
    if nodes.accounting is not None:
        own = (names.ACCOUNTING,) if names.ACCOUNTING in tags else ()
        found.append(
            Role(
                name="accounting",
                label="accounting",
                group=nodes.accounting,
                tags=(names.JAIL, *own),
            )
        )
    found += [
        Role(name=worker.name, label="worker", group=worker, tags=jailed)
        for worker in nodes.workers
    ]
    return tuple(found)


def labels(role: Role) -> dict[str, str]:
    """Node labels: what the charts' node selectors look for."""
    worker = role.worker
    has_gpus = _gpus(role) > 0
    found = {
        names.NODESET_LABEL: role.label,
        names.WORKLOAD_LABEL: "gpu" if has_gpus else "cpu",
        names.JAIL_LABEL: "true",
    }
    if worker is not None:
        found[names.NODESET_NAME_LABEL] = worker.name
    if has_gpus:
        found[names.GPU_NODE_LABEL] = "true"
    return found


def node_group_spec(
    spec: StackSpec,
    role: Role,
    *,
    subnet_id: Any,
    filesystem_ids: Mapping[str, Any],
    gpu_cluster_id: Any = None,
) -> dict[str, Any]:
    """The API's NodeGroupSpec of `role`."""
    group = role.group
    template: dict[str, Any] = {
        "metadata": {"labels": labels(role)},
        "resources": {"platform": group.platform, "preset": group.preset},
        "boot_disk": {
            "type": group.boot_disk.type.value,
            "size_gibibytes": group.boot_disk.size_gib,
        },
        "os": _OS,
        "network_interfaces": [{"subnet_id": subnet_id}],
        "filesystems": _attached(role.tags, filesystem_ids),
    }
    if _gpus(role):
        template["gpu_settings"] = {"drivers_preset": _DRIVERS_PRESET}
        template["taints"] = [dict(_GPU_TAINT)]
    if gpu_cluster_id is not None:
        template["gpu_cluster"] = {"id": gpu_cluster_id}
    if group.billing is Billing.PREEMPTIBLE:
        template["preemptible"] = {}
    return {"version": spec.cluster.kubernetes_version, **_size(group), "template": template}


def _gpus(role: Role) -> int:
    preset = find_preset(role.group.platform, role.group.preset)
    return 0 if preset is None else preset.gpus


def _size(group: NodeGroupSpec) -> dict[str, Any]:
    if group.min_nodes == group.max_nodes:
        return {"fixed_node_count": group.min_nodes}
    counts = {"min_node_count": group.min_nodes, "max_node_count": group.max_nodes}
    return {"autoscaling": counts}


def _attached(tags: Sequence[str], ids: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "attach_mode": "READ_WRITE",
            "mount_tag": tag,
            "existing_filesystem": {"id": ids[tag]},
        }
        for tag in tags
    ]
