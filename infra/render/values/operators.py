"""Values of the small charts, a function each: Soperator's operators and what they stand on."""

from __future__ import annotations

from typing import Any, Final

from infra.render import names
from infra.render.values.pods import preset_of, requests_and_limits
from stacks.catalog import GIB, Amounts
from stacks.spec import StackSpec
from stacks.spec.cluster import GpuDrivers, Observability

# The chart's 128 MiB are too few for a cluster; these are the umbrella chart's.
_MANAGER: Final = Amounts(cpu_m=500, memory_mib=GIB, ephemeral_mib=0)


def soperator_values(spec: StackSpec) -> dict[str, Any]:
    """What is installed beside it, which the chart compares as text, and its resources."""
    environment = {
        "isPrometheusCrdInstalled": "true",
        "isMariadbCrdInstalled": _text(spec.slurm.accounting),
        "isApparmorCrdInstalled": _text(spec.soperator.apparmor),
    }
    manager = {"env": environment, "resources": requests_and_limits(_MANAGER)}
    return {"controllerManager": {"manager": manager}}


def _text(value: bool) -> str:
    return "true" if value else "false"


# Nodes with state, which announced maintenance must not delete.
_KEPT_ROLES: Final = ("controller", "nfs", "accounting")
# Arguments of helm/soperatorchecks at 4.1.7 but for the deletion; Helm replaces a list as a whole.
_KEEPING_NODES: Final = (
    "--log-format=json",
    "--log-level=info",
    "--reconcile-timeout=3m",
    "--max-concurrent-reconciles=1",
    "--cache-sync-timeout=2m",
    "--not-ready-timeout=15m",
    "--delete-not-ready-nodes=false",
    "--leader-elect",
    "--maintenance-condition-type=NebiusMaintenanceScheduled",
)


def soperatorchecks_values(spec: StackSpec) -> dict[str, Any]:
    """Which nodes stay under maintenance, and whether a node that is not ready is deleted."""
    kept = ",".join(f"{names.NODESET_LABEL}={role}" for role in _KEPT_ROLES)
    manager: dict[str, Any] = {
        "env": {"maintenanceIgnoreNodeLabels": kept},
        "resources": requests_and_limits(_MANAGER),
    }
    if not spec.soperator.delete_unready_nodes:
        # By default it deletes any Kubernetes node that is not ready for 15 minutes, ours or not.
        manager["args"] = list(_KEEPING_NODES)
    return {"checks": {"manager": manager}}


_REBOOTER: Final = Amounts(cpu_m=500, memory_mib=256, ephemeral_mib=0)


def nodeconfigurator_values() -> dict[str, Any]:
    """A rebooter on every node, tainted ones too."""
    return {
        "rebooter": {
            "enabled": True,
            "resources": requests_and_limits(_REBOOTER),
            "tolerations": [{"operator": "Exists"}],
        }
    }


def notifier_values(webhook_url: Any) -> dict[str, Any]:
    """The webhook, a secret; the chart puts it into a Secret of its own."""
    return {"nameOverride": "soperator-notifier", "slack": {"webhookUrl": webhook_url}}


def needs_custom_configmaps(spec: StackSpec) -> bool:
    """Whether a worker mounts one of the ConfigMaps: those with a disk for images do."""
    return any(worker.image_disk is not None for worker in spec.nodes.workers)


def custom_configmaps_values(spec: StackSpec) -> dict[str, Any]:
    """The ConfigMap `image-storage` beside the workers; the other one is for Nebius' telemetry."""
    return {
        "namespace": spec.cluster.namespace,
        "configMaps": {"motd": {"enabled": False}, "imageStorage": {"enabled": True}},
    }


# The gates that Soperator's operator relies on: helm/soperator/values.yaml at 4.1.7.
_GATES: Final = (
    "ImagePullJobGate",
    "RecreatePodWhenChangeVCTInCloneSetGate",
    "StatefulSetAutoResizePVCGate",
    "StatefulSetAutoDeletePVC",
    "PreDownloadImageForInPlaceUpdate",
    "ResourceDistributionGate",
)


def kruise_values() -> dict[str, Any]:
    """Feature gates, and the manager that the umbrella chart of 4.1.7 pins over the chart's own."""
    return {
        # Bare commas: a backslash before each is for `helm --set` and would stay in the value.
        "featureGates": ",".join(f"{gate}=true" for gate in _GATES),
        "manager": {"image": {"tag": "v1.8.3"}},
    }


_EXPORTER: Final = Amounts(cpu_m=100, memory_mib=512, ephemeral_mib=0)


def needs_dcgm_exporter(spec: StackSpec) -> bool:
    """Whether GPU metrics are collected and there is a GPU."""
    has_gpus = any(preset_of(worker).gpus for worker in spec.nodes.workers)
    return has_gpus and spec.soperator.observability is not Observability.OFF


def dcgm_exporter_values(spec: StackSpec) -> dict[str, Any]:
    """The exporter; only NVIDIA's GPU operator makes the file that it waits for by default."""
    return {
        "validateToolkit": spec.cluster.gpu_drivers is GpuDrivers.OPERATORS,
        "daemonSet": {"nvidiaDcgmExporter": {"resources": requests_and_limits(_EXPORTER)}},
    }


# The umbrella chart's of 4.1.7: with its own limits the daemon is killed on nodes of many pods.
_OPERATOR: Final = Amounts(cpu_m=500, memory_mib=3 * GIB, ephemeral_mib=0)


def security_profiles_values() -> dict[str, Any]:
    """AppArmor on every node, and nothing else of what the operator can do."""
    return {
        "enableAppArmor": True,
        "enableBpfRecorder": False,
        "enableLogEnricher": False,
        "enableProfiling": False,
        "enableSelinux": False,
        "daemon": {"tolerations": [{"operator": "Exists"}]},
        "resources": requests_and_limits(_OPERATOR),
    }
