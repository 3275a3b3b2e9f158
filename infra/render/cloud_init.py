"""cloud-init of nodes: users of the machine, driver options, local NVMe drives as one array. Pure.

Source of the steps: nebius-solutions-library soperator/modules/k8s/templates/cloud_init.yaml.tftpl
(7b687e5, 2026-04-21) and pull request 1072 (old signatures are wiped before an array is made).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from stacks.node_spec import (
    LocalNvmeSpec,
    NodeGroupSpec,
    NodeUserSpec,
    VolumeFilesystem,
    WorkerSpec,
)

_HEADER: Final = "#cloud-config\n"
_MODPROBE: Final = "/etc/modprobe.d/nvidia_config.conf"
# Every boot, because drives of the machine are empty after a stop and drivers load anew.
_EVERY_BOOT: Final = "/var/lib/cloud/scripts/per-boot"
# Options that the driver shows under another name.
# Source: developer.nvidia.com/nvidia-development-tools-solutions-err_nvgpuctrperm, 2026-11.
_SHOWN_AS: Final = {"RestrictProfilingToAdminUsers": "RmProfilingAdminOnly"}
# The recipe expects 2 to 8 drives; an array of another number would be a machine of another kind.
_NVME_MIN: Final = 2
_NVME_MAX: Final = 8


def cloud_init(group: NodeGroupSpec, users: Sequence[NodeUserSpec]) -> str | None:
    """User data of the group's nodes, or None where they need none."""
    document: dict[str, Any] = {}
    files: list[dict[str, str]] = []
    if users:
        document["users"] = ["default", *map(user_entry, users)]
    if isinstance(group, WorkerSpec):
        if group.nvidia_config_lines:
            files += _driver_files(group.nvidia_config_lines)
        if group.local_nvme is not None:
            document["packages"] = ["mdadm", "nvme-cli"]
            files.append(every_boot_script("20-local-nvme", _nvme_script(group.local_nvme)))
    if files:
        document["write_files"] = files
    return user_data(document) if document else None


def user_data(document: Mapping[str, Any]) -> str:
    """The document as cloud-init takes it."""
    # JSON is YAML in which no text can be taken for anything else.
    return _HEADER + json.dumps(document, indent=1) + "\n"


def user_entry(user: NodeUserSpec) -> dict[str, Any]:
    """One user in a document, with sudo that asks for no password."""
    return {
        "name": user.name,
        "sudo": "ALL=(ALL) NOPASSWD:ALL",
        "shell": "/bin/bash",
        "ssh_authorized_keys": list(user.ssh_public_keys),
    }


def every_boot_script(name: str, text: str) -> dict[str, str]:
    """A file of `write_files` that runs at every boot."""
    return {"path": f"{_EVERY_BOOT}/{name}", "permissions": "0755", "content": text}


def _driver_files(lines: Sequence[str]) -> list[dict[str, str]]:
    return [
        {"path": _MODPROBE, "permissions": "0644", "content": "\n".join(lines) + "\n"},
        every_boot_script("10-nvidia-config", _driver_check(lines)),
    ]


def _driver_check(lines: Sequence[str]) -> str:
    """Restarts the node once where the loaded driver has other options than those declared."""
    checks = "\n".join(
        f"check {shlex.quote(name)} {shlex.quote(value)}" for name, value in driver_options(lines)
    )
    return f"""#!/bin/sh
set -eu
restarted=/var/lib/nvidia-config-restarted
params=/proc/driver/nvidia/params
[ -r "$params" ] || exit 0
check() {{
  grep -q "^$1: " "$params" || return 0
  shown=$(sed -n "s/^$1: //p" "$params" | tr -d '"')
  [ "$shown" = "$2" ] && return 0
  if [ -e "$restarted" ]; then
    echo "nvidia: $1 is '$shown' after a restart, not '$2'; see {_MODPROBE}" >&2
    exit 1
  fi
  touch "$restarted"
  update-initramfs -u
  reboot
  exit 0
}}
{checks}
rm -f "$restarted"
"""


def driver_options(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Name and value of each option as the driver shows it: `NVreg_X=1` is `X: 1` there."""
    words = (word for line in lines for word in line.split() if word.startswith("NVreg_"))
    pairs = (word.removeprefix("NVreg_").split("=", 1) for word in words if "=" in word)
    return [(_SHOWN_AS.get(name, name), value.strip('"')) for name, value in pairs]


def _nvme_script(nvme: LocalNvmeSpec) -> str:
    force = "-f" if nvme.filesystem is VolumeFilesystem.XFS else "-F"
    return f"""#!/bin/bash
set -euo pipefail
path={shlex.quote(nvme.mount_path)}
type={nvme.filesystem}
mkdir -p "$path"
mountpoint -q "$path" && exit 0
mapfile -t drives < <(lsblk -dpno NAME,TYPE | awk '$2 == "disk" && $1 ~ /nvme/ {{print $1}}')
count=${{#drives[@]}}
if [ "$count" -lt {_NVME_MIN} ] || [ "$count" -gt {_NVME_MAX} ]; then
  echo "local NVMe: $count drives, not {_NVME_MIN} to {_NVME_MAX}: ${{drives[*]:-none}}" >&2
  exit 1
fi
# Drives that another node used before carry its array and its filesystem.
mdadm --stop --scan || true
for drive in "${{drives[@]}}"; do
  mdadm --zero-superblock --force "$drive" || true
  wipefs --all "$drive"
done
mdadm --create /dev/md0 --run --level=0 --raid-devices="$count" "${{drives[@]}}"
mkfs.$type {force} /dev/md0
sed -i "\\# $path #d" /etc/fstab
echo "UUID=$(blkid -s UUID -o value /dev/md0) $path $type defaults,nofail 0 2" >> /etc/fstab
mount "$path"
# Sticky: else users remove and replace each other's files, and root's.
chmod 1777 "$path"
"""
