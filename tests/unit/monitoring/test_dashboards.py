"""Dashboards and rules as files, and that every metric they name is one that somebody exports."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cost.resources.estimate import Estimate
from infra.render.charts import METRICS_IMPORT, chart_values
from infra.render.monitoring.objects import (
    config_map,
    custom_resources,
    dashboards,
    grafana_page,
    rule_groups,
)
from infra.render.sbatch import metrics_environment
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.cluster import AlertsSpec
from tests.unit.monitoring.conftest import BURN
from tests.unit.monitoring.exported import EXPORTED, SOURCES, read_metrics

CHECKOUT = Path(__file__).parents[3]
NAMED = re.compile(r'__name__=~"([^"]+)"')
_WORDS = {"by", "on", "and", "or", "unless", "group_left", "offset", "bool", "without", "ignoring"}


def questions() -> list[str]:
    """Every PromQL of a panel or of the list of a variable."""
    found: list[str] = []
    for page in dashboards(BURN):
        content = grafana_page(page)
        found += [target["expr"] for panel in content["panels"] for target in panel["targets"]]
        for variable in content["templating"]["list"]:
            if "definition" in variable:
                found.append(variable["definition"].removeprefix("label_values(").rsplit(",", 1)[0])
    return found


def metrics_in(expression: str) -> set[str]:
    """Names of metrics: words that are no function, no label, no keyword and no number."""
    named = {name for names in NAMED.findall(expression) for name in names.split("|")}
    text = re.sub(r'"[^"]*"', "", expression)
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", text)
    text = re.sub(r"\b(by|on|without|ignoring|group_left)\s*\([^)]*\)", " ", text)
    words = re.findall(r"(?<![\w.:])([A-Za-z_][\w:]*)(?!\w)(\s*\()?", text)
    return named | {word for word, call in words if not call and word not in _WORDS}


def rules(spec: StackSpec, burn: Estimate = BURN) -> Iterator[dict[str, Any]]:
    for group in rule_groups(spec, burn):
        yield from group["rules"]


def test_dashboards_are_the_golden_files(golden: Callable[[str, str], None]) -> None:
    for name, text in config_map(BURN)["data"].items():
        golden(f"monitoring/{name}", f"{text}\n")


def test_rules_and_what_evaluates_them_are_the_golden_file(
    watched: StackSpec, golden: Callable[[str, str], None]
) -> None:
    golden("monitoring/objects.json", json.dumps(custom_resources(watched, BURN), indent=1) + "\n")


@pytest.mark.feature("S003-42", "S003-88")
def test_every_metric_of_a_panel_is_exported() -> None:
    asked = set().union(*(metrics_in(each) for each in questions()))
    assert asked
    assert not asked - EXPORTED.keys()


@pytest.mark.feature("S002-87")
def test_every_metric_of_a_rule_is_exported(watched: StackSpec) -> None:
    asked = set().union(*(metrics_in(rule["expr"]) for rule in rules(watched)))
    assert not asked - EXPORTED.keys()


def test_the_list_of_records_is_what_the_rules_record(watched: StackSpec) -> None:
    recorded = {rule["record"] for rule in rules(watched) if "record" in rule}
    assert recorded == {each.name for each in EXPORTED.values() if each.exporter == "records"}


def test_names_of_metrics_are_told_from_labels_and_functions() -> None:
    text = 'sum by (a) (rate(x_total{b="c_d"}[5m])) / on (e) group_left () max(y:z) > 1e6'
    assert metrics_in(text) == {"x_total", "y:z"}


def test_a_metric_that_is_listed_twice_is_refused() -> None:
    line = "x\ttrain\tgauge\twhat it says\n"
    with pytest.raises(ValueError, match="'x' is listed twice"):
        read_metrics(f"head\n{line}{line}")


def test_a_metric_of_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="no exporter 'nobody'"):
        read_metrics("head\nx\tnobody\tgauge\twhat it says\n")


def test_every_exporter_is_used() -> None:
    assert {each.exporter for each in EXPORTED.values()} == SOURCES.keys()


def test_every_alert_names_a_runbook_that_is_there(watched: StackSpec) -> None:
    books = {rule["annotations"]["runbook"] for rule in rules(watched) if "alert" in rule}
    assert books
    assert not [book for book in books if not (CHECKOUT / book).is_file()]


def test_dollars_in_alerts_carry_the_day_of_their_prices(watched: StackSpec) -> None:
    told = [rule["annotations"]["description"] for rule in rules(watched) if "alert" in rule]
    with_dollars = [text for text in told if "$3" in text or "$5" in text]
    assert with_dollars
    assert all("prices of book nebius of 2026-09-15" in text for text in with_dollars)


def test_a_price_that_is_not_known_is_no_price_of_zero(watched: StackSpec) -> None:
    unknown = replace(BURN, node_usd_per_hour={"worker": None})
    made = list(rules(watched, unknown))
    assert not [each for each in made if each.get("record") == "soperator:node_usd_per_hour"]
    assert "costs an unknown amount an hour" in str(made)


def test_sums_without_a_price_that_is_not_known_say_at_least(watched: StackSpec) -> None:
    rates = {"worker": None, "small": Decimal(2)}
    unknown = replace(BURN, total=replace(BURN.total, is_lower_bound=True), node_usd_per_hour=rates)
    panels = dashboards(unknown)[-1]["panels"]
    summed = [each for each in panels if each["title"].endswith("(at least)")]
    assert [each["title"] for each in panels[:6]] == [
        "Now, an hour (at least)",
        "A month at this pace (at least)",
        "Nodes without jobs, an hour (at least)",
        "Last 24 hours, as far as seen (at least)",
        "Jobs a month at the pace of a day (at least)",
        "Budget of jobs a month",
    ]
    assert all("Without nodes of worker: no price is known." in each["says"] for each in summed)
    storage = dashboards(replace(BURN, total=unknown.total))[-1]["panels"][0]
    assert storage["title"] == "Now, an hour (at least)"
    assert "`soperator cost -s STACK` lists them" in storage["says"]
    assert "jobs cost at least $" in str(list(rules(watched, unknown)))
    assert "at least" not in str(dashboards(BURN)[-1]) + str(list(rules(watched)))


def test_alerts_of_budget_and_idleness_need_their_declaration(watched: StackSpec) -> None:
    plain = replace(watched, budget=None, lifetime=None)
    unbudgeted = replace(BURN, spec=plain)
    names = {rule.get("alert") for rule in rules(plain, unbudgeted)}
    assert not names & {"SoperatorBudgetBurn", "SoperatorNodesIdle"}
    assert "SoperatorBudgetBurn" in {rule.get("alert") for rule in rules(watched)}


def test_declared_limits_are_in_the_rules(watched: StackSpec) -> None:
    limits = AlertsSpec(
        min_gpu_utilization_percent=41,
        stalled_step_minutes=42,
        checkpoint_minutes=43,
        drained_minutes=44,
    )
    made = {
        rule["alert"]: rule
        for rule in rules(replace(watched, soperator=replace(watched.soperator, alerts=limits)))
        if "alert" in rule
    }
    assert made["SoperatorLowGpuUtilization"]["expr"].endswith("< 41")
    assert made["SoperatorTrainStepStalled"]["expr"].endswith(f"> {42 * 60}")
    assert made["SoperatorCheckpointOld"]["expr"].endswith(f"> {43 * 60}")
    assert made["SoperatorNodeDrained"]["for"] == "44m"


def test_nobody_is_told_without_the_notifier(watched: StackSpec) -> None:
    quiet = replace(watched, soperator=replace(watched.soperator, slack_notifier=False))
    made = {each["kind"]: each["spec"] for each in custom_resources(quiet, BURN)}
    assert made.keys() == {"VMRule", "VMAlert"}
    assert made["VMAlert"]["extraArgs"] == {"notifier.blackhole": "true"}


def test_what_tells_slack_finds_the_rules_and_the_address(watched: StackSpec) -> None:
    made = {each["kind"]: each for each in custom_resources(watched, BURN)}
    labels = made["VMRule"]["metadata"]["labels"]
    assert made["VMAlert"]["spec"]["ruleSelector"]["matchLabels"] == labels
    assert made["VMAlertmanager"]["spec"]["configSelector"]["matchLabels"] == labels
    (to,) = made["VMAlert"]["spec"]["notifiers"]
    name, port = made["VMAlertmanager"]["metadata"]["name"], made["VMAlertmanager"]["spec"]["port"]
    assert to["url"] == f"http://vmalertmanager-{name}.monitoring-system.svc:{port}"


def test_jobs_send_their_metrics_only_where_something_stores_them(watched: StackSpec) -> None:
    assert metrics_environment(watched) == {"SOPERATOR_METRICS_URL": METRICS_IMPORT}
    assert not metrics_environment(load_stack("h100-prod"))


def test_the_store_listens_where_jobs_and_the_notifier_look(watched: StackSpec) -> None:
    port = chart_values(watched, "metrics")["vmsingle"]["spec"]["port"]
    assert METRICS_IMPORT.endswith(f".svc:{port}/api/v1/import/prometheus")
    notifier = chart_values(watched, "soperator-notifier", {"slack_webhook_url": "url"})
    assert notifier["slack"] == {"webhookUrl": "url"}


def test_a_panel_may_have_more_series_than_any_of_ours() -> None:
    asks = [{f"series {number}": "up"} for number in range(20)]
    panel = {"title": "t", "unit": "short", "asks": asks}
    page = grafana_page({**dashboards(BURN)[0], "panels": [panel]})
    assert len({target["refId"] for target in page["panels"][0]["targets"]}) == 20
