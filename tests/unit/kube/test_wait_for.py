"""A long wait for a Kubernetes object tells what it waits for, once for each change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from infra.clients import kube as kube_client
from infra.clients.errors import KubeError, UnreachableError, WaitTimeoutError
from infra.clients.kube import Access, KubeClient

CLUSTER = {
    "apiVersion": "slurm.nebius.ai/v1",
    "kind": "SlurmCluster",
    "metadata": {"name": "soperator", "namespace": "soperator"},
}


def waiting(phase: str, message: str = "") -> dict[str, Any]:
    condition = {"type": "LoginAvailable", "status": "False", "message": message}
    return {**CLUSTER, "status": {"phase": phase, "conditions": [condition]}}


def test_each_change_of_the_status_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [
        waiting("Creating", "waits for munge"),
        waiting("Creating", "waits for munge"),
        waiting("Creating", "waits for sshd"),
        {**CLUSTER, "status": {"phase": "Available"}},
    ]
    monkeypatch.setattr(KubeClient, "get", lambda _self, _target: answers.pop(0))
    monkeypatch.setattr(kube_client, "_QUIET_S", -1.0)
    monkeypatch.setattr(kube_client, "_POLL_S", 0.0)
    told: list[str] = []
    KubeClient(Access(server="http://127.0.0.1:1")).wait_for(
        CLUSTER,
        "phase Available",
        lambda live: live["status"]["phase"] == "Available",
        timeout_s=300,
        log=told.append,
    )
    assert [line.partition("(")[2].partition(")")[0] for line in told] == [
        "waits for munge",
        "waits for sshd",
    ]
    assert told[0].startswith("SlurmCluster soperator/soperator: phase 'Creating'; LoginAvailable")
    assert all(line.endswith("of at most 300 s passed") for line in told)


def _waits_through(
    monkeypatch: pytest.MonkeyPatch,
    *answers: dict[str, Any] | Exception,
    timeout_s: float = 300,
    log: Callable[[str], None] = print,
) -> Any:
    left = list(answers)

    def get(_self: KubeClient, _target: Any) -> dict[str, Any]:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(KubeClient, "get", get)
    monkeypatch.setattr(kube_client, "_POLL_S", 0.0)
    client = KubeClient(Access(server="http://127.0.0.1:1"))
    return client.wait_for(
        CLUSTER,
        "its end",
        lambda live: live["status"]["phase"] == "Available",
        timeout_s=timeout_s,
        log=log,
    )


def test_a_lost_answer_does_not_end_a_wait_of_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore went on without whoever waited for it, and was begun once more beside it."""
    lost = UnreachableError("https://kube: no answer: timed out")
    busy = KubeError("etcdserver: request timed out", status=500)
    done = {**CLUSTER, "status": {"phase": "Available"}}
    assert _waits_through(monkeypatch, lost, waiting("Creating"), busy, lost, done) == done


def test_an_api_server_that_stays_away_or_refuses_ends_a_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(KubeError, match="forbidden"):
        _waits_through(monkeypatch, KubeError("forbidden", status=403))
    monkeypatch.setattr(kube_client, "_AWAY_S", -1.0)
    with pytest.raises(UnreachableError, match="no answer"):
        _waits_through(monkeypatch, UnreachableError("https://kube: no answer: timed out"))


def test_a_wait_without_an_answer_says_so_and_nothing_of_the_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was said not to exist, or to be as it was last seen."""
    lost = UnreachableError("https://kube: no answer: timed out")
    told: list[str] = []
    monkeypatch.setattr(kube_client, "_QUIET_S", -1.0)
    done = {**CLUSTER, "status": {"phase": "Available"}}
    _waits_through(monkeypatch, lost, waiting("Creating"), done, log=told.append)
    assert [line.split("; ")[0] for line in told] == [
        "SlurmCluster soperator/soperator: https://kube: no answer: timed out",
        "SlurmCluster soperator/soperator: phase 'Creating'",
    ]
    with pytest.raises(WaitTimeoutError, match="for its end; https://kube: no answer"):
        _waits_through(monkeypatch, lost, timeout_s=0)


def test_a_wait_for_an_end_outlives_a_lost_first_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended in a KeyError: nothing was seen yet whose finalizers could be told."""
    answers = iter([UnreachableError("https://kube: no answer: timed out"), None])

    def get(_self: KubeClient, _target: Any) -> None:
        if (answer := next(answers)) is not None:
            raise answer

    monkeypatch.setattr(KubeClient, "get", get)
    KubeClient(Access(server="http://127.0.0.1:1")).wait_gone(CLUSTER, timeout_s=300)
