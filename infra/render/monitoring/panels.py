"""One Grafana dashboard out of panels: plain JSON, two panels a row. Pure.

Schema: https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
(2026-11-21). The data source is a variable, as in Soperator's own dashboards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

SCHEMA_VERSION: Final = 39
_COLUMNS: Final = 24
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One graph or number, with the questions that it asks."""

    title: str
    unit: str
    """Unit as Grafana calls it: `percent`, `s`, `currencyUSD`, `short` ..."""
    asks: tuple[tuple[str, str], ...]
    """PromQL and the name of its series."""
    kind: str = "timeseries"
    """`timeseries` or `stat`."""
    stacked: bool = False
    most: float | None = None
    """End of the axis; None follows the data."""
    says: str = ""
    """What the number means, behind the panel's (i)."""
    width: int = 12
    """Columns of 24."""
    height: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One page of Grafana."""

    uid: str
    title: str
    panels: tuple[Panel, ...]
    variables: tuple[tuple[str, str], ...] = ()
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
            "templating": {"list": [source, *(_variable(*each) for each in self.variables)]},
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


def _placed(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Panels from left to right; the next row starts where one does not fit."""
    placed: list[dict[str, Any]] = []
    x = y = row_height = 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > _COLUMNS:
            x, y, row_height = 0, y + row_height, 0
        place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
        placed.append({"id": number, "gridPos": place, **_content(panel)})
        x, row_height = x + panel.width, max(row_height, panel.height)
    return placed


def _content(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.most is not None:
        defaults["max"] = panel.most
    if panel.stacked:
        defaults["custom"] = {"stacking": {"mode": "normal"}, "fillOpacity": 30}
    return {
        "type": panel.kind,
        "title": panel.title,
        **({"description": panel.says} if panel.says else {}),
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _SOURCE,
                "expr": expression,
                "legendFormat": legend,
            }
            for number, (expression, legend) in enumerate(panel.asks)
        ],
    }
