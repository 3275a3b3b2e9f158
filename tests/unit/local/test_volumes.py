"""From a claim to a folder: every link of the chain can be missing, and the message names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra.local.reconcile.snapshot import (
    FILESYSTEMS,
    Places,
    Snapshot,
    UnboundError,
    own_source,
    resolve,
)

PLACES = Places(filesystems=Path("/fs"), pods=Path("/pods"))
SOURCE = {"persistentVolumeClaim": {"claimName": "jail-pvc"}}


def claim(**spec: Any) -> dict[str, Any]:
    """A claim for the jail."""
    wanted = {"storage": "10Gi"}
    return {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "jail-pvc", "namespace": "soperator"},
        "spec": {
            "storageClassName": "slurm-local-pv",
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": wanted},
            **spec,
        },
    }


def volume() -> dict[str, Any]:
    """The volume that names the claim."""
    return {
        "kind": "PersistentVolume",
        "metadata": {"name": "jail-pv", "annotations": {"local.soperator/mount-tag": "jail"}},
        "spec": {
            "storageClassName": "slurm-local-pv",
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "10Gi"},
            "claimRef": {"namespace": "soperator", "name": "jail-pvc"},
        },
    }


def node(filesystems: str = "data=fs-1,jail=fs-2") -> dict[str, Any]:
    """A node with these filesystems attached."""
    return {"metadata": {"name": "n", "annotations": {FILESYSTEMS: filesystems}}}


def found(
    source: dict[str, Any], *objects: dict[str, Any], on: dict[str, Any] | None = None
) -> Any:
    """The volume behind a source of the pod worker-0."""
    return resolve(
        source,
        "jail",
        pod="worker-0",
        namespace="soperator",
        node=on or node(),
        snapshot=Snapshot.of(objects),
        places=PLACES,
    )


def test_a_bound_claim_is_the_folder_of_the_attached_filesystem() -> None:
    assert found(SOURCE, claim(), volume()).folder == Path("/fs/fs-2")


def test_a_missing_claim_is_named() -> None:
    with pytest.raises(UnboundError, match='persistentvolumeclaim "jail-pvc" not found'):
        found(SOURCE, volume())


@pytest.mark.parametrize(
    "spec",
    [
        {"storageClassName": "other"},
        {"accessModes": ["ReadWriteOncePod"]},
        {"resources": {"requests": {"storage": "11Gi"}}},
    ],
)
def test_a_claim_that_its_volume_does_not_fit_stays_unbound(spec: dict[str, Any]) -> None:
    with pytest.raises(
        UnboundError, match=r"unbound immediate PersistentVolumeClaims \(jail-pvc\)"
    ):
        found(SOURCE, claim(**spec), volume())


def test_a_filesystem_that_the_node_lacks_is_named_with_those_it_has() -> None:
    with pytest.raises(UnboundError, match=r"mount tag 'jail' \(has: data\)"):
        found(SOURCE, claim(), volume(), on=node("data=fs-1"))


def test_memory_is_a_tmpfs_of_its_size() -> None:
    source = {"emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}
    assert found(source).tmpfs_bytes == 2 * 2**30


def test_a_node_local_disk_belongs_to_its_pod() -> None:
    assert found({"ephemeral": {}}).folder == Path("/pods/worker-0/volumes/jail")


def test_a_missing_configmap_is_named_unless_it_is_optional() -> None:
    with pytest.raises(UnboundError, match='configmap "scripts" not found'):
        found({"configMap": {"name": "scripts"}})
    assert found({"configMap": {"name": "scripts", "optional": True}}).files == ()


def test_a_configmap_becomes_files_with_its_mode() -> None:
    scripts = {
        "kind": "ConfigMap",
        "metadata": {"name": "scripts", "namespace": "soperator"},
        "data": {"prolog.sh": "true\n"},
    }
    made = found({"configMap": {"name": "scripts", "defaultMode": 0o755}}, scripts)
    assert made.files == (("prolog.sh", b"true\n"),)
    assert made.file_mode == 0o755


def test_a_host_path_is_refused() -> None:
    with pytest.raises(UnboundError, match="hostPath cannot be mounted on the local stack"):
        found({"hostPath": {"path": "/etc"}})


def test_an_export_of_an_nfs_server_is_one_folder_for_every_pod() -> None:
    source = {"nfs": {"server": "10.0.0.9", "path": "/srv/nfs"}}
    assert found(source).folder == Path("/fs/nfs-10.0.0.9-srv-nfs")


def test_a_disk_of_a_worker_has_the_folders_that_its_init_container_makes() -> None:
    made = {"scratch": ["tmp", "data/preprocessed"], "other": ["x"]}
    containers = [
        {"name": "ensure-scratch-ext4", "command": ["sh"]},
        *(
            {"name": f"make-folders-{disk}", "command": ["sh", "-c", "mkdir", "sh", *folders]}
            for disk, folders in made.items()
        ),
    ]
    nodeset = {"metadata": {"name": "worker"}, "spec": {"customInitContainers": containers}}
    source = own_source("scratch", nodeset)
    assert found(source).made_folders == ("tmp", "data/preprocessed")
    assert found(own_source("plain", nodeset)).made_folders == ()
