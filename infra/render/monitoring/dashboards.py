"""Dashboards of a stack with observability, out of dashboards.yaml.j2, as JSON for Grafana.

Schema: https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
(2026-11-21). The data source is a variable, as in Soperator's own dashboards. Which metric answers
a panel, and who exports it, is in metrics.tsv.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cost.resources.estimate import Burn
from infra.render.monitoring.alerts import filled

NAME: Final = "soperator-stack"
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
