"""The stand-in for pulumi-kubernetes against the official plugin, on a real API server.

See tests/engine/test_plugins_recorded.py and tests/conformance/plugins.tsv. The charts come from a
repository on loopback.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from infra.clients.kube import KubeClient, drop_unfinished, drop_unknown
from tests.conformance import kubernetes_cases
from tests.conformance.command_cases import refusal
from tests.conformance.kubernetes_cases import RELEASE, World, started
from tests.conformance.plugin import RefusedError
from tests.conformance.recorded import OFFICIAL, SIDES, check, program_of
from tests.conformance.tiny_charts import served_charts
from tests.local.kube_server import kubeconfig, running_cluster

pytestmark = pytest.mark.local


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, KubeClient, str]]:
    """A kubeconfig, a client and the address of the charts."""
    with (
        running_cluster(tmp_path_factory.mktemp("kube")) as config,
        served_charts(tmp_path_factory.mktemp("charts")) as charts,
    ):
        yield kubeconfig(config), KubeClient(config.access()), charts


@pytest.fixture(scope="module", params=SIDES)
def running(
    request: pytest.FixtureRequest, cluster: tuple[str, KubeClient, str]
) -> Iterator[World]:
    """One plugin on that API server, official or stand-in."""
    program = program_of("kubernetes", official=request.param == OFFICIAL)
    with started(World(program, *cluster)) as world:
        yield world


@pytest.fixture
def world(running: World, request: pytest.FixtureRequest) -> World:
    """The same, with a namespace of the test's own."""
    side = request.node.callspec.params["running"]
    running.namespace = f"{request.node.originalname}-{side}".replace("_", "-")[-40:].strip("-")
    case = request.node.callspec.params.get("case")
    if case is not None:
        running.namespace = f"{case.__name__.replace('_', '-')[:50].strip('-')}-{side[:2]}"
    metadata = {"name": running.namespace}
    running.client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    running.plugin.take_lines()
    return running


@pytest.mark.parametrize("case", kubernetes_cases.CASES, ids=lambda case: case.__name__)
def test_a_case_is_as_recorded(
    world: World, case: Callable[[World], str], request: pytest.FixtureRequest
) -> None:
    try:
        answer = case(world)
    except RefusedError as error:  # an input that the stand-in does not serve
        answer = f"refused: {error}"
    side = request.node.callspec.params["running"]
    check("kubernetes", case.__name__, world.tidy(answer), official=side == OFFICIAL)


@pytest.fixture
def official(cluster: tuple[str, KubeClient, str], request: pytest.FixtureRequest) -> World:
    """A world whose official plugin the test itself starts and kills."""
    world = World(program_of("kubernetes", official=True), *cluster)
    world.namespace = request.node.name.replace("_", "-")[:60].strip("-")
    metadata = {"name": world.namespace}
    world.client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    return world


def wait_for_record(world: World, status: str) -> None:
    """Returns once Helm has written a record of this status."""
    over = threading.Event()
    for _ in range(600):
        label = f"owner=helm,name=tiny,status={status}"
        if world.client.list("v1", "Secret", world.namespace, label=label):
            return
        over.wait(0.1)
    raise AssertionError(f"Helm wrote no record that is {status}")


def killed_while_helm_waits(world: World, call: Callable[[], object], status: str) -> None:
    """Starts the call, and kills the plugin once Helm waits for pods that never come."""
    thread = threading.Thread(target=refusal, args=(call,))
    thread.start()
    wait_for_record(world, status)
    world.plugin.kill()
    thread.join()


def test_a_release_is_made_again_after_a_kill_of_its_install(official: World) -> None:
    names = {"release": "tiny", "namespace": official.namespace}
    drop_unknown(official.client, "own", **names)
    slow = official.release("tiny-slow", timeout=60)
    with started(official):
        tiny = official.resource(RELEASE, "tiny")
        killed_while_helm_waits(official, lambda: tiny.create(slow), "pending-install")
    with started(official):
        tiny = official.resource(RELEASE, "tiny")
        refused = "refused: cannot re-use a name that is still in use"
        assert refusal(lambda: tiny.create(official.release())) == refused
        assert len(drop_unknown(official.client, "own", **names)) == 1
        tiny.create(official.release())
    note = official.client.get(official.config_map("tiny-note"))
    assert note is not None
    assert note["data"] == {"text": "declared"}, "its own object of the first run is taken over"


def test_a_release_is_changed_again_after_a_kill_of_its_change(official: World) -> None:
    names = {"release": "tiny", "namespace": official.namespace}
    drop_unknown(official.client, "own", **names)
    with started(official):
        tiny = official.resource(RELEASE, "tiny")
        tiny.create(official.release())
        slow = official.release("tiny-slow", timeout=60)
        killed_while_helm_waits(official, lambda: tiny.update(slow), "pending-upgrade")
    with started(official):
        again = official.resource(RELEASE, "tiny")
        again.id, again.inputs, again.state = tiny.id, tiny.inputs, tiny.state
        change = official.release(values={"text": "other"})
        refused = "refused: another operation (install/upgrade/rollback) is in progress"
        assert refusal(lambda: again.update(change)) == refused
        assert len(drop_unfinished(official.client, "own", **names)) == 1
        again.update(change)
        assert again.output("status", "status") == "deployed"


def test_a_release_of_somebody_before_the_stack_came_stays_theirs(official: World) -> None:
    names = {"release": "tiny", "namespace": official.namespace}
    with started(official):
        official.resource(RELEASE, "tiny").create(official.release())
        # Kubernetes keeps the times of objects in whole seconds.
        threading.Event().wait(1.1)
        assert drop_unknown(official.client, "came-later", **names) == []
        tiny = official.resource(RELEASE, "tiny")
        refused = "refused: cannot re-use a name that is still in use"
        assert refusal(lambda: tiny.create(official.release())) == refused
