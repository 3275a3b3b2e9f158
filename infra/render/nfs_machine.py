"""cloud-init of the NFS server's machine: its volume, its export, who may enter. Pure.

Source of the steps: nebius-solutions-library modules/nfs-server (commit 7b687e5, 2026-04-21), which
makes an array of a single disk too and formats whatever it finds; here one disk stays one disk, and
a disk that holds something is never formatted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from infra.render.cloud_init import every_boot_script, user_data, user_entry
from infra.render.machine import DEVICE
from stacks.spec import StackSpec

IMAGE_FAMILY: Final = "ubuntu22.04-driverless"
"""Image of the machine (the same module)."""
EXPORT: Final = "/srv/nfs"
"""Path that clients mount; beside /home, where the machine's own users are."""
# `mp`: not exported while nothing is mounted there, or files would go to the boot disk.
_OPTIONS: Final = "rw,async,no_subtree_check,no_root_squash,mp"


def nfs_user_data(spec: StackSpec, cidrs: Sequence[str]) -> str:
    """User data of a server that exports to the given IPv4 blocks."""
    assert spec.nfs is not None, "the machine is made only where nfs is declared"
    document: dict[str, Any] = {}
    if spec.nodes.ssh_users:
        document["users"] = ["default", *map(user_entry, spec.nodes.ssh_users)]
    document["package_update"] = True
    document["packages"] = ["nfs-kernel-server", "mdadm"]
    clients = " ".join(f"{cidr}({_OPTIONS})" for cidr in cidrs)
    document["write_files"] = [
        {"path": "/etc/exports", "permissions": "0644", "content": f"{EXPORT} {clients}\n"},
        every_boot_script("30-nfs-volume", volume_script(spec.nfs.data_disks.count)),
    ]
    return user_data(document)


def volume_script(num_disks: int) -> str:
    """Mounts the volume of the data disks, made anew only of disks that are empty."""
    disks = " ".join(
        f"/dev/disk/by-id/virtio-{DEVICE.format(index=index)}" for index in range(num_disks)
    )
    return _HEAD.format(disks=disks, path=EXPORT) + (_ARRAY if num_disks > 1 else _DISK) + _TAIL


_HEAD: Final = """#!/bin/bash
set -euo pipefail
path={path}
disks=({disks})
refuse() {{
  echo "nfs: $1" >&2
  exit 1
}}
udevadm settle
for disk in "${{disks[@]}}"; do
  [ -b "$disk" ] || refuse "$disk is not attached"
done
mkdir -p "$path"
if mountpoint -q "$path"; then exit 0; fi
"""
_DISK: Final = """volume=${disks[0]}
found=$(wipefs --noheadings --output TYPE "$volume")
[ "$found" != linux_raid_member ] || refuse "$volume is part of an array of several disks"
"""
# A member is never made part of another array: the files on it would be lost.
_ARRAY: Final = """volume=/dev/md/nfs
members=0
for disk in "${disks[@]}"; do
  case $(wipefs --noheadings --output TYPE "$disk") in
    "") ;;
    linux_raid_member) members=$((members + 1)) ;;
    *) refuse "$disk holds something else than part of an array" ;;
  esac
done
if [ "$members" -eq 0 ]; then
  mdadm --create "$volume" --homehost=any --run --level=0 \\
    --raid-devices="${#disks[@]}" "${disks[@]}"
elif [ "$members" -eq "${#disks[@]}" ]; then
  # At boot the system assembles what it knows, under a name of its own.
  known=$(lsblk --noheadings --raw --paths --output NAME,TYPE "${disks[0]}" |
    awk '$2 == "raid0" {print $1; exit}')
  if [ -n "$known" ]; then
    volume=$known
  else
    mdadm --assemble "$volume" "${disks[@]}"
  fi
else
  refuse "$members of ${#disks[@]} disks belong to an array; declare as many as it was made of"
fi
found=$(wipefs --noheadings --output TYPE "$volume")
"""
_TAIL: Final = """case $found in
  "") mkfs.ext4 -F "$volume" ;;
  ext4) ;;
  *) refuse "$volume holds $found, not ext4" ;;
esac
mount -o noatime "$volume" "$path"
# A disk that was grown in the cloud; otherwise it changes nothing.
resize2fs "$volume"
exportfs -ra
"""
