"""Values of VictoriaMetrics, VictoriaLogs, the log collector and Grafana. Pure.

Nothing leaves the cluster: the charts stand alone, without the endpoints of a provider. Names of
values: helm/soperator-fluxcd/templates of nebius/soperator, read 2026-11-21.
"""

from __future__ import annotations

from typing import Any, Final

from infra.render.values.pods import requests_and_limits
from stacks.catalog import GIB, Amounts
from stacks.machines import observability_volumes
from stacks.spec import StackSpec
from stacks.spec.cluster import Observability

MONITORING: Final = "monitoring-system"
LOGS: Final = "logs-system"
_STORE_PORT: Final = "8429"
METRICS_ADDRESS: Final = (
    f"http://vmsingle-metrics-victoria-metrics-k8s-stack.{MONITORING}.svc:{_STORE_PORT}"
)
"""The metrics store: VMSingle of the release `metrics`, at the port that Soperator's notifier asks
(helm/soperator-notifier/templates, son.alert.dataSourceUrl, read 2026-11-21)."""
METRICS_IMPORT: Final = f"{METRICS_ADDRESS}/api/v1/import/prometheus"
"""Where jobs send their own metrics."""
_KEPT: Final = "7d"
_CLASS: Final = "compute-csi-network-ssd-ext4"
_DASHBOARDS: Final = ["soperator", "soperator-system", MONITORING, LOGS]

# `full` is the recipe's; `small` fits beside Slurm's own pods on three nodes of 8 vCPUs.
_AGENT: Final = {
    Observability.SMALL: Amounts(cpu_m=500, memory_mib=GIB, ephemeral_mib=0),
    Observability.FULL: Amounts(cpu_m=5000, memory_mib=10 * GIB, ephemeral_mib=0),
}
_METRICS: Final = {
    Observability.SMALL: Amounts(cpu_m=500, memory_mib=2 * GIB, ephemeral_mib=0),
    Observability.FULL: Amounts(cpu_m=6000, memory_mib=24 * GIB, ephemeral_mib=0),
}
_LOG_STORE: Final = {
    Observability.SMALL: Amounts(cpu_m=250, memory_mib=GIB, ephemeral_mib=0),
    Observability.FULL: Amounts(cpu_m=1000, memory_mib=2 * GIB, ephemeral_mib=0),
}
_COLLECTOR: Final = Amounts(cpu_m=200, memory_mib=200, ephemeral_mib=0)


def metrics_values(spec: StackSpec) -> dict[str, Any]:
    """victoria-metrics-k8s-stack: agent, store and Grafana; alerts come with the notifier."""
    level = spec.soperator.observability
    return {
        "alertmanager": {"enabled": False},
        "vmalert": {"enabled": False},
        # They come as a release of their own, before everything that uses them.
        "crds": {"enabled": False},
        "victoria-metrics-operator": {
            "crd": {"create": False, "cleanup": {"enabled": False}},
            "operator": {"disable_prometheus_converter": False, "enable_converter_ownership": True},
        },
        # mk8s runs these where nobody can scrape them.
        "kubeControllerManager": {"enabled": False},
        "kubeEtcd": {"enabled": False},
        "kubeProxy": {"enabled": False},
        "kubeScheduler": {"enabled": False},
        "coreDns": {"enabled": False},
        "vmagent": {"spec": {"resources": requests_and_limits(_AGENT[level])}},
        "vmsingle": {
            "spec": {
                # Newer operators have another default.
                "port": _STORE_PORT,
                "retentionPeriod": _KEPT,
                "extraArgs": {"dedup.minScrapeInterval": "30s", "maxLabelsPerTimeseries": "40"},
                "resources": requests_and_limits(_METRICS[level]),
                "storage": {
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": _CLASS,
                    "resources": {"requests": {"storage": _claim(spec, "metrics")}},
                },
            }
        },
        "grafana": {
            "enabled": True,
            # Reached over SSH only; whoever is on the login node may look and change nothing.
            "grafana.ini": {
                "auth": {"disable_login_form": True},
                "auth.basic": {"enabled": False},
                "auth.anonymous": {"enabled": True, "org_name": "Main Org.", "org_role": "Viewer"},
            },
            "sidecar": {
                "dashboards": {"searchNamespace": _DASHBOARDS},
                "datasources": {"searchNamespace": _DASHBOARDS},
            },
        },
    }


def log_store_values(spec: StackSpec) -> dict[str, Any]:
    """victoria-logs-single: logs of every pod for a week."""
    return {
        "server": {
            "retentionPeriod": _KEPT,
            "resources": requests_and_limits(_LOG_STORE[spec.soperator.observability]),
            "persistentVolume": {
                "enabled": True,
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": _CLASS,
                "size": _claim(spec, "logs"),
            },
        },
        "vector": {"enabled": False},
    }


def log_collector_values() -> dict[str, Any]:
    """opentelemetry-collector on every node: what pods of Slurm and of the operators print."""
    return {
        "mode": "daemonset",
        "image": {"repository": "otel/opentelemetry-collector-k8s"},
        "tolerations": [{"operator": "Exists"}],
        "resources": requests_and_limits(_COLLECTOR),
        "presets": {
            "logsCollection": {"enabled": True, "storeCheckpoints": True},
            "kubernetesAttributes": {"enabled": True},
        },
        "config": {
            "receivers": {
                "filelog": {
                    "include": [
                        "/var/log/pods/soperator_*/**/*.log",
                        "/var/log/pods/*-system_*/**/*.log",
                    ],
                    # Its own lines would come back for ever.
                    "exclude": [f"/var/log/pods/{LOGS}_*/**/*.log"],
                },
            },
            "exporters": {
                "otlphttp/victorialogs": {
                    "logs_endpoint": "http://vm-logs-victoria-logs-single-server."
                    f"{LOGS}:9428/insert/opentelemetry/v1/logs",
                }
            },
            "service": {
                "pipelines": {
                    "logs": {"exporters": ["otlphttp/victorialogs"]},
                    "metrics": None,
                    "traces": None,
                }
            },
        },
    }


def _claim(spec: StackSpec, name: str) -> str:
    return f"{observability_volumes(spec)[name]}Gi"
