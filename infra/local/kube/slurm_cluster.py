"""helm-slurm-cluster: the SlurmCluster and what stands beside it.

Owns the mapping from chart values to the custom resource, in the order of the CRD. Does not check
values that the CRD's schema checks.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from infra.local.kube.values import (
    MADE_FOLDERS,
    MOUNT_TAG,
    ChartError,
    Object,
    Release,
    filled,
    resources,
)
from stacks.machines import JAIL_UPPER

API_VERSION = "slurm.nebius.ai/v1"
_SCRIPTS = "slurm-scripts"
_SCRIPTS_SOURCE = {"name": _SCRIPTS, "configMap": {"name": _SCRIPTS, "defaultMode": 0o755}}
_SCRIPT_MOUNTS = [
    {"name": _SCRIPTS, "mountPath": "/opt/slurm_scripts/", "volumeSourceName": _SCRIPTS},
    {
        "name": f"{_SCRIPTS}-jail",
        "mountPath": f"{JAIL_UPPER}/opt/slurm_scripts/",
        "volumeSourceName": _SCRIPTS,
    },
]
"""Fixed in the real chart: login pods have the scripts of prolog and epilog too."""
_SCRIPT_FILES: Final = Path(__file__).parent / "charts" / "slurm_scripts"


_PRIORITIES = {
    "worker": 1_000_000,
    "controller": 1_000_001,
    "login": 100_002,
    "accounting": 100_003,
    "exporter": 100_004,
    "rest": 100_005,
    "sconfigcontroller": 100_006,
    "populate-jail": 100_007,
    "mariadb": 100_008,
}
"""Suffix of a PriorityClass -> value; all but the first two have a digit less in the chart too."""


def render(release: Release, values: dict[str, Any]) -> list[Object]:
    """PriorityClasses, ServiceAccounts, scripts and claims, then the SlurmCluster."""
    name = values["clusterName"]
    metadata = filled({"annotations": values["annotations"]})
    metadata["labels"] = release.labels
    return [
        *_priority_classes(release, values, name),
        *_service_accounts(release, values, name),
        _scripts(release, values["slurmScripts"]),
        *_claims(release, values["volumeSources"]),
        release.object(
            API_VERSION, "SlurmCluster", name, metadata=metadata, spec=_spec(release, values, name)
        ),
    ]


def _spec(release: Release, values: dict[str, Any], name: str) -> dict[str, Any]:
    images, controller = values["images"], _controller_node(values, name)
    sssd = _sssd(values)
    nodes = values["slurmNodes"]
    pull = values["imagePullPolicy"]
    container = values["sConfigController"]
    return {
        "crVersion": release.version,
        "maintenance": values["maintenance"],
        "useDefaultAppArmorProfile": values["useDefaultAppArmorProfile"],
        "slurmConfig": values["slurmConfig"],
        **filled({key: values[key] for key in ("customSlurmConfig", "customCgroupConfig")}),
        **filled({key: values.get(key) for key in ("cgroupVersion", "topology")}),
        "mpiConfig": values["mpiConfig"],
        "partitionConfiguration": filled(values["partitionConfiguration"]),
        "plugStackConfig": values["plugStackConfig"],
        # Fixed in the real chart, whatever the values say.
        "healthCheckConfig": {
            "healthCheckInterval": 120,
            "healthCheckProgram": "/opt/slurm_scripts/hc_program.sh",
            "healthCheckNodeState": [{"state": "ANY"}, {"state": "CYCLE"}],
        },
        "k8sNodeFilters": [filled(item) for item in values["k8sNodeFilters"]],
        "volumeSources": [
            _SCRIPTS_SOURCE,
            *(_volume_source(item) for item in values["volumeSources"]),
        ],
        "secrets": values["secrets"],
        "populateJail": _populate_jail(values),
        "sConfigController": {
            "node": container["node"],
            "container": _container(container["container"], images["sConfigController"], pull),
            "runAsUid": container["runAsUid"],
            "runAsGid": container["runAsGid"],
            "reconfigurePollInterval": container["reconfigurePollInterval"],
            "reconfigureWaitTimeout": container["reconfigureWaitTimeout"],
            "serviceAccountName": container["serviceAccount"]["name"]
            or f"{name}-sconfigcontroller",
        },
        "slurmNodes": {
            "accounting": _accounting_node(nodes["accounting"], images, pull),
            "controller": {**controller, **sssd},
            "login": {**_login_node(nodes["login"], images, pull), **sssd},
            "exporter": _exporter_node(nodes["exporter"], images, pull),
            "rest": {
                **_node(nodes["rest"], ("enabled", "size", "threadCount", "maxConnections")),
                "rest": _container(nodes["rest"]["rest"], images["slurmrestd"], pull),
            },
        },
    }


def _populate_jail(values: dict[str, Any]) -> dict[str, Any]:
    jail, images = values["populateJail"], values["images"]
    cuda = values["cudaVersion"]
    default = f"{images['populateJailRepository']}:{images['populateJailTag']}-cuda{cuda}"
    return {
        **jail,
        "image": images["populateJail"] or default,
        "imagePullPolicy": jail.get("imagePullPolicy", values["imagePullPolicy"]),
    }


def _controller_node(values: dict[str, Any], name: str) -> dict[str, Any]:
    node, images = values["slurmNodes"]["controller"], values["images"]
    pull = values["imagePullPolicy"]
    spool = node["volumes"]["spool"]
    if ("volumeSourceName" in spool) == ("volumeClaimTemplateSpec" in spool):
        raise ChartError(
            "slurmNodes.controller.volumes.spool: give exactly one of volumeSourceName and "
            "volumeClaimTemplateSpec (set the other to null: the chart has a default template)"
        )
    account = node["serviceAccount"]
    return {
        **_node(node, ()),
        "slurmctld": _container(node["slurmctld"], images["slurmctld"], pull),
        "munge": _container(node["munge"], images["munge"], pull),
        "serviceAccountName": account["name"] or f"{name}-slurm-controller",
        "openMetrics": node["openMetrics"],
        "volumes": {
            "spool": spool,
            "jail": node["volumes"]["jail"],
            **filled({"customMounts": node["volumes"]["customMounts"]}),
        },
    }


def _login_node(node: dict[str, Any], images: dict[str, Any], pull: str) -> dict[str, Any]:
    door = _node(node, ("size", "sshdServiceType"))
    if node["sshdServiceType"] == "NodePort":
        door["sshdServiceNodePort"] = node["sshdServiceNodePort"]
    else:
        balancer = ("sshdServiceLoadBalancerIP", "sshdServiceLoadBalancerSourceRanges")
        door |= filled({key: node[key] for key in balancer})
    return {
        **door,
        **filled({"sshdServiceAnnotations": node["sshdServiceAnnotations"]}),
        "sshRootPublicKeys": node["sshRootPublicKeys"],
        "sshd": _container(node["sshd"], images["sshd"], pull),
        "munge": _container(node["munge"], images["munge"], pull),
        "volumes": {
            "jail": node["volumes"]["jail"],
            **filled(node["volumes"]),
            "customMounts": [*_SCRIPT_MOUNTS, *node["volumes"]["customMounts"]],
        },
    }


def _accounting_node(node: dict[str, Any], images: dict[str, Any], pull: str) -> dict[str, Any]:
    database, external = node["mariadbOperator"], node["externalDB"]
    if node["enabled"] and database["enabled"] == external["enabled"]:
        raise ChartError(
            "slurmNodes.accounting: enable exactly one of mariadbOperator and externalDB"
        )
    made = {
        **_node(node, ("enabled",)),
        "slurmConfig": node["slurmConfig"],
        "slurmdbdConfig": node["slurmdbdConfig"],
        "slurmdbd": _container(node["slurmdbd"], images["slurmdbd"], pull),
        "munge": _container(node["munge"], images["munge"], pull),
    }
    if database["enabled"]:
        made["mariadbOperator"] = {
            **{key: database[key] for key in ("enabled", "protectedSecret", "replicas", "metrics")},
            **filled({key: database.get(key) for key in ("storage", "priorityClassName")}),
            "image": images["mariaDB"],
            "imagePullPolicy": database.get("imagePullPolicy", pull),
            "resources": resources(database["resources"]),
        }
    if external["enabled"]:
        made["externalDB"] = external
    return made


def _exporter_node(node: dict[str, Any], images: dict[str, Any], pull: str) -> dict[str, Any]:
    return {
        **_node(node, ("enabled", "size", "collectionInterval")),
        "serviceAccountName": node["serviceAccount"]["name"] or "slurm-exporter-sa",
        "exporterContainer": {
            "image": images["soperatorExporter"],
            "imagePullPolicy": node.get("imagePullPolicy", pull),
        },
        "munge": _container(node["munge"], images["munge"], pull),
        "volumes": node["volumes"],
    }


def _node(node: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """The fields that all node kinds share, and `keys`."""
    optional = ("hostUsers", "priorityClass", "customInitContainers")
    shared = filled({key: node.get(key) for key in optional})
    return {
        "k8sNodeFilterName": node["k8sNodeFilterName"],
        **shared,
        **{key: node[key] for key in keys},
    }


def _sssd(values: dict[str, Any]) -> dict[str, Any]:
    """The sidecar of controller and login; no object of the local stack runs it."""
    sssd = values["slurmNodes"]["sssd"]
    if not sssd["enabled"]:
        return {}
    names = ("sssdConfSecretRefName", "sssdLdapCAConfigMapRefName", "sssdDebugLevel")
    return {
        "sssd": _container(sssd, values["images"]["sssd"], values["imagePullPolicy"]),
        **filled({name: sssd.get(name) for name in names}),
    }


def _container(values: dict[str, Any], image: str, pull: str) -> dict[str, Any]:
    return {
        "image": image,
        "imagePullPolicy": values.get("imagePullPolicy", pull),
        "appArmorProfile": values["appArmorProfile"],
        **filled({key: values.get(key) for key in ("command", "args", "port")}),
        "resources": resources(values["resources"]),
    }


def _volume_source(item: dict[str, Any]) -> dict[str, Any]:
    chart_only = ("createPVC", "storageClassName", "size")
    return {key: value for key, value in item.items() if key not in chart_only}


def _claims(release: Release, sources: list[dict[str, Any]]) -> list[Object]:
    """Claims of the volume sources that ask the chart to make them."""
    made = []
    for index, source in enumerate(sources):
        if not source["createPVC"]:
            continue
        for key in ("size", "storageClassName", "persistentVolumeClaim"):
            if not source.get(key):
                raise ChartError(f"volumeSources[{index}].{key}: is required with createPVC")
        spec = {
            "accessModes": ["ReadWriteMany"],
            "volumeMode": "Filesystem",
            "resources": {"requests": {"storage": source["size"]}},
            "storageClassName": source["storageClassName"],
        }
        name = source["persistentVolumeClaim"]["claimName"]
        made.append(release.object("v1", "PersistentVolumeClaim", name, spec=spec))
    return made


def _priority_classes(release: Release, values: dict[str, Any], name: str) -> list[Object]:
    """As templates/priority-class.yaml of helm-slurm-cluster 4.1.7 has them."""
    made = dict(_PRIORITIES)
    if not values["slurmNodes"]["accounting"]["mariadbOperator"]["enabled"]:
        del made["mariadb"]
    return [
        release.cluster_object(
            "scheduling.k8s.io/v1",
            "PriorityClass",
            f"{name}-slurm-{suffix}",
            value=value,
            globalDefault=False,
            description=f"Slurm {suffix} of {name}",
            # Of workers it is the API server's default, which is the same.
            **({} if suffix == "worker" else {"preemptionPolicy": "PreemptLowerPriority"}),
        )
        for suffix, value in made.items()
    ]


def _service_accounts(release: Release, values: dict[str, Any], name: str) -> list[Object]:
    owners = (
        (values["slurmNodes"]["controller"], f"{name}-slurm-controller"),
        (values["slurmNodes"]["exporter"], "slurm-exporter-sa"),
        (values["sConfigController"], f"{name}-sconfigcontroller"),
    )
    accounts = [(owner["serviceAccount"], default) for owner, default in owners]
    return [
        release.object("v1", "ServiceAccount", account["name"] or default)
        for account, default in accounts
        if account["create"]
    ]


def _scripts(release: Release, scripts: dict[str, Any]) -> Object:
    """Ours of the chart's base scripts and those that the values give.

    The checks that the real ones run come with the real chart only.
    """
    data = {path.name: path.read_text() for path in sorted(_SCRIPT_FILES.glob("*.sh"))}
    data |= {key: text for key, text in scripts.items() if isinstance(text, str)}
    for key, script in (scripts.get("builtIn") or {}).items():
        if script.get("enabled", True) and script.get("customContent"):
            data[key] = script["customContent"]
    for key, script in (scripts.get("extra") or {}).items():
        data[key] = script["content"]
    return release.object("v1", "ConfigMap", _SCRIPTS, data=data)


_TAG = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")


def render_storage(release: Release, values: dict[str, Any]) -> list[Object]:
    """StorageClass, then PV, PVC and mount of each declared volume."""
    storage_class = values["storageClass"]["local"]["name"]
    volumes, places = values["volume"], values["storage"]
    if volumes["jail"]["type"] != "filestore":
        raise ChartError(
            f"volume.jail.type: {volumes['jail']['type']!r} is not supported on the local stack "
            "(has: filestore)"
        )
    objects = [
        release.cluster_object(
            "storage.k8s.io/v1",
            "StorageClass",
            storage_class,
            provisioner="kubernetes.io/no-provisioner",
            reclaimPolicy="Retain",
            volumeBindingMode="WaitForFirstConsumer",
        )
    ]

    def add(path: str, volume: dict[str, Any], name: str, place: str, claim: bool = True) -> None:
        tag = _tag(volume["filestoreDeviceName"], f"{path}.filestoreDeviceName")
        expressions = places[place]["matchExpressions"]
        if not expressions:
            raise ChartError(
                f"storage.{place}.matchExpressions: [] matches no node; name the nodes that mount "
                f"volume '{name}'"
            )
        objects.append(
            _volume(release, name, volume["size"], tag, storage_class, expressions, claim)
        )
        if claim:
            objects.append(_claim(release, name, volume["size"], storage_class))
        objects.append(_mount(release, name, tag, places[place]))

    add("volume.jail", volumes["jail"], volumes["jail"]["name"], "jail")
    spool = volumes["controllerSpool"]
    add("volume.controllerSpool", spool, spool["name"], "controllerSpool")
    if volumes["accounting"]["enabled"]:
        if "size" not in volumes["accounting"]:
            raise ChartError("volume.accounting.size: is required when accounting is enabled")
        # The real chart makes no claim for it: the MariaDB operator does.
        accounting = volumes["accounting"]
        add("volume.accounting", accounting, accounting["name"], "accounting", claim=False)
    for index, submount in enumerate(volumes["jailSubMounts"]):
        path = f"volume.jailSubMounts[{index}]"
        add(path, submount, f"jail-submount-{_tag(submount['name'], f'{path}.name')}", "jail")
    return objects


def _tag(value: str, path: str) -> str:
    """The value, if the real chart's kebab filter would leave it alone."""
    if not _TAG.fullmatch(str(value)):
        raise ChartError(
            f"{path}: {value!r} would be rewritten by the chart and name another filesystem; "
            "use a-z, 0-9 and '-' only"
        )
    return str(value)


