"""Which records of Helm go before a release is made again: those of this stack, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from infra.clients.kube import arrival, drop_unfinished, drop_unknown

CAME = "2026-11-21T10:00:00Z"
Object = dict[str, Any]


class Cluster:
    """Objects by name; what is made now was made at `now`."""

    def __init__(self, *objects: Object, now: str) -> None:
        self.objects = {each["metadata"]["name"]: each for each in objects}
        self._now = now
        self.asked: list[tuple[Any, ...]] = []

    def get(self, target: Object) -> Object | None:
        return self.objects.get(target["metadata"]["name"])

    def apply(self, target: Object) -> Object:
        metadata = {**target["metadata"], "creationTimestamp": self._now}
        self.objects[metadata["name"]] = {**target, "metadata": metadata}
        return self.objects[metadata["name"]]

    def list(self, version: str, kind: str, namespace: str, label: str) -> list[Object]:
        self.asked.append((version, kind, namespace, label))
        return [each for each in self.objects.values() if each["kind"] == kind]

    def delete(self, target: Object) -> bool:
        return self.objects.pop(target["metadata"]["name"], None) is not None


def record(name: str, at: str) -> Object:
    return {"kind": "Secret", "metadata": {"name": name, "creationTimestamp": at}}


def came(at: str) -> Object:
    wanted = arrival("own")
    return {**wanted, "metadata": {**wanted["metadata"], "creationTimestamp": at}}


def drop(cluster: Any) -> list[str]:
    return drop_unknown(cluster, "own", release="kruise", namespace="kruise-system")


@pytest.mark.parametrize("at", [CAME, "2026-11-21T10:00:01Z", "2026-12-01T00:00:00Z"])
def test_a_record_of_an_earlier_run_of_the_stack_goes(at: str) -> None:
    cluster = Cluster(came(CAME), record("sh.helm.release.v1.kruise.v1", at), now="later")
    assert drop(cluster) == ["sh.helm.release.v1.kruise.v1"]
    assert set(cluster.objects) == {"soperator-stack-own"}
    assert cluster.asked == [("v1", "Secret", "kruise-system", "owner=helm,name=kruise")]


def test_a_release_that_was_there_before_the_stack_came_is_left_to_its_owner() -> None:
    older = record("sh.helm.release.v1.kruise.v1", "2026-11-21T09:59:59Z")
    cluster = Cluster(older, now=CAME)
    assert drop(cluster) == []
    assert drop(cluster) == []
    assert "sh.helm.release.v1.kruise.v1" in cluster.objects


def test_the_mark_of_the_first_run_is_never_made_anew() -> None:
    cluster = Cluster(now=CAME)
    assert drop(cluster) == []
    again = Cluster(*cluster.objects.values(), now="2027-01-01T00:00:00Z")
    again.objects["r"] = record("r", "2026-12-01T00:00:00Z")
    assert drop(again) == ["r"]


def test_only_a_change_that_was_never_finished_is_asked_for_before_a_change() -> None:
    cluster = Cluster(came(CAME), record("sh.helm.release.v1.kruise.v2", CAME), now="later")
    dropped = drop_unfinished(cluster, "own", release="kruise", namespace="kruise-system")  # type: ignore[arg-type]
    assert dropped == ["sh.helm.release.v1.kruise.v2"]
    ((*_, label),) = cluster.asked
    assert label == (
        "owner=helm,name=kruise,status in (pending-install, pending-upgrade, pending-rollback)"
    )
