"""What a fresh emulator holds: tenants, projects, networks, platforms, quotas, capacity.

Platforms and fabrics come from stacks/catalog.py. Quota limits are ours: generous, and finite, so
that a mistake of a factor of ten is refused. An emulator for previews knows no project's region,
limits or capacity, and says so: it holds every project that it is asked of.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import json_format

from infra.local.nebius_api.states import set_state
from infra.local.nebius_api.store import Store
from infra.local.nebius_api.usage import GIB, gpu_quota
from infra.local.state import TOKEN
from infra.nebius.schema import Schema
from stacks.catalog import FABRICS, PLATFORMS

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


def seed(schema: Schema, store: Store, *, anywhere: bool = False) -> None:
    """Fills an empty store; an old one is left as it is."""
    if store.resources:
        return
    store.put_token(TOKEN, _ADMIN)
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