def _volume(
    release: Release,
    name: str,
    size: str,
    tag: str,
    storage_class: str,
    expressions: list[Any],
    claim: bool,
) -> Object:
    spec: dict[str, Any] = {
        "storageClassName": storage_class,
        "volumeMode": "Filesystem",
        "mountOptions": ["rw", "relatime", "exec"],
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteMany"],
        "persistentVolumeReclaimPolicy": "Retain",
        "local": {"path": f"/mnt/{name}"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}},
    }
    if claim:
        spec["claimRef"] = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": release.namespace,
            "name": f"{name}-pvc",
        }
    metadata = {"annotations": {MOUNT_TAG: tag}}
    return release.cluster_object(
        "v1", "PersistentVolume", f"{name}-pv", metadata=metadata, spec=spec
    )


def _claim(release: Release, name: str, size: str, storage_class: str) -> Object:
    return release.object(
        "v1",
        "PersistentVolumeClaim",
        f"{name}-pvc",
        # The chart marks the jail's claim for k8up, and no other.
        metadata={"annotations": {"k8up.io/backup": "true"}} if name == "jail" else {},
        spec={
            "storageClassName": storage_class,
            "accessModes": ["ReadWriteMany"],
            "volumeMode": "Filesystem",
            "resources": {"requests": {"storage": size}},
        },
    )


