"""Values of the Soperator charts 4.1.7: spec -> dict, one function per chart. Pure.

Every non-obvious value here is a trap of a first deployment; the reason stands beside it. Source of
names and defaults: nebius/soperator helm/*/values.yaml at 4.1.7, read 2026-11-21.
"""

from __future__ import annotations

from typing import Any, Final

from infra.render import names
from stacks.catalog import PLATFORMS, Preset, find_preset
from stacks.chart_volumes import database_volume_gib
from stacks.node_spec import WorkerSpec
from stacks.slurm_spec import SshServiceType
from stacks.spec import StackSpec
from stacks.storage_spec import FilesystemSpec, SubmountSpec

_ALLOCATION_ANNOTATION: Final = "nebius.com/load-balancer-allocation-id"
# Requests of slurmd leave this share of a node to kubelet, munge and the DaemonSets. RealMemory is
# the request, and the idle-memory check drains a node whose free memory falls under it.
_MEMORY_PERCENT: Final = 87
_CPU_PERCENT: Final = 86
_MIN_SPARE_CPUS: Final = 2
_LOCAL_CLASS: Final = "slurm-local-pv"


def storage_values(spec: StackSpec) -> dict[str, Any]:
    """Values of helm-slurm-cluster-storage: one local volume per filesystem."""
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


def slurm_cluster_values(
    spec: StackSpec, *, allocation_id: Any, ssh_public_keys: Any
) -> dict[str, Any]:
    """Values of helm-slurm-cluster: controller, login, accounting, partitions."""
    roles = ["system", "controller", "login"]
    if spec.nodes.accounting is not None:
        roles.append("accounting")
    claims = [
        names.JAIL,
        names.CONTROLLER_SPOOL,
        *(names.submount_tag(submount.name) for submount in spec.storage.submounts),
    ]
    topology: dict[str, Any] = {}
    if not _has_fabric(spec):
        # topology/tree makes GPU workers wait for labels that only InfiniBand nodes get.
        topology = {"topologyPlugin": "", "topologyParam": ""}
    return {
        "clusterName": spec.cluster.slurm_cluster_name,
        "k8sNodeFilters": [
            {
                "name": role,
                "nodeSelector": {names.NODESET_LABEL: role},
                # Every role but system has its nodes for itself.
                **({} if role == "system" else {"tolerations": [_role_toleration(role)]}),
            }
            for role in roles
        ],
        "slurmConfig": topology,
        # NodeName lines are rendered in structured mode only.
        "partitionConfiguration": {
            "configType": "structured",
            "partitions": [
                {
                    "name": partition.name,
                    "config": partition.config,
                    **(
                        {"nodeSetRefs": list(partition.nodesets)}
                        if partition.nodesets
                        else {"isAll": True}
                    ),
                }
                for partition in spec.slurm.partitions
            ],
        },
        # A source named exactly `jail` is mandatory.
        "volumeSources": [
            {
                "name": name,
                "persistentVolumeClaim": {"claimName": f"{name}-pvc", "readOnly": False},
            }
            for name in claims
        ],
        "secrets": {"sshdKeysName": names.LOGIN_HOST_KEYS},
        "populateJail": {"k8sNodeFilterName": "system"},
        "sConfigController": {"node": {"k8sNodeFilterName": "system"}},
        "slurmNodes": {
            "accounting": _accounting(spec),
            "controller": {
                "k8sNodeFilterName": "controller",
                "volumes": {
                    "spool": {
                        "volumeSourceName": names.CONTROLLER_SPOOL,
                        # The chart's default template must be switched off by name.
                        "volumeClaimTemplateSpec": None,
                    }
                },
            },
            "login": _login(spec, allocation_id, ssh_public_keys),
            "exporter": {"enabled": spec.slurm.accounting, "k8sNodeFilterName": "system"},
            # REST needs accounting; soperatorchecks and reconfigure need REST.
            "rest": {"enabled": spec.slurm.accounting, "size": 1, "k8sNodeFilterName": "system"},
        },
    }


def nodesets_values(spec: StackSpec) -> dict[str, Any]:
    """Values of helm-nodesets: one NodeSet per declared worker group."""
    return {"nodesets": [_nodeset(spec, worker) for worker in spec.nodes.workers]}


def _role_toleration(role: str) -> dict[str, str]:
    """What lets the pods of a role onto its tainted nodes."""
    return {
        "key": names.NODESET_LABEL,
        "operator": "Equal",
        "value": role,
        "effect": "NoSchedule",
    }


def _placement(label: str, value: str) -> dict[str, Any]:
    # An empty matchExpressions list, the chart's default, never finds a node.
    return {
        "matchExpressions": [{"key": label, "operator": "In", "values": [value]}],
        "tolerations": [{"operator": "Exists"}],
    }


def gres(worker: WorkerSpec) -> str | None:
    """Gres of one node, such as `gpu:nvidia_l40s:2`; None without GPUs."""
    preset = _preset(worker)
    if not preset.gpus:
        return None
    type_ = PLATFORMS[worker.platform].gres_type
    return f"gpu:{type_}:{preset.gpus}" if type_ else f"gpu:{preset.gpus}"


