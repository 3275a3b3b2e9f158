"""helm-nodesets: worker nodes as NodeSets, with the PriorityClasses they use."""

from __future__ import annotations

from typing import Any

from infra.local.kube.charts.release import Object, Release, filled, resources
from infra.local.kube.charts.values import ChartError

API_VERSION = "slurm.nebius.ai/v1alpha1"


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
    metadata = filled({"annotations": item["annotations"]})
    metadata["labels"] = {**release.labels, **item["labels"]}
    return release.object(API_VERSION, "NodeSet", item["name"], metadata=metadata, spec=spec)


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
