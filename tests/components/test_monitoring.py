"""Dashboards and alerts come with observability, after its charts, and the webhook stays secret."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pulumi
import pytest

from stacks.spec import StackSpec
from stacks.spec.cluster import Observability
from tests import SHIPPED
from tests.components.conftest import Deploy
from tests.components.recorder import Recorder, declare
from tests.components.test_releases import releases
from tests.components.texts import open_texts

WEBHOOK = "https://hooks.slack.com/services/T0/B0/SECRET"
GROUP = "kubernetes:operator.victoriametrics.com/v1beta1"
Load = Callable[[str], StackSpec]


def watched(load: Load, *, tells: bool = False) -> StackSpec:
    spec = load("h100-prod")
    levels = replace(spec.soperator, observability=Observability.SMALL, slack_notifier=tells)
    return replace(spec, soperator=levels)


@pytest.fixture(scope="module")
def told(load: Load, tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    return declare(
        watched(load, tells=True),
        tmp_path_factory.mktemp("build"),
        slack_webhook_url=lambda: pulumi.Output.secret(WEBHOOK),
    )


@pytest.mark.feature("S002-87")
def test_dashboards_lie_where_grafana_looks(told: Recorder) -> None:
    dashboards = told.one("kubernetes:core/v1:ConfigMap", "h100-prod-dashboards")
    metrics = releases(told)["metrics"]
    folders = metrics.inputs["values"]["grafana"]["sidecar"]["dashboards"]["searchNamespace"]
    assert dashboards.inputs["metadata"]["namespace"] in folders
    assert dashboards.inputs["metadata"]["labels"] == {"grafana_dashboard": "1"}
    assert metrics.urn in dashboards.depends_on
    titles = {json.loads(text)["title"] for text in dashboards.inputs["data"].values()}
    assert titles == {"Stack: GPUs", "Stack: training", "Stack: serving", "Stack: cost burn"}


def test_rules_wait_for_the_definitions_that_the_metrics_release_follows(told: Recorder) -> None:
    rule = told.one(f"{GROUP}:VMRule")
    found = releases(told)
    assert found["metrics"].urn in rule.depends_on
    assert found["victoria-metrics-operator-crds"].urn in found["metrics"].depends_on


def test_prices_of_the_rules_are_those_of_the_bill(told: Recorder) -> None:
    """8 H100 of 4.50 an hour each, vCPUs and memory included (cost/prices/nebius.yaml)."""
    groups = told.one(f"{GROUP}:VMRule").inputs["spec"]["groups"]
    (price,) = [
        rule
        for group in groups
        for rule in group["rules"]
        if rule.get("record") == "soperator:node_usd_per_hour"
    ]
    assert price["expr"] == "vector(36.000000)"
    assert price["labels"]["nodeset"] == "worker"


def test_the_webhook_is_in_a_secret_and_nowhere_else(told: Recorder) -> None:
    secret = told.one("kubernetes:core/v1:Secret", "h100-prod-slack")
    assert secret.inputs["stringData"] == {"url": WEBHOOK}
    config = told.one(f"{GROUP}:VMAlertmanagerConfig")
    assert secret.urn in config.depends_on
    for each in told.registered:
        assert not [text for text in open_texts(each.sent) if WEBHOOK in text], each.name


def test_without_the_notifier_nothing_knows_of_slack(deployed: Deploy, load: Load) -> None:
    found = deployed(watched(load))
    assert "soperator-notifier" not in releases(found)
    assert not found.of(f"{GROUP}:VMAlertmanager")
    assert not found.of(f"{GROUP}:VMAlertmanagerConfig")
    assert not [each for each in found.of("kubernetes:core/v1:Secret") if "slack" in each.name]


@pytest.mark.parametrize("stack", SHIPPED)
def test_a_stack_without_observability_has_no_rules(deployed: Deploy, stack: str) -> None:
    found = deployed(stack)
    assert not [each for each in found.registered if each.type.startswith(GROUP)]
    assert not [each for each in found.registered if each.name.endswith("-dashboards")]


def test_a_notifier_without_its_webhook_is_a_defect_of_the_program(
    load: Load, tmp_path: Path
) -> None:
    """__main__ refuses it with what to type."""
    with pytest.raises(AssertionError, match="the program refuses a notifier without it"):
        declare(watched(load, tells=True), tmp_path, slack_webhook_url=lambda: None)