def _accounting(spec: StackSpec) -> dict[str, Any]:
    if not spec.slurm.accounting or spec.nodes.accounting is None:
        return {"enabled": False, "k8sNodeFilterName": "system"}
    own = spec.storage.accounting
    size_gib = database_volume_gib(spec) if own is None else own.size_gib
    # The storage chart's class holds the accounting filesystem; without one the cloud's default.
    storage_class = {} if own is None else {"storageClassName": _LOCAL_CLASS}
    return {
        "enabled": True,
        "k8sNodeFilterName": "accounting",
        "mariadbOperator": {
            "enabled": True,
            "storage": {
                "ephemeral": False,
                "volumeClaimTemplate": {
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": f"{size_gib}Gi"}},
                    **storage_class,
                },
            },
        },
    }


def _login(spec: StackSpec, allocation_id: Any, ssh_public_keys: Any) -> dict[str, Any]:
    login = spec.login
    if login.service is SshServiceType.NODE_PORT:
        service = {"sshdServiceType": "NodePort", "sshdServiceNodePort": login.ssh_port}
    else:
        service = {
            "sshdServiceType": "LoadBalancer",
            "sshdServiceAnnotations": {_ALLOCATION_ANNOTATION: allocation_id},
        }
    return {
        "k8sNodeFilterName": "login",
        "size": spec.nodes.login.min_nodes,
        **service,
        "sshRootPublicKeys": ssh_public_keys,
        "volumes": {
            "jailSubMounts": [
                {
                    "name": submount.name,
                    "mountPath": submount.mount_path,
                    "volumeSourceName": names.submount_tag(submount.name),
                }
                for submount in spec.storage.submounts
            ]
        },
    }


def _nodeset(spec: StackSpec, worker: WorkerSpec) -> dict[str, Any]:
    preset = _preset(worker)
    spare_cpus = max(_MIN_SPARE_CPUS, preset.vcpus * (100 - _CPU_PERCENT) // 100)
    resources: dict[str, Any] = {
        "cpu": f"{preset.vcpus - spare_cpus}",
        "memory": f"{preset.memory_gib * _MEMORY_PERCENT // 100}Gi",
    }
    static = (
        f"CPUs={preset.vcpus} Boards=1 SocketsPerBoard={preset.sockets} "
        f"CoresPerSocket={preset.cores_per_socket} ThreadsPerCore={preset.threads_per_core}"
    )
    values: dict[str, Any] = {
        "name": worker.name,
        "annotations": {names.CLUSTER_REF: spec.cluster.slurm_cluster_name},
        "replicas": worker.min_nodes,
        # hostUsers: false on privileged workers breaks enroot.
        "enableHostUserNamespace": True,
        "priorityClass": "soperator-worker-high-priority",
        "nodeSelector": {names.NODESET_NAME_LABEL: worker.name},
        "munge": {"resources": {"cpu": "500m", "memory": "1Gi", "ephemeralStorage": "5Gi"}},
    }
    if preset.gpus:
        resources["gpu"] = preset.gpus
        # GRES is not derived in structured mode: without it jobs with --gres never start.
        static += f" Gres={gres(worker)}"
        values["gpu"] = {"enabled": True}
        values["tolerations"] = [
            {"key": names.GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}
        ]
    values["nodeConfig"] = {"static": static, "features": list(worker.features)}
    values["slurmd"] = {"resources": resources, "volumes": _worker_volumes(spec, worker)}
    return values


def _worker_volumes(spec: StackSpec, worker: WorkerSpec) -> dict[str, Any]:
    mounts = [
        {
            "name": submount.name,
            "mountPath": submount.mount_path,
            "volumeSource": _claim(names.submount_tag(submount.name)),
        }
        for submount in spec.storage.submounts
    ]
    memory = spec.storage.memory
    if memory is not None:
        empty = {"medium": "Memory", "sizeLimit": f"{memory.size_gib}Gi"}
        mounts.append(
            {
                "name": "memory",
                "mountPath": memory.mount_path,
                "volumeSource": {"emptyDir": empty},
            }
        )
    return {
        # The chart's default, a volumeClaimTemplateSpec, is unknown to the CRD.
        "spool": {"emptyDir": {}},
        "jail": _claim(names.JAIL),
        "sharedMemorySize": f"{worker.shared_memory_gib}Gi",
        "jailSubMounts": mounts,
    }


def _claim_size(filesystem: FilesystemSpec | SubmountSpec) -> str:
    """Size of the claim; that of an existing filesystem is not checked against its own."""
    return f"{filesystem.size_gib or 1}Gi"


def _claim(name: str) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": f"{name}-pvc", "readOnly": False}}


def _has_fabric(spec: StackSpec) -> bool:
    return any(worker.has_fabric for worker in spec.nodes.workers)


def _preset(worker: WorkerSpec) -> Preset:
    preset = find_preset(worker.platform, worker.preset)
    if preset is None:
        raise ValueError(f"{worker.platform} has no preset {worker.preset}; see stacks/catalog.py")
    return preset
