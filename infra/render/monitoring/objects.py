"""Objects that carry rules, dashboards and notifications into the cluster.

Fields: https://docs.victoriametrics.com/operator/api/, and as helm/soperator-notifier of
nebius/soperator uses them, read 2026-11-21.
"""

from __future__ import annotations

import json
from typing import Any, Final

from cost.resources.estimate import Burn
from infra.render.monitoring.alerts import INTERVAL_S, alerts, records
from infra.render.monitoring.dashboards import NAME, dashboards
from infra.render.names import kube_object
from infra.render.values.observability import METRICS_ADDRESS, MONITORING
from infra.render.values.pods import requests_and_limits
from stacks.catalog import Amounts
from stacks.spec import StackSpec

API_VERSION: Final = "operator.victoriametrics.com/v1beta1"
LABELS: Final = {"app.kubernetes.io/part-of": NAME}
WEBHOOK_SECRET: Final = f"{NAME}-slack"
WEBHOOK_KEY: Final = "url"
_PORT: Final = "9093"
_INTERVAL: Final = f"{INTERVAL_S}s"
_SMALL: Final = Amounts(cpu_m=50, memory_mib=128, ephemeral_mib=0)
_MESSAGE: Final = (
    "{{ range .Alerts }}*{{ .Annotations.summary }}*\n{{ .Annotations.description }}\n"
    "What to do: {{ .Annotations.runbook }}\n{{ end }}"
)


def rule_groups(spec: StackSpec, burn: Burn) -> list[dict[str, Any]]:
    """Groups of rules, in the format that Prometheus has too."""
    return [
        {"name": f"{NAME}-cost", "interval": _INTERVAL, "rules": records(burn)},
        {"name": f"{NAME}-alerts", "interval": _INTERVAL, "rules": alerts(spec, burn)},
    ]


def custom_resources(spec: StackSpec, burn: Burn) -> list[dict[str, Any]]:
    """What evaluates the rules, and with the notifier what tells Slack."""
    url = {"url": METRICS_ADDRESS}
    tells = spec.soperator.slack_notifier
    to = (
        {"notifiers": [{"url": f"http://vmalertmanager-{NAME}.{MONITORING}.svc:{_PORT}"}]}
        if tells
        # Alerts are seen in Grafana all the same.
        else {"extraArgs": {"notifier.blackhole": "true"}}
    )
    evaluator = {
        "evaluationInterval": _INTERVAL,
        "datasource": url,
        "remoteWrite": url,
        "remoteRead": url,
        "ruleSelector": {"matchLabels": LABELS},
        "resources": requests_and_limits(_SMALL),
        **to,
    }
    objects = [
        _object("VMRule", {"groups": rule_groups(spec, burn)}),
        _object("VMAlert", evaluator),
    ]
    if tells:
        objects += [
            _object(
                "VMAlertmanager",
                {
                    "replicaCount": 1,
                    "port": _PORT,
                    "configSelector": {"matchLabels": LABELS},
                    "resources": requests_and_limits(_SMALL),
                },
            ),
            _object("VMAlertmanagerConfig", _routes()),
        ]
    return objects


def _routes() -> dict[str, Any]:
    receiver = "slack"
    return {
        "route": {
            "receiver": receiver,
            "group_by": ["alertname"],
            "group_wait": "30s",
            "group_interval": "5m",
            "repeat_interval": "12h",
        },
        "receivers": [
            {
                "name": receiver,
                "slack_configs": [
                    {
                        "api_url": {"name": WEBHOOK_SECRET, "key": WEBHOOK_KEY},
                        "title": "{{ .CommonLabels.alertname }}",
                        "text": _MESSAGE,
                        "send_resolved": True,
                    }
                ],
            }
        ],
    }


def _object(kind: str, content: dict[str, Any]) -> dict[str, Any]:
    metadata = {"labels": LABELS}
    return kube_object(API_VERSION, kind, NAME, MONITORING, metadata=metadata, spec=content)


CONFIG_MAP: Final = f"{NAME}-dashboards"
SIDECAR_LABEL: Final = {"grafana_dashboard": "1"}
"""What Grafana's sidecar looks for: default of the chart, and the label of Soperator's own
dashboards (helm/soperator-monitoring-dashboards/templates/_helpers.tpl, read 2026-11-21)."""


def config_map(burn: Burn) -> dict[str, Any]:
    """The ConfigMap that brings them to Grafana."""
    return {
        "metadata": {"name": CONFIG_MAP, "namespace": MONITORING, "labels": SIDECAR_LABEL},
        "data": {each.file_name: json.dumps(each.to_json(), indent=1) for each in dashboards(burn)},
    }
