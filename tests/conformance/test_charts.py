"""Every release of every stack renders through its real chart, and no value is sent in vain."""

from __future__ import annotations

import pytest

from infra.clients.kube_rules import name_of
from infra.operate.conformance.come_up import declared
from infra.operate.conformance.sources import NotRunError, OutsideError
from infra.render.charts import cluster_charts, k8up_chart, platform_charts
from tests.conformance.chart_values import leaves, without_effect
from tests.conformance.conftest import STACKS

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(900)]

WITHOUT_EFFECT = {
    ("soperator-activechecks", "slurmJob.gpusPerNode"): (
        "of GPU checks, of which none runs under essential and off; sent all the same, so that a "
        "check that is started by hand asks for what the nodes have"
    ),
}
"""Release and path of values that may change nothing, and why."""


@pytest.mark.parametrize("stack", STACKS)
def test_every_release_renders_and_every_value_changes_something(
    stack, spec, sources, helm, tmp_path, record_property
):
    found = declared(spec(stack), tmp_path)
    record_property("versions", f"Helm {helm.run(['version', '--short']).strip()}")
    idle, num_leaves, num_rendered, num_objects = [], 0, 0, 0
    for release in found.releases:
        try:
            chart = sources.chart(release.name, release.version)
            objects = helm.render(chart, release.name, release.namespace, release.values)
        except OutsideError as error:
            record_property("outside", str(error))
            continue
        except NotRunError as error:
            record_property("not run", str(error))
            continue
        num_rendered += 1
        num_objects += len(objects)
        num_leaves += len(list(leaves(release.values)))
        idle += [
            f"{release.name}: {leaf.name} = {leaf.value!r}"
            for leaf in without_effect(helm, chart, release.name, release.namespace, release.values)
            if (release.name, leaf.name) not in WITHOUT_EFFECT
        ]
    record_property("releases", num_rendered)
    record_property("objects", num_objects)
    record_property("leaves", num_leaves)
    assert not idle, "values without effect:\n" + "\n".join(idle)


@pytest.mark.parametrize("stack", STACKS)
def test_every_check_waits_for_checks_that_are_there(
    stack, spec, sources, helm, tmp_path, record_property
):
    found = {each.name: each for each in declared(spec(stack), tmp_path).releases}
    release = found.get("soperator-activechecks")
    if release is None:
        raise OutsideError("the stack declares no checks")
    chart = sources.chart(release.name, release.version)
    objects = helm.render(chart, release.name, release.namespace, release.values)
    checks = {name_of(each): each["spec"] for each in objects if each["kind"] == "ActiveCheck"}
    record_property("checks", len(checks))
    assert checks
    waited = {name for one in checks.values() for name in one.get("dependsOn") or []}
    assert waited <= checks.keys()


DEFINED_BY = {
    "cert-manager.io": "cert-manager",
    "monitoring.coreos.com": "prometheus-operator-crds",
    "operator.victoriametrics.com": "victoria-metrics-operator-crds",
    "apps.kruise.io": "kruise",
    "k8s.mariadb.com": "mariadb-operator-crds",
    "security-profiles-operator.x-k8s.io": "security-profiles-operator",
    "k8up.io": "k8up",
    "slurm.nebius.ai": "soperator",
}
"""Group of custom resources -> the release that brings their definitions."""


@pytest.mark.parametrize("stack", STACKS)
def test_every_release_follows_what_its_objects_need(
    stack, spec, sources, helm, tmp_path, record_property
):
    """Helm refuses a kind without a definition, to install and to remove; and it makes the
    namespace of a release itself, so that no chart may bring it."""
    found = spec(stack)
    charts = [
        *platform_charts(found),
        *cluster_charts(found, allocation_id="", ssh_public_keys=[], slack_webhook_url=""),
        k8up_chart(found),
    ]
    before: dict[str, set[str]] = {}
    for chart in charts:
        near = [name for name in chart.after if name in before]
        before[chart.release] = {
            chart.release,
            *near,
            *(each for one in near for each in before[one]),
        }
    problems, num_looked_at = [], 0
    for release in declared(found, tmp_path).releases:
        try:
            chart = sources.chart(release.name, release.version)
        except NotRunError:
            continue  # told of by the test above
        for each in helm.render(chart, release.name, release.namespace, release.values):
            needed = DEFINED_BY.get(each["apiVersion"].partition("/")[0])
            num_looked_at += needed is not None
            if needed is not None and needed not in before[release.name]:
                problems.append(f"{release.name}: its {each['kind']} needs {needed} before it")
            if (each["kind"], name_of(each)) == ("Namespace", release.namespace):
                problems.append(f"{release.name}: its chart makes {release.namespace} itself")
    record_property("custom objects", num_looked_at)
    assert num_looked_at
    assert not problems, "\n".join(problems)
