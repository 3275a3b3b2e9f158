"""The mk8s node group of one role: spec -> NodeGroupSpec in the API's field names. Pure.

Owns labels, taints, roll-out and which filesystems a role gets. Ids that only exist after a create
(subnet, filesystems, GPU cluster) are passed through untouched, known or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from infra.render import names
from infra.render.cloud_init import cloud_init
from infra.render.node_chunks import Chunk, chunks
from stacks.catalog import find_preset
from stacks.cluster_spec import GpuDrivers
from stacks.node_spec import Billing, NodeGroupSpec, ReservationSpec, StrategySpec, WorkerSpec
from stacks.spec import StackSpec

# Recipe: nebius-solutions-library soperator/modules/k8s, commit 7b687e5, 2026-04-21.
_GPU_TAINT: Final = {"key": names.GPU_RESOURCE, "value": "true", "effect": "NO_SCHEDULE"}
# Roles that nothing else may fill: their pods tolerate it, in infra/render/values/.
_TAINTED: Final = ("controller", "login", "accounting", "nfs")
_MAX_UNAVAILABLE: Final = {"percent": 50}
_MAX_SURGE: Final = {"percent": 0}
# Soperator drains and replaces its own workers; mk8s must not do it under a running job.
_AUTO_REPAIR: Final = (
    {"type": "NebiusBootDiskIOError", "status": "TRUE", "disabled": True},
    {"type": "NodeReady", "status": "UNKNOWN", "disabled": True},
    {"type": "HardwareIssuesSuspected", "status": "TRUE", "timeout": "1s"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One node group of a stack under its role."""

    chunk: Chunk
    label: str
    group: NodeGroupSpec
    tags: tuple[str, ...]
    """Mount tags of the filesystems its nodes attach."""

    @property
    def name(self) -> str:
        """Name of the group inside the stack: the role, or the nodeset's with its number."""
        return self.chunk.name

    @property
    def worker(self) -> WorkerSpec | None:
        """The nodeset, where the role is one."""
        return self.group if isinstance(self.group, WorkerSpec) else None


def roles(spec: StackSpec) -> tuple[Role, ...]:
    """Every node group of the stack, in the order they are created."""
    tags = [tag for tag, _ in names.filesystems(spec)]
    # Where the jail label is, DaemonSets mount every submount: a node without one never gets ready.
    jailed = tuple(tag for tag in tags if names.is_jailed(tag))
    own = (names.ACCOUNTING,) if names.ACCOUNTING in tags else ()
    nodes = spec.nodes
    declared: list[tuple[str, str, NodeGroupSpec | None, tuple[str, ...]]] = [
        ("system", "system", nodes.system, jailed),
        ("controller", "controller", nodes.controller, (names.CONTROLLER_SPOOL, *jailed)),
        ("login", "login", nodes.login, jailed),
        ("accounting", "accounting", nodes.accounting, (*jailed, *own)),
        ("nfs", "nfs", nodes.nfs, ()),
        *((worker.name, "worker", worker, jailed) for worker in nodes.workers),
    ]
    return tuple(
        Role(chunk=chunk, label=label, group=group, tags=attached)
        for name, label, group, attached in declared
        if group is not None
        for chunk in chunks(name, nodes, group)
    )


def declared_fabrics(spec: StackSpec) -> tuple[str, ...]:
    """InfiniBand fabrics that need a GPU cluster of the stack's own, sorted."""
    fabrics = {worker.infiniband_fabric for worker in spec.nodes.workers}
    return tuple(sorted(fabric for fabric in fabrics if fabric is not None))


def labels(role: Role) -> dict[str, str]:
    """Node labels: what the charts' node selectors look for."""
    worker = role.worker
    has_gpus = _gpus(role) > 0
    found = {
        names.NODESET_LABEL: role.label,
        names.WORKLOAD_LABEL: "gpu" if has_gpus else "cpu",
    }
    if role.tags:
        found[names.JAIL_LABEL] = "true"
    if role.label != "login":
        # Or the balancer of the login service sends connections to nodes without its pod.
        found[names.NO_BALANCER_LABEL] = "true"
    if worker is not None:
        found[names.NODESET_NAME_LABEL] = worker.name
    if has_gpus:
        found[names.GPU_NODE_LABEL] = "true"
    return {**role.group.labels, **found}


