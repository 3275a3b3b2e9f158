"""What a resource uses of each quota.

Quota names: docs.nebius.com/overview/limits, as collected by nebius-physical-ai
npa/cluster_backends/quotas.py, 2026-08. On the real cloud mk8s accepts a node group over its quota
and its nodes never come; here it is refused at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from infra.local.nebius_api.errors import quota_failure
from infra.local.nebius_api.store import Store
from infra.nebius.schema import Schema
from stacks.catalog import find_preset
from stacks.rules.quotas import ADDRESSES_PER_NODE

GIB: Final = 1 << 30
_UNITS: Final = {
    "size_bytes": 1,
    "size_kibibytes": 1 << 10,
    "size_mebibytes": 1 << 20,
    "size_gibibytes": GIB,
}


def size_bytes(spec: Any) -> int:
    """Size of a disk or filesystem in bytes, whichever unit its spec uses."""
    unit = spec.WhichOneof("size")
    return getattr(spec, unit) * _UNITS[unit] if unit else 0


def num_nodes(group: Any) -> int:
    """Nodes that a node group starts with."""
    if group.spec.WhichOneof("size") == "fixed_node_count":
        return group.spec.fixed_node_count
    return group.spec.autoscaling.min_node_count


def gpu_quota(platform: str) -> str:
    """Name of the GPU quota of a platform: `gpu-h100-sxm` -> `compute.instance.gpu.h100`."""
    return f"compute.instance.gpu.{platform.split('-')[1]}"


def enum_name(message: Any, field: str) -> str:
    """`network-ssd` for the value of an enum field."""
    values = message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number
    return values[getattr(message, field)].name.lower().replace("_", "-")


def _filesystem(resource: Any) -> Counter[str]:
    kind = enum_name(resource.spec, "type")
    return Counter(
        {
            "compute.filesystem.count": 1,
            f"compute.filesystem.size.{kind}": size_bytes(resource.spec),
        }
    )


def _disk(resource: Any) -> Counter[str]:
    kind = enum_name(resource.spec, "type")
    return Counter(
        {"compute.disk.count": 1, f"compute.disk.size.{kind}": size_bytes(resource.spec)}
    )


def _node_group(resource: Any) -> Counter[str]:
    nodes, template = num_nodes(resource), resource.spec.template
    used = Counter({"compute.instance.count": nodes, "compute.disk.count": nodes})
    kind = enum_name(template.boot_disk, "type")
    used[f"compute.disk.size.{kind}"] = nodes * size_bytes(template.boot_disk)
    preset = find_preset(template.resources.platform, template.resources.preset)
    used["vpc.allocation.count"] = ADDRESSES_PER_NODE * nodes
    if preset is not None and not preset.gpus:
        used["compute.instance.non-gpu.vcpu"] = nodes * preset.vcpus
    elif preset is not None and not template.reservation_policy.reservation_ids:
        used[gpu_quota(template.resources.platform)] = nodes * preset.gpus
    return used


def _instance(resource: Any) -> Counter[str]:
    wanted = resource.spec.resources
    used = Counter({"compute.instance.count": 1})
    preset = find_preset(wanted.platform, wanted.preset)
    if preset is not None and not preset.gpus:
        used["compute.instance.non-gpu.vcpu"] = preset.vcpus
    elif preset is not None and not resource.spec.reservation_policy.reservation_ids:
        used[gpu_quota(wanted.platform)] = preset.gpus
    return used


_USED: Final[Mapping[str, Callable[[Any], Counter[str]]]] = {
    "computedisk": _disk,
    "computefilesystem": _filesystem,
    "computegpucluster": lambda _: Counter({"compute.gpucluster.count": 1}),
    "computeinstance": _instance,
    "mk8scluster": lambda _: Counter({"mk8s.cluster.count": 1}),
    "mk8snodegroup": _node_group,
    "vpcallocation": lambda _: Counter({"vpc.allocation.count": 1}),
}


def used_by(schema: Schema, resource: Any) -> Counter[str]:
    """Quota name -> amount (bytes, GPUs, vCPUs or a count)."""
    use = _USED.get(schema.kind(resource.DESCRIPTOR))
    return Counter() if use is None else use(resource)


def used_in(schema: Schema, store: Store, project: str) -> Counter[str]:
    """Everything that a project uses."""
    total: Counter[str] = Counter()
    for resource in list(store.resources.values()):
        if store.project_of(resource.metadata.id) == project:
            total += used_by(schema, resource)
    return total


def check_quota(schema: Schema, store: Store, new: Any, old: Any | None = None) -> None:
    """Refuses a resource, or its growth, beyond a quota of its project."""
    wanted = used_by(schema, new)
    had = Counter() if old is None else used_by(schema, old)
    if not wanted:
        return
    project = store.project_of(new.metadata.parent_id)
    total = used_in(schema, store, project)
    violations = []
    for quota, amount in wanted.items():
        allowance = store.find("quotaallowance", parent_id=project, name=quota)
        requested = total[quota] - had[quota] + amount
        if allowance is None or not allowance.spec.HasField("limit"):
            continue
        if amount > had[quota] and requested > allowance.spec.limit:
            violations.append(
                {
                    "quota": quota,
                    "limit": str(allowance.spec.limit),
                    "requested": str(requested),
                    "message": f"quota {quota} exceeded",
                }
            )
    if violations:
        raise quota_failure(violations)
