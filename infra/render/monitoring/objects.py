"""Dashboards, rules and notifications of a stack with observability, as they come to the cluster.

Recording rules (`soperator:*`) and alerts are out of rules.yaml.j2, pages of Grafana out of
dashboards.yaml.j2; their data source is a variable, as in Soperator's own
(https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/,
2026-11-21). Fields of the operator's objects, out of objects.yaml.j2:
https://docs.victoriametrics.com/operator/api/, and as helm/soperator-notifier of nebius/soperator
uses them, read 2026-11-21. Which metric answers a panel, and who exports it, is in metrics.tsv.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cost.prices.book import HOURS_PER_MONTH
from cost.resources.estimate import Estimate
from infra.render.charts import METRICS_ADDRESS, MONITORING, requests_and_limits
from infra.render.names import kube_object
from infra.render.templates import manifest
from stacks.catalog import Amounts
from stacks.spec import StackSpec
from stacks.spec.cluster import AlertsSpec

NODE_USD: Final = "soperator:node_usd_per_hour"
AROUND_USD: Final = "soperator:around_usd_per_hour"
BUDGET_USD: Final = "soperator:budget_usd_per_month"
STATE_USD: Final = "soperator:node_state_usd_per_hour"
JOBS_USD: Final = "soperator:jobs_usd_per_hour"
STACK_USD: Final = "soperator:stack_usd_per_hour"
INTERVAL_S: Final = 30
"""As often as Soperator's exporter asks Slurm."""
_ALERT_LABELS: Final = {"severity": "warning", "namespace": "monitoring-system"}
"""The operator sends a config of alertmanager only alerts of the config's namespace."""


def _manifest(template: str, **values: Any) -> Any:
    usd = {name: each for name, each in globals().items() if name.endswith("_USD")}
    shared = {**usd, "HOURS_PER_MONTH": HOURS_PER_MONTH, "usd_of_a_day": usd_of_a_day}
    return manifest(f"monitoring/{template}", **shared, **values)


def usd_of_a_day(record: str) -> str:
    """PromQL of the US dollars that were seen to be spent in the last day."""
    # An average would take the hours that are not there, of a pause, for hours as the others.
    return f"sum_over_time({record}[1d]) / {3600 // INTERVAL_S}"


def _rates(burn: Estimate) -> str:
    """What a node of each nodeset costs, in words."""
    words = [
        f"a node of {nodeset} costs {'an unknown amount' if usd is None else f'${usd:,.2f}'}"
        for nodeset, usd in burn.node_usd_per_hour.items()
    ]
    return f"{', '.join(words)} an hour ({burn.prices})"


NAME: Final = "soperator-stack"
API_VERSION: Final = "operator.victoriametrics.com/v1beta1"
LABELS: Final = {"app.kubernetes.io/part-of": NAME}
WEBHOOK_SECRET: Final = f"{NAME}-slack"
WEBHOOK_KEY: Final = "url"
_INTERVAL: Final = f"{INTERVAL_S}s"
_SMALL: Final = Amounts(cpu_m=50, memory_mib=128, ephemeral_mib=0)


def rule_groups(spec: StackSpec, burn: Estimate) -> list[dict[str, Any]]:
    """Groups of rules, in the format that Prometheus has too.

    What is recorded is in the order in which it is needed; an alert that needs a declaration is
    there with it only.
    """
    rules = _manifest(
        "rules.yaml.j2",
        burn=burn,
        priced="" if burn.price_date is None else burn.price_date.isoformat(),
        rates=_rates(burn),
        limits=spec.soperator.alerts or AlertsSpec(),
        labels=_ALERT_LABELS,
        stack=spec.name,
        idle_hours=None if spec.lifetime is None else spec.lifetime.idle_hours,
    )
    return [
        {"name": f"{NAME}-cost", "interval": _INTERVAL, "rules": rules["records"]},
        {"name": f"{NAME}-alerts", "interval": _INTERVAL, "rules": rules["alerts"]},
    ]


def custom_resources(spec: StackSpec, burn: Estimate) -> list[dict[str, Any]]:
    """What evaluates the rules, and with the notifier what tells Slack."""
    found = _manifest(
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


_COLUMNS: Final = 24


def grafana_page(page: Mapping[str, Any]) -> dict[str, Any]:
    """One of the dashboards, as Grafana imports it."""
    return _manifest("page.yaml.j2", page=page, placed=list(_placed(page["panels"])))


def _placed(
    panels: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[dict[str, int], Mapping[str, Any]]]:
    """Panels from left to right; the next row starts where one does not fit."""
    x = y = row_height = 0
    for panel in panels:
        width, height = panel.get("width", 12), panel.get("height", 8)
        if x + width > _COLUMNS:
            x, y, row_height = 0, y + row_height, 0
        yield {"x": x, "y": y, "w": width, "h": height}, panel
        x, row_height = x + width, max(row_height, height)


def dashboards(burn: Estimate) -> list[dict[str, Any]]:
    """Every dashboard of a stack; what it costs now, for what, and where that leads comes last.

    `choose`: name of a choice, and the PromQL of what there is to choose from. A panel has title,
    unit as Grafana calls it, and questions by the name of their series; where they are given, what
    the number means (`says`), kind, stacking, width of 24 columns and height.
    """
    says = f"US dollars without tax, {burn.prices}."
    if burn.unpriced_nodesets:
        says += f" Without nodes of {', '.join(burn.unpriced_nodesets)}: no price is known."
    elif burn.total.is_lower_bound:
        says += (
            " Without lines of the bill that have no price: `soperator cost -s STACK` lists them."
        )
    least = " (at least)" if burn.total.is_lower_bound else ""
    return _manifest("dashboards.yaml.j2", burn=burn, says=says, least=least)


CONFIG_MAP: Final = f"{NAME}-dashboards"
SIDECAR_LABEL: Final = {"grafana_dashboard": "1"}
"""What Grafana's sidecar looks for: default of the chart, and the label of Soperator's own
dashboards (helm/soperator-monitoring-dashboards/templates/_helpers.tpl, read 2026-11-21)."""


def config_map(burn: Estimate) -> dict[str, Any]:
    """The ConfigMap that brings them to Grafana."""
    return {
        "metadata": {"name": CONFIG_MAP, "namespace": MONITORING, "labels": SIDECAR_LABEL},
        "data": {
            f"{page['uid']}.json": json.dumps(grafana_page(page), indent=1)
            for page in dashboards(burn)
        },
    }
