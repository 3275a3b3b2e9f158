"""What one resource of the API uses of each quota; emulator and pre-flight count by it.

GPUs of a capacity block count against none. The names are those of stacks/rules/quotas.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from infra.providers.nebius.resource_type import enum_name, size_bytes
from infra.providers.nebius.schema import Schema
from stacks.catalog import find_preset
from stacks.rules.quotas import ADDRESSES_PER_NODE, gpu_quota

_COUNTED: Final = {
    "computegpucluster": "compute.gpucluster.count",
    "mk8scluster": "mk8s.cluster.count",
    "vpcallocation": "vpc.allocation.count",
}


def used_by(schema: Schema, resource: Any, num_nodes: Callable[[Any], int]) -> Counter[str]:
    """Quota name -> bytes, GPUs, vCPUs or a count; `num_nodes` tells those of a node group."""
    kind, spec = schema.kind(resource.DESCRIPTOR), getattr(resource, "spec", None)
    match kind:
        case "computedisk" | "computefilesystem":
            return _sized(f"compute.{kind.removeprefix('compute')}", spec)
        case "computeinstance":
            return _machine(spec)
        case "mk8snodegroup":
            template, nodes = resource.spec.template, num_nodes(resource)
            one = _machine(template) + _sized("compute.disk", template.boot_disk)
            one["vpc.allocation.count"] = ADDRESSES_PER_NODE
            return Counter({quota: nodes * amount for quota, amount in one.items()})
        case _:
            return Counter([_COUNTED[kind]] if kind in _COUNTED else [])


def _sized(what: str, spec: Any) -> Counter[str]:
    """Use of a disk or filesystem."""
    return Counter({f"{what}.count": 1, f"{what}.size.{enum_name(spec, 'type')}": size_bytes(spec)})


def _machine(spec: Any) -> Counter[str]:
    """Use of one machine without its disks."""
    used = Counter({"compute.instance.count": 1})
    preset = find_preset(spec.resources.platform, spec.resources.preset)
    if preset is not None and not preset.gpus:
        used["compute.instance.non-gpu.vcpu"] = preset.vcpus
    elif preset is not None and not spec.reservation_policy.reservation_ids:
        used[gpu_quota(spec.resources.platform)] = preset.gpus
    return used