def node_labels(spec: StackSpec) -> list[dict[str, str]]:
    """Labels of the nodes of every group, each set once."""
    found = dict.fromkeys(tuple(sorted(labels(role).items())) for role in roles(spec))
    return [dict(each) for each in found]


def node_group_spec(
    spec: StackSpec,
    role: Role,
    *,
    subnet_id: Any,
    filesystem_ids: Mapping[str, Any],
    gpu_cluster_id: Any = None,
) -> dict[str, Any]:
    """The API's NodeGroupSpec of `role`."""
    group, worker = role.group, role.worker
    interface: dict[str, Any] = {"subnet_id": subnet_id}
    if group.public_ip:
        interface["public_ip_address"] = {}
    template: dict[str, Any] = {
        "metadata": {"labels": labels(role)},
        "resources": {"platform": group.platform, "preset": group.preset},
        "boot_disk": {
            "type": group.boot_disk.type.value,
            "size_gibibytes": group.boot_disk.size_gib,
        },
        "os": spec.cluster.os,
        "network_interfaces": [interface],
    }
    if role.tags:
        template["filesystems"] = _attached(role.tags, filesystem_ids)
    taints = _taints(role)
    if taints:
        template["taints"] = taints
    if _gpus(role) and spec.cluster.gpu_drivers is GpuDrivers.PREINSTALLED:
        template["gpu_settings"] = {"drivers_preset": spec.cluster.drivers_preset}
    if gpu_cluster_id is not None:
        template["gpu_cluster"] = {"id": gpu_cluster_id}
    if group.billing is Billing.PREEMPTIBLE:
        template["preemptible"] = {}
    user_data = cloud_init(group, spec.nodes.ssh_users)
    if user_data is not None:
        template["cloud_init_user_data"] = user_data
    rendered: dict[str, Any] = {
        "version": spec.cluster.kubernetes_version,
        **_size(role.chunk),
        "template": template,
    }
    if worker is not None:
        template |= _worker_template(worker)
        rendered["strategy"] = _strategy(worker.strategy)
        rendered["auto_repair"] = {"conditions": [dict(each) for each in _AUTO_REPAIR]}
    return rendered


def _worker_template(worker: WorkerSpec) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if worker.reservation is not None:
        found["reservation_policy"] = _reservation(worker.reservation)
    if worker.max_pods is not None:
        found["max_pods"] = worker.max_pods
    if worker.local_nvme is not None:
        # Without a config the service would make volumes of the drives that cloud-init joins.
        found["local_disks"] = {"passthrough_group": {"requested": True}, "config": {"none": True}}
    return found


def _reservation(reservation: ReservationSpec) -> dict[str, Any]:
    ids = {"reservation_ids": list(reservation.ids)} if reservation.ids else {}
    return {"policy": reservation.policy.value, **ids}


def _strategy(strategy: StrategySpec) -> dict[str, Any]:
    found: dict[str, Any] = {
        "max_unavailable": _percent_or_count(
            strategy.max_unavailable_percent, strategy.max_unavailable_nodes, _MAX_UNAVAILABLE
        ),
        "max_surge": _percent_or_count(
            strategy.max_surge_percent, strategy.max_surge_nodes, _MAX_SURGE
        ),
    }
    if strategy.drain_timeout_s is not None:
        found["drain_timeout"] = f"{strategy.drain_timeout_s}s"
    return found


def _percent_or_count(
    percent: int | None, count: int | None, otherwise: Mapping[str, int]
) -> dict[str, int]:
    if count is not None:
        return {"count": count}
    return dict(otherwise) if percent is None else {"percent": percent}


def _taints(role: Role) -> list[dict[str, str]]:
    taints: list[dict[str, str]] = []
    if role.label in _TAINTED:
        taints.append({"key": names.NODESET_LABEL, "value": role.label, "effect": "NO_SCHEDULE"})
    if _gpus(role):
        taints.append(dict(_GPU_TAINT))
    return taints


def _gpus(role: Role) -> int:
    preset = find_preset(role.group.platform, role.group.preset)
    return 0 if preset is None else preset.gpus


def _size(chunk: Chunk) -> dict[str, Any]:
    if chunk.min_nodes == chunk.max_nodes:
        return {"fixed_node_count": chunk.min_nodes}
    counts = {"min_node_count": chunk.min_nodes, "max_node_count": chunk.max_nodes}
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
