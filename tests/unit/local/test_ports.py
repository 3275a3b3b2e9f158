"""Ports of this machine, and what a Kubernetes condition says of a stranger on one."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from infra.kube import client as kube_client
from infra.kube.client import KubeClient
from infra.kube.errors import StuckError, WaitTimeoutError
from infra.kube.kubeconfig import Access
from infra.local import ports
from infra.local.plugins.kubernetes_wait import readiness_of

CLUSTER = {
    "apiVersion": "slurm.nebius.ai/v1",
    "kind": "SlurmCluster",
    "metadata": {"name": "soperator", "namespace": "soperator"},
}


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_port_with_a_listener_is_not_free(taken: int) -> None:
    assert ports.is_listening(taken)
    assert not ports.is_free(taken)


def test_a_port_without_a_listener_is_free(taken: int) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        free = server.getsockname()[1]
    assert ports.is_free(free)
    assert not ports.is_listening(free)


@pytest.mark.parametrize("words", [ports.in_use, ports.login_in_use])
def test_both_refusals_name_the_port_and_are_known_as_such(words: object) -> None:
    text = words(30022)  # pyright: ignore
    assert "port 30022 " in text
    assert ports.tells_of_use(text)


def live(reason: str, message: str) -> dict[str, object]:
    conditions = [{"type": "LoginAvailable", "status": "False", "reason": reason}]
    conditions[0]["message"] = message
    return {**CLUSTER, "status": {"phase": "Reconciling", "conditions": conditions}}


def wait_for(monkeypatch: pytest.MonkeyPatch, answer: dict[str, object]) -> None:
    """A wait of no more than a second for a cluster that always gives this answer."""
    wait = readiness_of(CLUSTER)
    assert wait is not None
    made = KubeClient(Access(server="http://127.0.0.1:1"))
    monkeypatch.setattr(KubeClient, "get", lambda _self, _target: answer)
    monkeypatch.setattr(kube_client, "_STUCK_S", 0.0)
    made.wait_for(CLUSTER, wait.what, wait.is_met, timeout_s=0, stuck=wait.stuck)


def test_a_wait_ends_at_once_when_a_stranger_holds_the_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = ports.login_in_use(30022)
    with pytest.raises(StuckError) as raised:
        wait_for(monkeypatch, live(ports.PORT_IN_USE, text))
    assert str(raised.value) == f"SlurmCluster soperator/soperator: {text}"


def test_a_wait_for_anything_else_goes_on_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WaitTimeoutError, match="munge"):
        wait_for(monkeypatch, live("Missing", "waits for munge"))
