"""What must go before what at the end of a stack, read from the program's own dependencies."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests import SHIPPED
from tests.components.conftest import Deploy
from tests.components.recorder import Recorder, Registered

TEARDOWN = "soperator:kube:Teardown"
pytestmark = pytest.mark.parametrize("stack", SHIPPED)
RELEASE = "kubernetes:helm.sh/v3:Release"


def outlived_by(recorder: Recorder, one: Registered) -> set[str]:
    """URNs that are deleted only after it: its dependencies, those of its parents, and so on."""
    known = {each.urn: each for each in recorder.registered}
    found: set[str] = set()
    pending = [one.urn]
    while pending:
        each = known.get(pending.pop())
        if each is None:
            continue
        above = [*each.depends_on, *([each.parent] if each.parent else [])]
        pending += [urn for urn in above if urn not in found]
        found |= set(above)
    return found


def test_what_runs_in_the_cluster_goes_before_the_clean_up(deployed: Deploy, stack: str) -> None:
    recorder = deployed(stack)
    teardown = recorder.one(TEARDOWN)
    inside = [
        each
        for each in recorder.registered
        if each.custom and each.type.startswith(("kubernetes:", "command:"))
    ]
    assert len(inside) > 10
    for each in inside:
        assert teardown.urn in outlived_by(recorder, each), each.name


def test_before_what_runs_in_the_cluster_ends_it_is_asked_whose_the_stack_is(
    deployed: Deploy, stack: str
) -> None:
    recorder = deployed(stack)
    after = outlived_by(recorder, recorder.one("soperator:cloud:StateGuard"))
    first = [
        each.name
        for each in recorder.registered
        if each.type.startswith(
            ("kubernetes:", "command:", "soperator:kube:", "soperator:storage:")
        )
        and each.urn not in after
    ]
    assert first == []


def test_the_clean_up_goes_before_the_nodes_the_cluster_and_the_address(
    deployed: Deploy, stack: str
) -> None:
    """The cluster's balancer holds the address of the login service, or takes it anew."""
    recorder = deployed(stack)
    after = outlived_by(recorder, recorder.one(TEARDOWN))
    groups = recorder.of("nebius:mk8s/v1:NodeGroup")
    assert {each.urn for each in groups} <= after
    cluster = recorder.one("nebius:mk8s/v1:Cluster")
    for group in groups:
        assert cluster.urn in outlived_by(recorder, group)
    assert recorder.one("nebius:vpc/v1:Allocation").urn in outlived_by(recorder, cluster)


def test_checks_go_before_their_controller_and_that_before_the_operator(
    deployed: Deploy, stack: str
) -> None:
    """It takes the finalizers off the checks: without it their namespace hangs."""
    recorder = deployed(stack)
    releases = {each.name: each for each in recorder.of(RELEASE)}
    chain = ("soperator-activechecks", "soperatorchecks", "soperator", "kruise", "cert-manager")
    here = [releases[name] for name in chain if name in releases]
    assert len(here) >= 4
    for first, then in pairwise(here):
        assert then.urn in outlived_by(recorder, first), (first.name, then.name)


def test_the_clean_up_knows_its_cluster_and_keeps_the_access_secret(
    deployed: Deploy, stack: str
) -> None:
    recorder = deployed(stack)
    inputs = recorder.one(TEARDOWN).inputs
    assert set(inputs) == {"cluster_id", "project_id", "kubeconfig", "namespaces"}
    assert inputs["project_id"].startswith("project-")
    assert {"soperator", "soperator-system", "kruise-system"} <= set(inputs["namespaces"])
    sent = recorder.one(TEARDOWN).sent["kubeconfig"]
    assert isinstance(sent, dict), "the kubeconfig is wrapped as a secret"


def test_every_namespace_of_a_release_is_cleaned(deployed: Deploy, stack: str) -> None:
    recorder = deployed(stack)
    known = set(recorder.one(TEARDOWN).inputs["namespaces"])
    used = {each.inputs["namespace"] for each in recorder.of(RELEASE)}
    assert used <= known
