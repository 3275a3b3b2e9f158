"""Values of helm-slurm-cluster-storage: one local volume per filesystem. Pure."""

from __future__ import annotations

from typing import Any

from infra.render import names
from stacks.spec import StackSpec
from stacks.storage_spec import FilesystemSpec, SubmountSpec


def storage_values(spec: StackSpec) -> dict[str, Any]:
    """Volumes of jail, spool, submounts and accounting, and the nodes that mount them."""
    storage = spec.storage
    volume: dict[str, Any] = {
        "jail": {
            "size": _claim_size(storage.jail),
            "type": "filestore",
            "filestoreDeviceName": names.JAIL,
        },
        "controllerSpool": {
            "size": _claim_size(storage.controller_spool),
            "filestoreDeviceName": names.CONTROLLER_SPOOL,
        },
        "jailSubMounts": [
            {
                "name": submount.name,
                "size": _claim_size(submount),
                "filestoreDeviceName": names.submount_tag(submount.name),
            }
            for submount in storage.submounts
        ],
    }
    if storage.accounting is not None:
        volume["accounting"] = {
            "enabled": True,
            "size": _claim_size(storage.accounting),
            "filestoreDeviceName": names.ACCOUNTING,
        }
    return {
        "volume": volume,
        "storage": {
            "jail": _placement(names.JAIL_LABEL, "true"),
            "controllerSpool": _placement(names.NODESET_LABEL, "controller"),
            "accounting": _placement(names.NODESET_LABEL, "accounting"),
        },
    }


def _placement(label: str, value: str) -> dict[str, Any]:
    # An empty matchExpressions list, the chart's default, never finds a node.
    return {
        "matchExpressions": [{"key": label, "operator": "In", "values": [value]}],
        "tolerations": [{"operator": "Exists"}],
    }


def _claim_size(filesystem: FilesystemSpec | SubmountSpec) -> str:
    """Size of the claim; that of an existing filesystem is not checked against its own."""
    return f"{filesystem.size_gib or 1}Gi"
