"""Recording rules (`soperator:*`) and alerts of a stack, out of rules.yaml.j2."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from cost.prices.price import HOURS_PER_MONTH
from cost.resources.estimate import Burn
from infra.files import environment
from stacks.files import parse_yaml
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
_LABELS: Final = {"severity": "warning", "namespace": "monitoring-system"}
"""The operator sends a config of alertmanager only alerts of the config's namespace."""


def filled(template: str, **values: Any) -> Any:
    """What a template of this folder says; [[ ]] is ours, as {{ }} is of Prometheus and Grafana."""
    made = environment(Path(__file__).parent, variables=("[[", "]]"))
    names = {name: each for name, each in globals().items() if name.endswith("_USD")}
    text = made.get_template(template).render(
        **values, **names, HOURS_PER_MONTH=HOURS_PER_MONTH, usd_of_a_day=usd_of_a_day
    )
    return parse_yaml(text)


def records(burn: Burn) -> list[dict[str, Any]]:
    """The rules, in the order in which they need each other."""
    return _rules(burn)["records"]


def alerts(spec: StackSpec, burn: Burn) -> list[dict[str, Any]]:
    """Every alert of the stack; those that need a declaration only with it."""
    hours = None if spec.lifetime is None else spec.lifetime.idle_hours
    limits = spec.soperator.alerts or AlertsSpec()
    found = _rules(burn, limits=limits, stack=spec.name, idle_hours=hours)["alerts"]
    return [
        {
            **{key: each[key] for key in ("alert", "expr", "for")},
            "labels": _LABELS,
            "annotations": {
                **each["annotations"],
                "runbook": f"docs/runbooks/{each['annotations']['runbook']}",
            },
        }
        for each in found
    ]


def _rules(burn: Burn, **values: Any) -> Any:
    priced = "" if burn.price_date is None else burn.price_date.isoformat()
    known = {"limits": AlertsSpec(), "stack": "", "idle_hours": None, **values}
    return filled("rules.yaml.j2", burn=burn, priced=priced, rates=_rates(burn), **known)


def usd_of_a_day(record: str) -> str:
    """PromQL of the US dollars that were seen to be spent in the last day."""
    # An average would take the hours that are not there, of a pause, for hours as the others.
    return f"sum_over_time({record}[1d]) / {3600 // INTERVAL_S}"


def _rates(burn: Burn) -> str:
    """What a node of each nodeset costs, in words."""
    words = [
        f"a node of {nodeset} costs {'an unknown amount' if usd is None else f'${usd:,.2f}'}"
        for nodeset, usd in burn.node_usd_per_hour.items()
    ]
    return f"{', '.join(words)} an hour ({burn.prices})"
