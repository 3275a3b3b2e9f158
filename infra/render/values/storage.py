"""Values of the charts that store: helm-slurm-cluster-storage and helm-nfs-server 1.2.0. Pure.

One local volume a filesystem; `/home` of login and worker nodes from a server in the cluster, by
values of nebius/soperator helm/nfs-server/values.yaml and of the recipe, read 2026-11-21.
"""

from __future__ import annotations

from typing import Any, Final

from infra.render import names
from infra.render.values.pods import preset_of, requests_and_limits
from stacks.catalog import GIB, Amounts, system_amounts
from stacks.spec import StackSpec
from stacks.spec.cluster import HOME

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


NFS_CLASS: Final = "nfs"
HOME_CLAIM: Final = "home-dir"
"""Claim, volume and volume source of `/home`, as the recipe calls them."""
_SHARE: Final = "rw,fsid=0,async,no_subtree_check,no_auth_nlm,insecure,no_root_squash"
_DISK_CLASS: Final = "compute-csi-network-ssd-ext4"
# Beside other pods of a system node; a node of its own is given to it whole.
_SHARED_NODE: Final = Amounts(cpu_m=1000, memory_mib=2 * GIB, ephemeral_mib=0)


def nfs_server_values(spec: StackSpec) -> dict[str, Any]:
    """One server, on the node group of `nodes.nfs` where there is one, else on system nodes."""
    home, group = spec.soperator.nfs_home, spec.nodes.nfs
    assert home is not None, "the chart is listed only where nfs_home is declared"
    role = "system" if group is None else "nfs"
    amounts = (
        _SHARED_NODE
        if group is None
        else system_amounts(preset_of(group), group.boot_disk.size_gib)
    )
    taint = {"key": names.NODESET_LABEL, "value": role, "effect": "NoSchedule"}
    return {
        "nameOverride": "nfs-server",
        "nfs": {"sharedDirectory": "/exported", "shareOptions": _SHARE, "threads": home.threads},
        "storage": {"storageClassName": _DISK_CLASS, "size": f"{home.size_gib}Gi"},
        "storageClass": {"name": NFS_CLASS},
        "resources": requests_and_limits(amounts),
        "nodeSelector": {names.NODESET_LABEL: role},
        "tolerations": [] if group is None else [{**taint, "operator": "Equal"}],
    }


def home_source(spec: StackSpec) -> list[dict[str, Any]]:
    """Volume source of `/home`, whose claim the chart of the cluster makes; none without NFS."""
    home = spec.soperator.nfs_home
    if home is None:
        return []
    return [
        {
            "name": HOME_CLAIM,
            "createPVC": True,
            "storageClassName": NFS_CLASS,
            # Neither the server nor the driver holds a claim to its size.
            "size": f"{home.size_gib}Gi",
            "persistentVolumeClaim": {"claimName": HOME_CLAIM, "readOnly": False},
        }
    ]


def home_on_login(spec: StackSpec) -> list[dict[str, Any]]:
    """The mount of `/home` in login pods."""
    if spec.soperator.nfs_home is None:
        return []
    return [{"name": HOME_CLAIM, "mountPath": HOME, "volumeSourceName": HOME_CLAIM}]


def home_on_worker(spec: StackSpec) -> list[dict[str, Any]]:
    """The mount of `/home` in worker pods."""
    if spec.soperator.nfs_home is None:
        return []
    claim = {"persistentVolumeClaim": {"claimName": HOME_CLAIM, "readOnly": False}}
    return [{"name": HOME_CLAIM, "mountPath": HOME, "volumeSource": claim}]
