"""The wait for pods stands between the releases of the cluster and all that waits for pods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from infra.providers.soperator.pods import TYPE, PodsStartedProvider
from stacks.spec import StackSpec
from tests import SHIPPED
from tests.components.conftest import Deploy
from tests.components.recorder import Recorder

RELEASE = "kubernetes:helm.sh/v3:Release"


def before(recorder: Recorder, urn: str) -> set[str]:
    """All that has to be there first, through every step."""
    needs = {each.urn: (*each.depends_on, each.parent) for each in recorder.registered}
    found: set[str] = set()
    ahead = list(needs[urn])
    while ahead:
        each = ahead.pop()
        if each and each not in found:
            found.add(each)
            ahead += needs.get(each, ())
    return found


@pytest.mark.parametrize("stack", SHIPPED)
def test_the_checks_and_every_command_wait_for_the_pods_and_these_for_the_releases(
    deployed: Deploy, stack: str
) -> None:
    """What is under way when pods turn out to be stuck would be waited for, hours long."""
    recorder = deployed(stack)
    started = recorder.one(TYPE)
    ahead = before(recorder, started.urn)
    for name in ("slurm-cluster", "nodesets"):
        assert recorder.one(RELEASE, name).urn in ahead
    waiting = [
        recorder.one(RELEASE, "soperator-activechecks"),
        *recorder.of("command:remote:Command"),
        *recorder.of("command:remote:CopyToRemote"),
    ]
    assert len(waiting) > 3
    for each in waiting:
        assert started.urn in before(recorder, each.urn), each.name


@pytest.mark.parametrize("stack", SHIPPED)
def test_its_inputs_are_what_the_plugin_takes(deployed: Deploy, stack: str) -> None:
    inputs = deployed(stack).one(TYPE).inputs
    assert PodsStartedProvider().check({}, inputs)[1] == []
    roles = {labels["slurm.nebius.ai/nodeset"] for labels in inputs["node_labels"]}
    assert {"system", "controller", "login", "worker"} <= roles


def test_workers_that_run_from_the_start_are_waited_for_and_those_that_sleep_are_not(
    deployed: Deploy, load: Callable[[str], StackSpec]
) -> None:
    """A cause that a worker has once its node is there would be seen by nobody."""
    system = ["controller-0", "login-0"]
    fixed = deployed("local").one(TYPE).inputs
    assert (fixed["pods"], fixed["may_sleep"]) == ([*system, "worker-0", "worker-1"], [])
    spec = load("local")
    (worker,) = spec.nodes.workers
    elastic = replace(worker, min_nodes=1)
    made = deployed(replace(spec, nodes=replace(spec.nodes, workers=(elastic,))))
    inputs = made.one(TYPE).inputs
    assert (inputs["pods"], inputs["may_sleep"]) == (system, ["worker-0"])
    assert PodsStartedProvider().check({}, inputs)[1] == []
    first = replace(worker, created_nodes=1)
    made = deployed(replace(spec, nodes=replace(spec.nodes, workers=(first,))))
    assert made.one(TYPE).inputs["pods"] == [*system, "worker-0"]


def test_another_image_or_mount_is_waited_for_again_and_the_same_stack_is_not(
    deployed: Deploy, load: Callable[[str], StackSpec]
) -> None:
    def made_of(spec: StackSpec) -> str:
        return deployed(spec).one(TYPE).inputs["made_of"]

    spec = load("local")
    first = made_of(spec)
    assert made_of(spec) == first
    (worker,) = spec.nodes.workers
    other = replace(worker, sshd_config_map="other")
    assert made_of(replace(spec, nodes=replace(spec.nodes, workers=(other,)))) != first
    newer = replace(spec, cluster=replace(spec.cluster, slurm_cluster_name="other"))
    assert made_of(newer) != first


def test_a_stopped_stack_waits_for_no_pod(
    deployed: Deploy, load: Callable[[str], StackSpec]
) -> None:
    spec = load("local")
    assert deployed(replace(spec, nodes=replace(spec.nodes, paused=True))).of(TYPE) == []


def test_every_login_node_is_waited_for(deployed: Deploy, load: Callable[[str], StackSpec]) -> None:
    """`up` ended well with the first of two alone."""
    spec = load("h100-prod")
    login = replace(spec.nodes.login, min_nodes=2, max_nodes=2)
    made = deployed(replace(spec, nodes=replace(spec.nodes, login=login)))
    assert made.one(TYPE).inputs["pods"][:3] == ["controller-0", "login-0", "login-1"]
