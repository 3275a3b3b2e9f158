"""Chart values as a program gives them: two workers with GPUs, three filesystems, accounting."""

from __future__ import annotations

from typing import Any

from infra.local.kube.values import Object, Release
from infra.local.plugins.kubernetes_objects import render

PLACE = {
    "matchExpressions": [{"key": "slurm.nebius.ai/jail", "operator": "In", "values": ["true"]}],
    "tolerations": [{"operator": "Exists"}],
}
STORAGE: dict[str, Any] = {
    "volume": {
        "jail": {"size": "256Gi"},
        "controllerSpool": {"size": "128Gi"},
        "accounting": {"enabled": True, "size": "128Gi"},
        "jailSubMounts": [{"name": "data", "size": "256Gi", "filestoreDeviceName": "data"}],
    },
    "storage": {"jail": PLACE, "controllerSpool": PLACE, "accounting": PLACE},
}
CLUSTER: dict[str, Any] = {
    "clusterName": "soperator",
    "k8sNodeFilters": [
        {"name": "system", "nodeSelector": {"slurm.nebius.ai/nodeset": "system"}},
        {
            "name": "login",
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": PLACE["matchExpressions"]}]
                    }
                }
            },
            "tolerations": PLACE["tolerations"],
        },
    ],
    "slurmConfig": {"topologyPlugin": "", "topologyParam": ""},
    "partitionConfiguration": {
        "configType": "structured",
        "partitions": [
            {"name": "main", "isAll": True, "config": "Default=YES"},
            {"name": "hidden", "nodeSetRefs": ["worker"], "config": "Hidden=YES"},
        ],
    },
    "volumeSources": [
        {"name": name, "persistentVolumeClaim": {"claimName": f"{name}-pvc", "readOnly": False}}
        for name in ("jail", "controller-spool", "jail-submount-data")
    ],
    "secrets": {"sshdKeysName": "login-host-keys"},
    "populateJail": {"k8sNodeFilterName": "system"},
    "slurmNodes": {
        "accounting": {
            "enabled": True,
            "k8sNodeFilterName": "system",
            "mariadbOperator": {
                "enabled": True,
                "storage": {
                    "ephemeral": False,
                    "volumeClaimTemplate": {
                        "accessModes": ["ReadWriteOnce"],
                        "resources": {"requests": {"storage": "30Gi"}},
                    },
                },
            },
        },
        "controller": {
            "k8sNodeFilterName": "system",
            "volumes": {
                "spool": {"volumeSourceName": "controller-spool", "volumeClaimTemplateSpec": None}
            },
        },
        "login": {
            "size": 1,
            "k8sNodeFilterName": "login",
            "sshRootPublicKeys": ["ssh-ed25519 AAAA user"],
            "sshdServiceType": "NodePort",
            "sshdServiceNodePort": 30022,
            "volumes": {
                "jailSubMounts": [
                    {
                        "name": "data",
                        "mountPath": "/mnt/data",
                        "volumeSourceName": "jail-submount-data",
                    }
                ]
            },
        },
        "exporter": {"k8sNodeFilterName": "system"},
        "rest": {"enabled": True, "size": 1, "k8sNodeFilterName": "system"},
    },
    "sConfigController": {"node": {"k8sNodeFilterName": "system"}},
}
NODESETS: dict[str, Any] = {
    "nodesets": [
        {
            "name": "worker",
            "annotations": {"slurm.nebius.ai/parental-cluster-ref": "soperator"},
            "replicas": 2,
            "gpu": {"enabled": True, "nvidia": {"gdrCopyEnabled": True}},
            "enableHostUserNamespace": True,
            "priorityClass": "soperator-worker-high-priority",
            "nodeSelector": {"slurm.nebius.ai/nodeset-name": "worker"},
            "tolerations": [
                {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
            ],
            "nodeConfig": {
                "static": "CPUs=64 Boards=1 Gres=gpu:nvidia_l40s:2",
                "features": ["gpu"],
            },
            "munge": {"resources": {"cpu": "500m", "memory": "1Gi", "ephemeralStorage": "5Gi"}},
            "slurmd": {
                "resources": {"cpu": "60", "memory": "300Gi", "ephemeralStorage": "55Gi", "gpu": 2},
                "volumes": {
                    "spool": {"emptyDir": {}},
                    "jail": {"persistentVolumeClaim": {"claimName": "jail-pvc"}},
                    "sharedMemorySize": "64Gi",
                    "jailSubMounts": [
                        {
                            "name": "data",
                            "mountPath": "/mnt/data",
                            "volumeSource": {
                                "persistentVolumeClaim": {"claimName": "jail-submount-data-pvc"}
                            },
                        },
                        {
                            "name": "memory",
                            "mountPath": "/mnt/ram",
                            "volumeSource": {"emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}},
                        },
                    ],
                    "customVolumeMounts": [
                        {
                            "name": "slurm-scripts",
                            "mountPath": "/opt/slurm_scripts/",
                            "volumeSource": {
                                "configMap": {"name": "slurm-scripts", "defaultMode": 493}
                            },
                        }
                    ],
                },
            },
        }
    ]
}
VALUES = {
    "helm-slurm-cluster-storage": STORAGE,
    "helm-slurm-cluster": CLUSTER,
    "helm-nodesets": NODESETS,
}


def rendered(chart: str, values: dict[str, Any] | None = None) -> list[Object]:
    """The objects of a chart with the sample's values, or with others."""
    name = chart.removeprefix("helm-")
    release = Release(name=name, namespace="soperator", chart=chart, version="4.1.7")
    return render(release, VALUES[chart] if values is None else values).objects


def one(objects: list[Object], kind: str, name: str | None = None) -> Object:
    """The only object of a kind, or the one with a name."""
    found = [o for o in objects if o["kind"] == kind and name in (None, o["metadata"]["name"])]
    assert len(found) == 1, found
    return found[0]
