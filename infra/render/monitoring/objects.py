"""Dashboards, rules and notifications of a stack with observability, as they come to the cluster.

Pages of Grafana are out of dashboards.yaml.j2; their data source is a variable, as in Soperator's
own (https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/,
2026-11-21). Fields of the operator's objects, out of objects.yaml.j2:
https://docs.victoriametrics.com/operator/api/, and as helm/soperator-notifier of nebius/soperator
uses them, read 2026-11-21. Which metric answers a panel, and who exports it, is in metrics.tsv.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cost.resources.estimate import Burn
from infra.render.monitoring.alerts import INTERVAL_S, alerts, filled, records
from infra.render.names import kube_object
from infra.render.values.observability import METRICS_ADDRESS, MONITORING
from infra.render.values.pods import requests_and_limits
from stacks.catalog import Amounts
from stacks.spec import StackSpec

NAME: Final = "soperator-stack"
API_VERSION: Final = "operator.victoriametrics.com/v1beta1"
LABELS: Final = {"app.kubernetes.io/part-of": NAME}
WEBHOOK_SECRET: Final = f"{NAME}-slack"
WEBHOOK_KEY: Final = "url"
_INTERVAL: Final = f"{INTERVAL_S}s"
_SMALL: Final = Amounts(cpu_m=50, memory_mib=128, ephemeral_mib=0)


def rule_groups(spec: StackSpec, burn: Burn) -> list[dict[str, Any]]:
    """Groups of rules, in the format that Prometheus has too."""
    return [
        {"name": f"{NAME}-cost", "interval": _INTERVAL, "rules": records(burn)},
        {"name": f"{NAME}-alerts", "interval": _INTERVAL, "rules": alerts(spec, burn)},
    ]


def custom_resources(spec: StackSpec, burn: Burn) -> list[dict[str, Any]]:
    """What evaluates the rules, and with the notifier what tells Slack."""
    found = filled(
        "objects.yaml.j2",
        groups=rule_groups(spec, burn),
        tells=spec.soperator.slack_notifier,
        name=NAME,
        labels=LABELS,
        interval=_INTERVAL,
        resources=requests_and_limits(_SMALL),
        WEBHOOK_SECRET=WEBHOOK_SECRET,
        WEBHOOK_KEY=WEBHOOK_KEY,
        METRICS_ADDRESS=METRICS_ADDRESS,
        MONITORING=MONITORING,
    )
    metadata = {"labels": LABELS}
    return [
        kube_object(API_VERSION, kind, NAME, MONITORING, metadata=metadata, spec=content)
        for kind, content in found.items()
    ]


SCHEMA_VERSION: Final = 39
_COLUMNS: Final = 24
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One page of Grafana."""

    uid: str
    title: str
    panels: Sequence[Mapping[str, Any]]
    """Title, unit as Grafana calls it, and questions by the name of their series; where they are
    given, what the number means (`says`), kind, stacking, width of 24 columns and height."""
    choose: Mapping[str, str]
    """Name of a choice, and the PromQL of what there is to choose from."""

    @property
    def file_name(self) -> str:
        """Name in the ConfigMap that Grafana's sidecar reads."""
        return f"{self.uid}.json"

    def to_json(self) -> dict[str, Any]:
        """Return the page as Grafana imports it."""
        source = {"name": "datasource", "type": "datasource", "query": "prometheus", "hide": 2}
        return {
            "uid": self.uid,
            "title": self.title,
            "tags": ["soperator-stack"],
            "editable": False,
            "schemaVersion": SCHEMA_VERSION,
            "timezone": "utc",
            "refresh": "30s",
            "time": {"from": "now-6h", "to": "now"},
            "templating": {"list": [source, *(_variable(*each) for each in self.choose.items())]},
            "panels": _placed(self.panels),
        }


def _variable(name: str, question: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "definition": question,
        "query": {"query": question, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": "All", "value": "$__all"},
    }


def _placed(panels: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Panels from left to right; the next row starts where one does not fit."""
    placed: list[dict[str, Any]] = []
    x = y = row_height = 0
    for number, panel in enumerate(panels, 1):
        width, height = panel.get("width", 12), panel.get("height", 8)
        if x + width > _COLUMNS:
            x, y, row_height = 0, y + row_height, 0
        place = {"x": x, "y": y, "w": width, "h": height}
        placed.append({"id": number, "gridPos": place, **_content(panel)})
        x, row_height = x + width, max(row_height, height)
    return placed


def _content(panel: Mapping[str, Any]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel["unit"], "min": 0}
    if panel["unit"] == "percent":
        defaults["max"] = 100
    if panel.get("stacked"):
        defaults["custom"] = {"stacking": {"mode": "normal"}, "fillOpacity": 30}
    asks = [each for asked in panel["asks"] for each in asked.items()]
    return {
        "type": panel.get("kind", "timeseries"),
        "title": panel["title"],
        **({"description": panel["says"]} if "says" in panel else {}),
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _SOURCE,
                "expr": expression,
                "legendFormat": legend,
            }
            for number, (legend, expression) in enumerate(asks)
        ],
    }


def dashboards(burn: Burn) -> tuple[Dashboard, ...]:
    """Every dashboard of a stack; what it costs now, for what, and where that leads comes last."""
    says = f"US dollars without tax, {burn.prices}."
    if burn.unpriced_nodesets:
        says += f" Without nodes of {', '.join(burn.unpriced_nodesets)}: no price is known."
    elif burn.is_lower_bound:
        says += (
            " Without lines of the bill that have no price: `soperator cost -s STACK` lists them."
        )
    least = " (at least)" if burn.is_lower_bound else ""
    return tuple(
        Dashboard(
            uid=f"{NAME}-{page['uid']}",
            title=page["title"],
            panels=page["panels"],
            choose=page.get("choose", {}),
        )
        for page in filled("dashboards.yaml.j2", burn=burn, says=says, least=least)
    )


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
