"""What every pre-flight question uses: its findings, the cloud within a time limit, what is ours.

A second `up` must not count its own nodes against the quota again.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from infra.providers.nebius import adoption
from infra.providers.nebius.api import Api
from infra.providers.nebius.resource_type import enum_name, size_bytes
from infra.providers.nebius.schema import Schema
from infra.providers.nebius.sdk import shared_sdk
from infra.providers.soperator.teardown import CLAIM_LABEL
from infra.render.names import NODESET_NAME_LABEL
from stacks.catalog import find_preset
from stacks.rules.quotas import ADDRESSES_PER_NODE, gpu_quota
from stacks.spec import StackSpec


class Outcome(StrEnum):
    """NOT CHECKED is no answer: the API was away, slow, or does not tell."""

    PASS = "PASS"  # noqa: S105
    FAIL = "FAIL"
    NOT_CHECKED = "NOT CHECKED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One answer."""

    check: str
    """What was asked, such as `quotas`; of an answer that does not say, the question's own name."""
    outcome: Outcome
    seen: str
    fix: str | None = None
    certain: bool = False
    """Whether an `up` is sure to fail: the program refuses before it declares anything."""

    def __str__(self) -> str:
        return f"{self.check}: {self.seen}" + (f"; {self.fix}" if self.fix else "")


def passed(seen: str, *, check: str = "") -> Finding:
    """An answer without a problem."""
    return Finding(check=check, outcome=Outcome.PASS, seen=seen)


def failed(seen: str, fix: str, *, certain: bool = False, check: str = "") -> Finding:
    """A problem and what to do about it."""
    return Finding(check=check, outcome=Outcome.FAIL, seen=seen, fix=fix, certain=certain)


def not_checked(reason: str) -> Finding:
    """No answer, with the reason."""
    return Finding(check="", outcome=Outcome.NOT_CHECKED, seen=reason)


class Cloud:
    """The API that the environment names, for the length of one pre-flight check."""

    def __init__(self, *, within_s: float) -> None:
        self.schema = Schema()
        self.given_up = threading.Event()
        """Set when the time is over: nothing is asked again."""
        self._api = Api(self.schema, self.given_up, call_s=within_s, back_off_s=(0.2,))
        self._lists: dict[tuple[str, str], list[Any]] = {}
        self._lock = threading.Lock()
        self._locks: dict[tuple[str, str], threading.Lock] = defaultdict(threading.Lock)

    @property
    def target(self) -> str | None:
        """The emulator's address, or None for the real cloud."""
        return self._api.target

    def get(self, service: str, method: str = "Get", **fields: Any) -> Any:
        """The answer of one call, such as `iam.v1.ProfileService` Get."""
        with self._lock:
            shared_sdk()
        found = self.schema.services[f"nebius.{service}"]
        return self._api.call(found, method, self._api.request(found, method, **fields))

    def list(self, service: str, parent_id: str) -> list[Any]:
        """Every resource of a service under one parent; asked once."""
        key = (service, parent_id)
        with self._lock:
            shared_sdk()  # made once, by whichever question comes first
            lock = self._locks[key]
        with lock:
            if key not in self._lists:
                found = self.schema.services[f"nebius.{service}"]
                self._lists[key] = [*self._api.pages(found, parent_id=parent_id)]
            return self._lists[key]


KINDS: Final = {
    "cluster": "mk8s.v1.ClusterService", "filesystem": "compute.v1.FilesystemService",
    "GPU cluster": "compute.v1.GpuClusterService", "address": "vpc.v1.AllocationService",
    "network": "vpc.v1.NetworkService", "subnet": "vpc.v1.SubnetService",
    "machine": "compute.v1.InstanceService", "disk": "compute.v1.DiskService",
    "bucket": "storage.v1.BucketService", "service account": "iam.v1.ServiceAccountService",
    "group": "iam.v1.GroupService", "registry": "registry.v1.RegistryService"
}  # fmt: skip
"""What a stack makes under its project -> the service that lists it."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The stack and the Pulumi project whose labels count as ours."""

    stack: str
    project: str

    def owns(self, resource: Any) -> bool:
        """Whether the resource carries our labels."""
        return adoption.is_of(dict(resource.metadata.labels), self.stack, self.project)


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
    elif preset is not None and not template.reservation_policy.reservation_ids:
        used[gpu_quota(template.resources.platform)] = nodes * preset.gpus
    return used


def num_nodes(group: Any) -> int:
    """Nodes that a node group has or is about to have."""
    return int(group.status.target_node_count)


def _type(disk: Any) -> str:
    return enum_name(disk, "type")


def _gib(disk: Any) -> int:
    return round(size_bytes(disk) / (1 << 30))
