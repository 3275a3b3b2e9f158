"""What a resource's status says in each phase of its life: state enums by name, mirrored fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from infra.local.nebius_api import access_keys
from infra.local.nebius_api.usage import num_nodes, size_bytes
from infra.nebius.schema import Schema

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
    resource.status.aws_access_key_id = access_keys.key_id(resource.metadata.id)
    # The first version of the API has no such field: a call of its own hands the secret out.
    mode = resource.spec.DESCRIPTOR.fields_by_name.get("secret_delivery_mode")
    if mode is None:
        return
    name = mode.enum_type.values_by_number[resource.spec.secret_delivery_mode].name
    if name == "INLINE":
        resource.status.secret = access_keys.secret(resource.metadata.id)


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
