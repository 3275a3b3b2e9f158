"""Rules of single services that no descriptor option states: presets, GPU clusters, disk sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from infra.local.nebius_api.errors import bad_request
from infra.local.nebius_api.store import Store
from infra.local.nebius_api.usage import GIB, size_bytes
from infra.nebius.schema import Schema
from stacks.catalog import FABRICS, PLATFORMS, STRIPED_DISK_STEP_GIB, Fabric

Violation = tuple[str, str]
_STRIPED: Final = ("NETWORK_SSD_NON_REPLICATED", "NETWORK_SSD_IO_M3")


def check_rules(schema: Schema, store: Store, resource: Any) -> None:
    """Refuses what the service behind this resource would refuse."""
    rule = _RULES.get(schema.kind(resource.DESCRIPTOR))
    violations = [] if rule is None else list(rule(store, resource))
    if violations:
        raise bad_request(violations)


def _gpu_cluster(store: Store, resource: Any) -> Iterator[Violation]:
    name = resource.spec.infiniband_fabric
    fabric = FABRICS.get(name)
    region = _region(store, resource)
    if fabric is None or region not in ("", fabric.region):
        here = ", ".join(one.name for one in FABRICS.values() if region in ("", one.region))
        yield "spec.infiniband_fabric", f"no fabric {name!r} in {region} (has: {here})"


def _node_group(store: Store, resource: Any) -> Iterator[Violation]:
    template = resource.spec.template
    wrong = list(_hardware(store, resource, template.resources, "spec.template.resources"))
    if wrong:
        yield from wrong
        return
    platform = PLATFORMS[template.resources.platform]
    preset = platform.presets[template.resources.preset]
    if template.HasField("gpu_cluster") and template.gpu_cluster.id:
        if not preset.allows_gpu_cluster:
            reason = f"preset {preset.name} of {platform.name} cannot join a GPU cluster"
            yield "spec.template.gpu_cluster.id", reason
        elif (fabric := _fabric(store, template.gpu_cluster.id)).platform != platform.name:
            reason = f"{fabric.name} joins {fabric.platform}, not {platform.name}"
            yield "spec.template.gpu_cluster.id", reason
    yield from _striped("spec.template.boot_disk", template.boot_disk)


def _instance(store: Store, resource: Any) -> Iterator[Violation]:
    yield from _hardware(store, resource, resource.spec.resources, "spec.resources")


def _hardware(store: Store, resource: Any, wanted: Any, path: str) -> Iterator[Violation]:
    """A platform that the region does not have, or a preset that the platform does not have."""
    platform = PLATFORMS.get(wanted.platform)
    region = _region(store, resource)
    if platform is None or region not in ("", *platform.regions):
        yield f"{path}.platform", f"no platform {wanted.platform!r} in {region}"
    elif wanted.preset not in platform.presets:
        known = ", ".join(platform.presets)
        reason = f"{wanted.preset!r} is no preset of {platform.name} (has: {known})"
        yield f"{path}.preset", reason


def _disk(store: Store, resource: Any) -> Iterator[Violation]:
    yield from _striped("spec", resource.spec)


def _striped(path: str, disk: Any) -> Iterator[Violation]:
    """Disk types that are made of 93 GiB stripes."""
    type_ = disk.DESCRIPTOR.fields_by_name["type"].enum_type.values_by_number[disk.type].name
    if type_ in _STRIPED and size_bytes(disk) % (STRIPED_DISK_STEP_GIB * GIB):
        size = size_bytes(disk) / GIB
        yield path, f"{size:g} GiB of {type_} is no multiple of {STRIPED_DISK_STEP_GIB} GiB"


def _region(store: Store, resource: Any) -> str:
    """Where the resource's project is; empty where the emulator takes any region."""
    project = store.resources.get(store.project_of(resource.metadata.parent_id))
    return project.spec.region if project is not None else ""


def _fabric(store: Store, gpu_cluster_id: str) -> Fabric:
    """The fabric of a GPU cluster whose reference was checked before."""
    return FABRICS[store.resources[gpu_cluster_id].spec.infiniband_fabric]


_RULES: Final[Mapping[str, Callable[[Store, Any], Iterator[Violation]]]] = {
    "computedisk": _disk,
    "computeinstance": _instance,
    "computegpucluster": _gpu_cluster,
    "mk8snodegroup": _node_group,
}
