"""helm-nodesets: worker nodes as NodeSets, with the PriorityClasses they use."""

from __future__ import annotations

from typing import Any

from infra.local.kube.charts.release import MADE_FOLDERS, Object, Release, filled, resources
from infra.local.kube.charts.values import ChartError

API_VERSION = "slurm.nebius.ai/v1alpha1"
_FOLDERS = "make-folders-"
"""Init container that makes the folders of the volume that its name ends with."""


def render(release: Release, values: dict[str, Any]) -> list[Object]:
    """PriorityClasses, then one NodeSet per item of `nodesets`."""
    names = [nodeset["name"] for nodeset in values["nodesets"]]
    for name in names:
        if names.count(name) > 1:
            raise ChartError(f"nodesets: '{name}' is declared twice; names are unique")
    classes = [_priority_class(release, item) for item in values["priorityClasses"]]
    return classes + [
        _nodeset(release, nodeset, values["images"], index)
        for index, nodeset in enumerate(values["nodesets"])
    ]


def _priority_class(release: Release, item: dict[str, Any]) -> Object:
    metadata = filled({"annotations": item["annotations"]})
    metadata["labels"] = {**release.labels, **item["labels"]}
    return release.cluster_object(
        "scheduling.k8s.io/v1",
        "PriorityClass",
        item["name"],
        metadata=metadata,
        description=item["description"],
        value=item["value"],
        globalDefault=item["globalDefault"],
        preemptionPolicy=item["preemptionPolicy"],
    )


def _nodeset(release: Release, item: dict[str, Any], images: dict[str, Any], index: int) -> Object:
    if item["nodeSelector"] and item["affinity"]:
        raise ChartError(f"nodesets[{index}]: nodeSelector and affinity exclude each other")
    spec = filled(
        {
            # Trap of the real template (`default 1`): zero replicas become one.
            "replicas": item["replicas"] or 1,
            "maxUnavailable": item["maxUnavailable"],
            "ephemeralNodes": item["ephemeralNodes"] or None,
            "initialNumberEphemeralNodes": item.get("initialNumberEphemeralNodes"),
            "ephemeralTopologyWaitTimeout": item.get("ephemeralTopologyWaitTimeout"),
            "nodeConfig": filled(item.get("nodeConfig", {})),
            "configMapRefSupervisord": item["configMapRefSupervisord"],
            "configMapRefSshd": item["configMapRefSshd"],
            "enableHostUserNamespace": item["enableHostUserNamespace"] or None,
            "priorityClass": item["priorityClass"],
            "customInitContainers": item["customInitContainers"],
            "nodeSelector": item["nodeSelector"],
            "affinity": item["affinity"],
            "tolerations": item["tolerations"],
            "workerAnnotations": item["workerAnnotations"],
        }
    )
    if "gpu" in item:
        spec["gpu"] = item["gpu"]
    spec["slurmd"] = _slurmd(
        item["slurmd"], images["slurmd"], bool(item.get("gpu", {}).get("enabled")), index
    )
    spec["munge"] = {
        "image": item["munge"].get("image", images["munge"]),
        "resources": resources(item["munge"]["resources"]),
        "security": item["munge"]["security"],
    }
    if item.get("sssd", {}).get("enabled"):
        names = ("sssdConfSecretRefName", "sssdLdapCAConfigMapRefName")
        spec["sssd"] = {
            "image": images["sssd"],
            "resources": resources(item["sssd"]["resources"]),
            "security": item["sssd"]["security"],
        }
        spec |= filled({name: item.get(name) for name in names})
    folders = _folders(item["customInitContainers"])
    metadata = filled({"annotations": {**item["annotations"], **folders}})
    metadata["labels"] = {**release.labels, **item["labels"]}
    return release.object(API_VERSION, "NodeSet", item["name"], metadata=metadata, spec=spec)


def _folders(containers: list[dict[str, Any]]) -> dict[str, str]:
    """What the init containers that make folders would make, for a runtime without containers."""
    made = [
        f"{container['name'].removeprefix(_FOLDERS)}={':'.join(container['command'][4:])}"
        for container in containers
        if container["name"].startswith(_FOLDERS)
    ]
    return {MADE_FOLDERS: ",".join(made)} if made else {}


def _slurmd(slurmd: dict[str, Any], image: dict[str, Any], gpu: bool, index: int) -> dict[str, Any]:
    amounts = dict(slurmd["resources"])
    num_gpus = amounts.pop("gpu", None)
    limits = resources(amounts)
    if gpu:
        if not num_gpus:
            raise ChartError(
                f"nodesets[{index}].slurmd.resources.gpu: is required when gpu.enabled is true"
            )
        limits["nvidia.com/gpu"] = str(num_gpus)
    volumes = slurmd["volumes"]
    optional = ("jailSubMounts", "customVolumeMounts", "sharedMemorySize")
    return {
        "image": slurmd.get("image", image),
        **filled({"customEnv": slurmd["customEnv"]}),
        "port": slurmd["port"],
        "resources": limits,
        "volumes": {
            "spool": volumes["spool"],
            "jail": volumes["jail"],
            **filled({key: volumes.get(key) for key in optional}),
            **filled(
                {
                    "persistentVolumeClaimRetentionPolicy": volumes.get(
                        "persistentVolumeClaimRetentionPolicy"
                    )
                }
            ),
        },
        "security": slurmd["security"],
    }
