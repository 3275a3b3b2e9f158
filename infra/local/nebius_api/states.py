"""What the emulator holds: a fresh one's tenants, projects and quotas; states and what is used.

Platforms and fabrics come from stacks/catalog.py. Quota limits are ours: generous, and finite, so
that a mistake of a factor of ten is refused. An emulator for previews knows no project's region,
limits or capacity, and says so: it holds every project that it is asked of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from google.protobuf import json_format

from infra.local.nebius_api import store
from infra.local.nebius_api.errors import quota_failure
from infra.local.nebius_api.store import Store
from infra.providers.nebius.resource_type import enum_name, size_bytes
from infra.providers.nebius.schema import Schema
from stacks.catalog import FABRICS, PLATFORMS, find_preset
from stacks.rules.quotas import ADDRESSES_PER_NODE

GIB: Final = 1 << 30


def num_nodes(group: Any) -> int:
    """Nodes that a node group starts with."""
    if group.spec.WhichOneof("size") == "fixed_node_count":
        return group.spec.fixed_node_count
    return group.spec.autoscaling.min_node_count


def gpu_quota(platform: str) -> str:
    """Name of the GPU quota of a platform: `gpu-h100-sxm` -> `compute.instance.gpu.h100`."""
    return f"compute.instance.gpu.{platform.split('-')[1]}"


def _sized(what: str, spec: Any) -> Counter[str]:
    """Use of a disk or filesystem."""
    kind = enum_name(spec, "type")
    return Counter({f"{what}.count": 1, f"{what}.size.{kind}": size_bytes(spec)})


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
    "computedisk": lambda disk: _sized("compute.disk", disk.spec),
    "computefilesystem": lambda found: _sized("compute.filesystem", found.spec),
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


Phase = Literal["creating", "updating", "deleting", "ready", "error"]

_STATES: Final[Mapping[Phase, tuple[str, ...]]] = {
    "creating": ("CREATING", "PROVISIONING", "ACTIVE"),
    "updating": ("UPDATING", "READY", "RUNNING", "ACTIVE"),
    "deleting": ("DELETING", "SCHEDULED_FOR_DELETION"),
    "ready": ("READY", "RUNNING", "ACTIVE", "ALLOCATED"),
    "error": ("ERROR", "PROVISIONING", "CREATING"),
}
_NOT_LIFE: Final = ("usage_state", "suspension_state")


def set_state(schema: Schema, resource: Any, phase: Phase) -> None:
    """Fills the status as the service would in this phase."""
    field = resource.DESCRIPTOR.fields_by_name.get("status")
    if field is None or field.message_type is None:
        return
    status = resource.status
    status.SetInParent()
    for own in field.message_type.fields:
        is_state = own.enum_type is not None and own.name.endswith("state")
        if is_state and own.name not in _NOT_LIFE:
            number = _state_number(own.enum_type, phase)
            if number is not None:
                setattr(status, own.name, number)
        elif own.name == "reconciling":
            status.reconciling = phase in ("creating", "updating", "deleting")
        elif own.name == "active":
            status.active = phase != "deleting"
    _mirror_spec(resource)
    if fill := _FILLERS.get(schema.kind(resource.DESCRIPTOR)):
        fill(resource, phase)


def _state_number(enum: Any, phase: Phase) -> int | None:
    """The first value of the enum that fits the phase."""
    for wanted in _STATES[phase]:
        for value in enum.values:
            if value.name == wanted or value.name.endswith(f"_{wanted}"):
                return value.number
    return None


def _mirror_spec(resource: Any) -> None:
    """Copies scalar fields that spec and status share."""
    spec = resource.DESCRIPTOR.fields_by_name.get("spec")
    if spec is None or spec.message_type is None:
        return
    for field in resource.status.DESCRIPTOR.fields:
        own = spec.message_type.fields_by_name.get(field.name)
        if own is None or own.type != field.type or field.is_repeated:
            continue
        if own.message_type is None and own.enum_type is None:
            setattr(resource.status, field.name, getattr(resource.spec, field.name))


def _fill_size(resource: Any, phase: Phase) -> None:
    resource.status.size_bytes = size_bytes(resource.spec)
    resource.status.block_size_bytes = resource.spec.block_size_bytes or 4096


def _fill_cluster(resource: Any, phase: Phase) -> None:
    spec, status = resource.spec.control_plane, resource.status.control_plane
    status.version = f"{spec.version or '1.33'}.0-nebius-cp.1"
    status.etcd_cluster_size = spec.etcd_cluster_size or 3
    status.endpoints.private_endpoint = "https://10.0.0.1:443"


def _fill_node_group(resource: Any, phase: Phase) -> None:
    resource.status.target_node_count = num_nodes(resource)
    resource.status.version = resource.spec.version
    if phase == "ready":
        resource.status.node_count = num_nodes(resource)
        resource.status.ready_node_count = num_nodes(resource)


def _fill_allocation(resource: Any, phase: Phase) -> None:
    if phase == "ready":
        resource.status.details.allocated_cidr = "127.0.0.1/32"


def _fill_subnet(resource: Any, phase: Phase) -> None:
    if phase == "ready" and not resource.status.ipv4_private_cidrs:
        resource.status.ipv4_private_cidrs.append("10.0.0.0/16")


def _fill_bucket(resource: Any, phase: Phase) -> None:
    resource.status.domain_name = "storage.eu-north1.nebius.cloud"


def _fill_registry(resource: Any, phase: Phase) -> None:
    own = resource.metadata.id.rpartition("-")[2]
    resource.status.registry_fqdn = f"cr.eu-north1.nebius.cloud/{own}"


def _fill_access_key(resource: Any, phase: Phase) -> None:
    resource.status.aws_access_key_id = store.key_id(resource.metadata.id)
    # The first version of the API has no such field: a call of its own hands the secret out.
    mode = resource.spec.DESCRIPTOR.fields_by_name.get("secret_delivery_mode")
    if mode is None:
        return
    name = mode.enum_type.values_by_number[resource.spec.secret_delivery_mode].name
    if name == "INLINE":
        resource.status.secret = store.secret(resource.metadata.id)


_FILLERS: Final[Mapping[str, Callable[[Any, Phase], None]]] = {
    "accesskey": _fill_access_key,
    "computedisk": _fill_size,
    "computefilesystem": _fill_size,
    "mk8scluster": _fill_cluster,
    "mk8snodegroup": _fill_node_group,
    "registry": _fill_registry,
    "storagebucket": _fill_bucket,
    "vpcallocation": _fill_allocation,
    "vpcsubnet": _fill_subnet,
}


_ADMIN: Final = "useraccount-e00admin"
_REGION: Final = "eu-north1"
# (tenant, project): the one of the local stack, and the placeholders of the cloud stacks.
_PROJECTS: Final = (
    ("tenant-e00t", "project-e00p"),
    ("tenant-e00replaceme", "project-e00replaceme"),
)
_TIB: Final = 1 << 40
_LIMITS: Final = {
    "compute.disk.count": 500,
    "compute.disk.size.network-ssd": 50 * _TIB,
    "compute.disk.size.network-ssd-io-m3": 50 * _TIB,
    "compute.disk.size.network-ssd-non-replicated": 50 * _TIB,
    "compute.filesystem.count": 64,
    "compute.filesystem.size.network-ssd": 20 * _TIB,
    "compute.gpucluster.count": 8,
    "compute.instance.count": 200,
    "compute.instance.non-gpu.vcpu": 1024,
    "mk8s.cluster.count": 8,
    "vpc.allocation.count": 512,
}
_GPUS: Final = 64
"""Limit of each GPU family."""
_ADVICE: Final = {
    "available": 8,
    "limit": 16,
    "availability_level": "AVAILABILITY_LEVEL_MEDIUM",
    "data_state": "DATA_STATE_FRESH",
}
"""Instances to be had now."""


def seed(schema: Schema, store: Store, token: str, *, anywhere: bool = False) -> None:
    """Lets the owner's token in, and no earlier one; fills an empty store."""
    store.drop_tokens(_ADMIN)
    store.put_token(token, _ADMIN)
    store.commit()
    if store.resources:
        return
    for tenant, project in _PROJECTS:
        plant_project(schema, store, tenant, project, anywhere=anywhere)
    store.commit()