def _mount(release: Release, name: str, tag: str, place: dict[str, Any]) -> Object:
    """The DaemonSet that keeps /mnt/<name> mounted on every node of `place`."""
    labels = {"slurm": f"{name}-mount"}
    mount = (
        f"mountpoint -q /host/mnt/{name} || mount -t virtiofs -o rw,relatime {tag} /host/mnt/{name}"
    )
    term = {"matchExpressions": place["matchExpressions"]}
    pod = {
        "containers": [
            {
                "name": "mount",
                "image": "cr.eu-north1.nebius.cloud/soperator/busybox",
                "command": ["/bin/sh", "-c", f"while true; do {mount}; sleep 60; done"],
                "securityContext": {"privileged": True},
                "volumeMounts": [
                    {
                        "name": "host-mount",
                        "mountPath": "/host/mnt",
                        "mountPropagation": "Bidirectional",
                    }
                ],
            }
        ],
        "volumes": [{"name": "host-mount", "hostPath": {"path": "/mnt"}}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}
            }
        },
        "tolerations": place["tolerations"],
    }
    return release.object(
        "apps/v1",
        "DaemonSet",
        f"{name}-mount",
        spec={
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    )


NODESET_API_VERSION = "slurm.nebius.ai/v1alpha1"
_FOLDERS = "make-folders-"
"""Init container that makes the folders of the volume that its name ends with."""


def render_nodesets(release: Release, values: dict[str, Any]) -> list[Object]:
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
    return release.object(
        NODESET_API_VERSION, "NodeSet", item["name"], metadata=metadata, spec=spec
    )


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
