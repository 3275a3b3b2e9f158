"""helm-slurm-cluster: the SlurmCluster and what stands beside it.

Owns the mapping from chart values to the custom resource, in the order of the CRD. Does not check
values that the CRD's schema checks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from infra.local.kube.charts.release import Object, Release, filled, resources
from infra.local.kube.charts.values import ChartError
from stacks.soperator_mounts import JAIL_UPPER

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
_SCRIPT_FILES: Final = Path(__file__).parent / "slurm_scripts"


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
