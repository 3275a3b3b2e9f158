"""A virtual machine and its disks outside the kube cluster: spec -> the API's own fields. Pure.

Ids that only exist after a create (subnet, address, disks) are passed through, known or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from stacks.node_spec import Billing, MachineSpec
from stacks.storage_spec import DiskType

# nebius.compute.v1.AttachedDiskSpec.device_id has at most 20 characters (SDK of 2026-11).
DEVICE: Final = "data-{index}"
"""Name that the machine sees a data disk by: /dev/disk/by-id/virtio-data-0."""


_TYPES: Final = {
    DiskType.NETWORK_SSD: "ssd",
    DiskType.NETWORK_SSD_NON_REPLICATED: "nrd",
    DiskType.NETWORK_SSD_IO_M3: "io-m3",
    DiskType.NETWORK_HDD: "hdd",
}


def boot_disk_name(machine: str, type_: DiskType) -> str:
    """Name of the boot disk; of another type it is another disk, made before the old one goes.

    Replaced under one name the old one would go first, which the machine that has it prevents.
    """
    return f"{machine}-boot-{_TYPES[type_]}"


def disk_spec(type_: DiskType, size_gib: int, *, image_family: str | None = None) -> dict[str, Any]:
    """The API's DiskSpec: an empty disk, or one that starts as an image of the family."""
    spec: dict[str, Any] = {"type": type_.value, "size_gibibytes": size_gib}
    if image_family is not None:
        spec["source_image_family"] = {"image_family": image_family}
    return spec


def address_spec(subnet_id: Any) -> dict[str, Any]:
    """The API's AllocationSpec of a private address that outlives the machine that has it."""
    return {"ipv4_private": {"subnet_id": subnet_id}}


def machine_spec(
    machine: MachineSpec,
    *,
    subnet_id: Any,
    allocation_id: Any,
    boot_disk_id: Any,
    data_disk_ids: Sequence[Any] = (),
    user_data: Any = None,
) -> dict[str, Any]:
    """The API's InstanceSpec with disks that live on their own."""
    interface: dict[str, Any] = {
        "name": "eth0",
        "subnet_id": subnet_id,
        "ip_address": {"allocation_id": allocation_id},
    }
    if machine.public_ip:
        interface["public_ip_address"] = {}
    spec: dict[str, Any] = {
        "resources": {"platform": machine.platform, "preset": machine.preset},
        "network_interfaces": [interface],
        "boot_disk": _attached(boot_disk_id),
    }
    if data_disk_ids:
        spec["secondary_disks"] = [
            {**_attached(id_), "device_id": DEVICE.format(index=index)}
            for index, id_ in enumerate(data_disk_ids)
        ]
    if user_data is not None:
        spec["cloud_init_user_data"] = user_data
    if machine.billing is Billing.PREEMPTIBLE:
        spec["preemptible"] = {"on_preemption": "STOP"}
    return spec


def _attached(disk_id: Any) -> dict[str, Any]:
    return {"attach_mode": "READ_WRITE", "existing_disk": {"id": disk_id}}
