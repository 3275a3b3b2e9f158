"""What login and worker pods share: claims of the filesystems and guards against a bare folder."""

from __future__ import annotations

from typing import Any, Final

from infra.render import names
from infra.render.nodes import EXPORT
from stacks.spec import StackSpec

NFS: Final = "nfs"
"""Volume, and volume source, of the NFS server that has a machine of its own."""
BUSYBOX: Final = "cr.eu-north1.nebius.cloud/soperator/busybox"
SCRIPTS: Final = "slurm-scripts"
"""ConfigMap of prolog, epilog and health scripts; from 5.0 on it is `<cluster>-slurm-scripts`."""


def claim(name: str) -> dict[str, Any]:
    """The claim of a filesystem as a volume."""
    return {"persistentVolumeClaim": {"claimName": f"{name}-pvc", "readOnly": False}}


def nfs_volume(address: Any) -> dict[str, Any]:
    """The export of the NFS server that has a machine of its own, as a volume."""
    return {"nfs": {"server": address, "path": EXPORT}}


def virtiofs_guards(spec: StackSpec, *, submounts: bool) -> list[dict[str, Any]]:
    """Init containers that refuse to start on a folder of the node where a mount is missing."""
    guards = [guard("ensure-jail-virtiofs", names.JAIL, "virtiofs")]
    if submounts:
        guards += [
            guard(f"ensure-{names.submount_tag(each.name)}-virtiofs", each.name, "virtiofs")
            for each in spec.storage.submounts
        ]
    return guards


def guard(name: str, volume: str, filesystem: str) -> dict[str, Any]:
    """An init container that ends well only where the volume is a mount of that filesystem."""
    return {
        "name": name,
        "image": BUSYBOX,
        "volumeMounts": [{"name": volume, "mountPath": "/volume-mount"}],
        "command": ["grep", f" /volume-mount {filesystem} ", "/proc/mounts"],
    }