def plant_project(
    schema: Schema, store: Store, tenant: str, project: str, *, anywhere: bool
) -> None:
    """One tenant with one project; `anywhere`: of no region, with every platform and no limit."""
    _Planter(schema, store, "" if anywhere else _REGION).project(tenant, project)


class _Planter:
    def __init__(self, schema: Schema, store: Store, region: str) -> None:
        self._schema = schema
        self._store = store
        self._region = region

    def _put(self, type_: str, id_: str, parent_id: str, name: str, **body: Any) -> str:
        resource: Any = self._schema.message(f"nebius.{type_}")()
        metadata = resource.metadata
        metadata.id, metadata.parent_id, metadata.name = id_, parent_id, name
        metadata.resource_version = 1
        json_format.ParseDict(body, resource, descriptor_pool=self._schema.pool)
        set_state(self._schema, resource, "ready")
        self._store.put(resource)
        return id_

    def project(self, tenant: str, project: str) -> None:
        """One tenant with one project, its default network, quotas, platforms and capacity."""
        key = project.removeprefix("project-")
        self._put("iam.v2.Tenant", tenant, "", tenant.removeprefix("tenant-"))
        self._put("iam.v2.Project", project, tenant, "default", spec={"region": self._region})
        self._put("iam.v1.Group", f"group-{key}editors", tenant, "editors")
        network = f"vpcnetwork-{key}default"
        self._put("vpc.v1.Network", network, project, "default-network", spec={})
        subnet = {"network_id": network}
        self._put(
            "vpc.v1.Subnet", f"vpcsubnet-{key}default", project, "default-subnet", spec=subnet
        )
        self._platforms(project, key)
        self._quotas(project, key)
        if self._region:
            self._capacity(tenant, key)

    def _platforms(self, project: str, key: str) -> None:
        for platform in PLATFORMS.values():
            presets = [
                {
                    "name": preset.name,
                    "allow_gpu_clustering": preset.allows_gpu_cluster,
                    "resources": {
                        "vcpu_count": preset.vcpus,
                        "memory_gibibytes": preset.memory_gib,
                        "gpu_count": preset.gpus,
                    },
                }
                for preset in platform.presets.values()
            ]
            spec: dict[str, Any] = {"human_readable_name": platform.name, "presets": presets}
            if platform.gres_type is not None:
                spec["gpu_count_quota_type"] = gpu_quota(platform.name)
            if self._region in ("", *platform.regions):
                id_ = f"computeplatform-{key}{platform.name}"
                self._put("compute.v1.Platform", id_, project, platform.name, spec=spec)

    def _quotas(self, project: str, key: str) -> None:
        gpus = {gpu_quota(p.name): _GPUS for p in PLATFORMS.values() if p.gres_type is not None}
        for name, limit in (_LIMITS | gpus).items():
            id_ = f"quotaallowance-{key}{name.replace('.', '-')}"
            spec = {"limit": str(limit), "region": self._region} if self._region else {}
            unit = "byte" if limit >= GIB else "count"
            status = {"unit": unit, "service": name.split(".")[0]}
            self._put("quotas.v1.QuotaAllowance", id_, project, name, spec=spec, status=status)

    def _capacity(self, tenant: str, key: str) -> None:
        for fabric in FABRICS.values():
            if fabric.region != self._region:
                continue
            affinity = {"compute_v1": {"fabric": fabric.name, "platform": fabric.platform}}
            self._put(
                "capacity.v1.CapacityBlockGroup",
                f"capacityblockgroup-{key}{fabric.name}",
                tenant,
                fabric.name,
                status={
                    "region": self._region,
                    "current_limit": "16",
                    "resource_affinity": affinity,
                },
            )
        self._advice(tenant, key)

    def _advice(self, tenant: str, key: str) -> None:
        """What every GPU preset of the region offers, on each of its fabrics where it joins one."""
        for platform in PLATFORMS.values():
            if platform.gres_type is None or self._region not in platform.regions:
                continue
            fabrics = [f.name for f in FABRICS.values() if f.platform == platform.name]
            for preset in platform.presets.values():
                for fabric in fabrics if preset.allows_gpu_cluster else [""]:
                    name = fabric or f"{platform.name}-{preset.name}"
                    spec = {
                        "region": self._region,
                        "fabric": fabric,
                        "compute_instance": {
                            "platform": platform.name,
                            "preset": {"name": preset.name},
                        },
                    }
                    self._put(
                        "capacity.v1.ResourceAdvice",
                        f"resourceadvice-{key}{name}",
                        tenant,
                        name,
                        spec=spec,
                        status={"on_demand": _ADVICE, "preemptible": _ADVICE},
                    )
