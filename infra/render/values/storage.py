"""Values of helm-slurm-cluster-storage: one local volume per filesystem. Pure."""

from __future__ import annotations

from typing import Any, Final

from infra.render import names
from stacks.spec import StackSpec

LOCAL_VOLUME_SIZE: Final = "1Gi"
"""Of every volume and claim, whatever the filesystem behind it holds: nothing reads it.

Kubernetes lets no claim grow whose volume it did not provision
(https://kubernetes.io/docs/concepts/storage/persistent-volumes, expanding; read 2026-11-21), so
with the declared size in it the release refused every filesystem that grew.
"""


def storage_values(spec: StackSpec) -> dict[str, Any]:
    """Volumes of jail, spool, submounts and accounting, and the nodes that mount them."""
    storage = spec.storage
    volume: dict[str, Any] = {
        "jail": {
            "size": LOCAL_VOLUME_SIZE,
            "type": "filestore",
            "filestoreDeviceName": names.JAIL,
        },
        "controllerSpool": {
            "size": LOCAL_VOLUME_SIZE,
            "filestoreDeviceName": names.CONTROLLER_SPOOL,
        },
        "jailSubMounts": [
            {
                "name": submount.name,
                "size": LOCAL_VOLUME_SIZE,
                "filestoreDeviceName": names.submount_tag(submount.name),
            }
            for submount in storage.submounts
        ],
    }
    places = {
        "jail": _placement(names.JAIL_LABEL, "true"),
        "controllerSpool": _placement(names.NODESET_LABEL, "controller"),
    }
    if storage.accounting is not None:
        volume["accounting"] = {
            "enabled": True,
            "size": LOCAL_VOLUME_SIZE,
            "filestoreDeviceName": names.ACCOUNTING,
        }
        places["accounting"] = _placement(names.NODESET_LABEL, "accounting")
    return {"volume": volume, "storage": places}


def _placement(label: str, value: str) -> dict[str, Any]:
    # An empty matchExpressions list, the chart's default, never finds a node.
    return {
        "matchExpressions": [{"key": label, "operator": "In", "values": [value]}],
        "tolerations": [{"operator": "Exists"}],
    }
