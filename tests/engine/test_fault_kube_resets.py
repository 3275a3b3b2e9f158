"""A Kubernetes API that resets connections, at every request of a run: the next run heals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from infra.clients.kube import KubeClient
from infra.local.plugins.kubernetes import Kubernetes
from infra.providers.engine.provider import reveal
from stacks.errors import UserError
from tests.conformance.kubernetes_cases import PROGRAM
from tests.engine.reset_proxy import ResetProxy, When
from tests.local.kube_server import running_cluster
from tests.nightly import at_night

pytestmark = pytest.mark.local

NAMESPACE = "resets"
SPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
KINDS = {
    "kubernetes:core/v1:ConfigMap": {"data": {"a": "1"}},
    "kubernetes:core/v1:Secret": {"stringData": {"a": "1"}},
    "kubernetes:slurm.nebius.ai/v1alpha1:JailedConfig": {"spec": {"configMap": {"name": "a"}}},
}
BURST = 2
"""Resets in a row that end a run: a request is repeated once."""


def _declared() -> dict[str, dict[str, Any]]:
    """Type -> object of a small deployment."""
    declared = {}
    for type_, content in KINDS.items():
        _, version, kind = type_.split(":")
        place = {"name": kind.lower(), "namespace": NAMESPACE}
        core = {"apiVersion": version.removeprefix("core/"), "kind": kind, "metadata": place}
        declared[type_] = {**core, **content}
    return declared


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with running_cluster(tmp_path_factory.mktemp("kube")) as config:
        yield config.access()


@pytest.fixture(scope="module")
def client(access: Any) -> KubeClient:
    """A way to the API server past the proxy."""
    client = KubeClient(access)
    client.apply(SPACE)
    return client


@pytest.fixture(scope="module")
def proxy(access: Any) -> Iterator[ResetProxy]:
    with ResetProxy(access).running() as proxy:
        yield proxy


class Run:
    """One state file over one API server."""

    def __init__(self, proxy: ResetProxy) -> None:
        self.proxy = proxy
        self.state: dict[str, tuple[str, dict[str, Any]]] = {}

    def up(self) -> str:
        """Creates what the state lacks, as a new process does; what it was refused with."""
        plugin = Kubernetes()
        # As infra/components/stack.py has it; else what a lost answer made "already exists".
        plugin.configure({"kubeconfig": _kubeconfig(self.proxy), **PROGRAM})
        try:
            for type_, declared in _declared().items():
                if type_ not in self.state:
                    urn = f"urn:pulumi:dev::resets::{type_}::one"
                    inputs, problems = plugin.of(type_).check({}, declared)
                    assert not list(problems)
                    self.state[type_] = plugin.of(type_).create(urn, reveal(inputs))
        except UserError as error:
            return str(error)
        return ""


def _kubeconfig(proxy: ResetProxy) -> str:
    return json.dumps(
        {
            "clusters": [{"name": "c", "cluster": {"server": proxy.endpoint}}],
            "users": [{"name": "u", "user": {"token": proxy.token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
    )


def _emptied(client: KubeClient) -> None:
    for declared in _declared().values():
        client.delete(declared)
        client.wait_gone(declared, timeout_s=30)


def _content(client: KubeClient) -> list[tuple[str, str, Any, Any]]:
    """What the namespace holds, without the server's own bookkeeping."""
    return [
        (each["kind"], one["metadata"]["name"], one.get("data"), one.get("spec"))
        for each in _declared().values()
        for one in client.list(each["apiVersion"], each["kind"], NAMESPACE)
    ]


@pytest.fixture(scope="module")
def undisturbed(client: KubeClient, proxy: ResetProxy) -> tuple[int, Any]:
    """Requests and result of a run without resets."""
    proxy.plant(0, 0, "before")
    assert Run(proxy).up() == ""
    found = proxy.num_requests, _content(client)
    assert len(found[1]) >= len(KINDS)
    _emptied(client)
    return found


@pytest.mark.parametrize("when", [at_night("before"), "after"])
def test_one_reset_is_not_noticed(
    client: KubeClient, proxy: ResetProxy, undisturbed: tuple[int, Any], when: When
) -> None:
    num_requests, result = undisturbed
    for moment in range(num_requests):
        proxy.plant(moment, 1, when)
        assert Run(proxy).up() == "", moment
        assert proxy.pending == 0
        assert _content(client) == result, moment
        _emptied(client)


@pytest.mark.parametrize("when", [at_night("before"), "after"])
def test_resets_in_a_row_end_in_one_line_and_the_next_run_heals(
    client: KubeClient, proxy: ResetProxy, undisturbed: tuple[int, Any], when: When
) -> None:
    num_requests, result = undisturbed
    for moment in range(num_requests):
        proxy.plant(moment, BURST, when)
        run = Run(proxy)
        told = run.up()
        assert f"{proxy.endpoint}: no answer: " in told, moment
        assert "\n" not in told
        assert run.up() == "", moment
        assert _content(client) == result, moment
        _emptied(client)
