"""What a project holds already: which resources are this stack's own, and what quota they use.

A second `up` must not count its own nodes against the quota again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from infra.nebius import ownership
from infra.preflight.cloud import Cloud
from infra.render.names import NODESET_NAME_LABEL
from infra.teardown.disks import CLAIM_LABEL
from stacks.catalog import find_preset
from stacks.rules.quotas import ADDRESSES_PER_NODE, gpu_quota
from stacks.spec import StackSpec

KINDS: Final = {
    "cluster": "mk8s.v1.ClusterService",
    "filesystem": "compute.v1.FilesystemService",
    "GPU cluster": "compute.v1.GpuClusterService",
    "address": "vpc.v1.AllocationService",
    "network": "vpc.v1.NetworkService",
    "subnet": "vpc.v1.SubnetService",
    "machine": "compute.v1.InstanceService",
    "disk": "compute.v1.DiskService",
    "bucket": "storage.v1.BucketService",
    "service account": "iam.v1.ServiceAccountService",
    "group": "iam.v1.GroupService",
    "registry": "registry.v1.RegistryService",
}
"""What a stack makes under its project -> the service that lists it."""
_UNITS: Final = {
    "size_bytes": 1 / (1 << 30),
    "size_kibibytes": 1 / (1 << 20),
    "size_mebibytes": 1 / 1024,
    "size_gibibytes": 1,
}


@dataclass(frozen=True, slots=True)
class Owner:
    """The stack and the Pulumi project whose labels count as ours."""

    stack: str
    project: str

    def owns(self, resource: Any) -> bool:
        """Whether the resource carries our labels."""
        return ownership.is_of(dict(resource.metadata.labels), self.stack, self.project)


def own(cloud: Cloud, spec: StackSpec, owner: Owner, kind: str) -> Iterator[Any]:
    """Our resources of one kind."""
    for resource in cloud.list(KINDS[kind], spec.nebius.project_id):
        if owner.owns(resource):
            yield resource


def own_node_groups(cloud: Cloud, spec: StackSpec, owner: Owner) -> Iterator[Any]:
    """Node groups of our cluster."""
    for cluster in own(cloud, spec, owner, "cluster"):
        yield from cloud.list("mk8s.v1.NodeGroupService", cluster.metadata.id)


def own_use(cloud: Cloud, spec: StackSpec, owner: Owner) -> Mapping[str, int]:
    """Quota name -> GiB, GPUs, vCPUs or a count that our resources use now."""
    used: Counter[str] = Counter()
    for filesystem in own(cloud, spec, owner, "filesystem"):
        used["compute.filesystem.count"] += 1
        used[f"compute.filesystem.size.{_type(filesystem.spec)}"] += _gib(filesystem.spec)
    for disk in own(cloud, spec, owner, "disk"):
        used["compute.disk.count"] += 1
        used[f"compute.disk.size.{_type(disk.spec)}"] += _gib(disk.spec)
    for machine in own(cloud, spec, owner, "machine"):
        used["compute.instance.count"] += 1
        preset = find_preset(machine.spec.resources.platform, machine.spec.resources.preset)
        if preset is not None and not preset.gpus:
            used["compute.instance.non-gpu.vcpu"] += preset.vcpus
    used["compute.gpucluster.count"] = len(list(own(cloud, spec, owner, "GPU cluster")))
    used["vpc.allocation.count"] = len(list(own(cloud, spec, owner, "address")))
    used["mk8s.cluster.count"] = len(list(own(cloud, spec, owner, "cluster")))
    groups = list(own_node_groups(cloud, spec, owner))
    for group in groups:
        used += _group_use(group)
    return used + _claimed_use(cloud, spec, groups)


def _claimed_use(cloud: Cloud, spec: StackSpec, groups: list[Any]) -> Counter[str]:
    """Node-local and image disks of our workers: as many as are declared and there.

    The driver labels a disk with the namespace of its claim and with no cluster, and the disks of
    another cluster of the project can be among them: what we declare is the most that is ours.
    """
    declared: Counter[str] = Counter()
    for worker in spec.nodes.workers:
        nodes = sum(num_nodes(group) for group in groups if _nodeset(group) == worker.name)
        for disk in (*worker.local_disks, *filter(None, (worker.image_disk,))):
            declared[disk.type] += nodes
            declared[f"GiB {disk.type}"] += nodes * disk.size_gib
    if not declared:
        return Counter()
    there: Counter[str] = Counter()
    for disk in cloud.list(KINDS["disk"], spec.nebius.project_id):
        if disk.metadata.labels.get(CLAIM_LABEL) == spec.cluster.namespace:
            there[_type(disk.spec)] += 1
            there[f"GiB {_type(disk.spec)}"] += _gib(disk.spec)
    used: Counter[str] = Counter()
    for kind, amount in (declared & there).items():
        size_of = kind.removeprefix("GiB ")
        used["compute.disk.count" if size_of == kind else f"compute.disk.size.{size_of}"] += amount
    return used


def _nodeset(group: Any) -> str:
    return group.spec.template.metadata.labels.get(NODESET_NAME_LABEL, "")


def _group_use(group: Any) -> Counter[str]:
    template, nodes = group.spec.template, num_nodes(group)
    used = Counter({"compute.instance.count": nodes, "compute.disk.count": nodes})
    used["vpc.allocation.count"] = ADDRESSES_PER_NODE * nodes
    used[f"compute.disk.size.{_type(template.boot_disk)}"] = nodes * _gib(template.boot_disk)
    preset = find_preset(template.resources.platform, template.resources.preset)
    if preset is not None and not preset.gpus:
        used["compute.instance.non-gpu.vcpu"] = nodes * preset.vcpus
    elif preset is not None and not is_reserved(template):
        used[gpu_quota(template.resources.platform)] = nodes * preset.gpus
    return used


def is_reserved(template: Any) -> bool:
    """Whether a node template takes its GPUs from capacity blocks."""
    return template.HasField("reservation_policy") and bool(
        template.reservation_policy.reservation_ids
    )


def num_nodes(group: Any) -> int:
    """Nodes that a node group has or is about to have."""
    return int(group.status.target_node_count)


def _type(disk: Any) -> str:
    names = disk.DESCRIPTOR.fields_by_name["type"].enum_type.values_by_number
    return names[disk.type].name.lower().replace("_", "-")


def _gib(disk: Any) -> int:
    unit = disk.WhichOneof("size")
    return round(getattr(disk, unit) * _UNITS[unit]) if unit else 0
