"""What the clean-up takes out of a cluster, and what it leaves alone."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from infra.clients.errors import UnreachableError, WaitTimeoutError
from infra.clients.kube import KubeClient
from infra.providers.engine.provider import UNKNOWN, Dispatch, ProviderError
from infra.providers.soperator.teardown import CSI_DRIVER, TYPE, Cleaner, TeardownProvider

OURS = "soperator"
LEASE = ("Lease", "kube-system", "kube-controller-manager")


class Cluster:
    """The objects of a cluster by kind, namespace and name, as the client shows them."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.deleted: list[str] = []

    def add(self, kind: str, name: str, namespace: str = "", **body: Any) -> None:
        metadata: dict[str, Any] = {"name": name, "finalizers": body.pop("finalizers", [])}
        if namespace:
            metadata["namespace"] = namespace
        self.objects[kind, namespace, name] = {"kind": kind, "metadata": metadata, **body}

    def list(self, _api: str, kind: str, namespace: str | None = None) -> list[dict[str, Any]]:
        wanted = ("", namespace) if namespace is None else (namespace,)
        return [
            one
            for (own, place, _), one in self.objects.items()
            if own == kind and (namespace is None or place in wanted)
        ]

    def get(self, target: dict[str, Any]) -> dict[str, Any] | None:
        metadata = target["metadata"]
        return self.objects.get((target["kind"], metadata.get("namespace", ""), metadata["name"]))

    def delete(self, target: dict[str, Any]) -> bool:
        self.deleted.append(f"{target['kind']} {target['metadata']['name']}")
        if not target["metadata"]["finalizers"]:
            self._drop(target)
        return True

    def wait_gone(self, target: dict[str, Any], *, timeout_s: float, cancelled: Any) -> None:
        if self.get(target) is not None:
            raise WaitTimeoutError(f"{target['metadata']['name']}: waited {timeout_s:g} s")

    def merge_patch(self, target: dict[str, Any], patch: dict[str, Any]) -> None:
        assert patch == {"metadata": {"finalizers": None}}
        self._drop(target)

    def _drop(self, target: dict[str, Any]) -> None:
        metadata = target["metadata"]
        del self.objects[target["kind"], metadata.get("namespace", ""), metadata["name"]]


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture
def cleaner(cluster):
    return Cleaner(
        cluster,
        [OURS],
        cancelled=threading.Event(),
        say=lambda _: None,
        gone_s=0,
        held_s=0,
    )


def hook(namespace: str) -> list[dict[str, Any]]:
    return [{"clientConfig": {"service": {"name": "s", "namespace": namespace}}}]


def volume(cluster: Cluster, name: str, namespace: str, policy: str, driver: str = CSI_DRIVER):
    cluster.add(
        "PersistentVolume",
        name,
        spec={
            "persistentVolumeReclaimPolicy": policy,
            "claimRef": {"namespace": namespace},
            "csi": {"driver": driver, "volumeHandle": f"disk-{name}"},
        },
    )


def test_webhooks_go_first_then_budgets_balancers_and_claims(cluster, cleaner):
    """A webhook that nobody answers refuses every deletion after it."""
    cluster.add("PersistentVolumeClaim", "data", OURS, spec={})
    cluster.add("Service", "login", OURS, spec={"type": "LoadBalancer"})
    cluster.add("PodDisruptionBudget", "budget", OURS)
    cluster.add("MutatingWebhookConfiguration", "mutate", webhooks=hook(OURS))
    cluster.add("ValidatingWebhookConfiguration", "validate", webhooks=hook(OURS))
    assert cleaner.clean() == 5
    assert cluster.deleted == [
        "ValidatingWebhookConfiguration validate",
        "MutatingWebhookConfiguration mutate",
        "PodDisruptionBudget budget",
        "Service login",
        "PersistentVolumeClaim data",
    ]
    assert cleaner.left() == []


def test_what_is_in_other_namespaces_or_of_another_kind_stays(cluster, cleaner):
    cluster.add("PersistentVolumeClaim", "data", "theirs", spec={})
    cluster.add("Service", "inner", OURS, spec={"type": "ClusterIP"})
    cluster.add("Service", "door", "theirs", spec={"type": "LoadBalancer"})
    cluster.add("ValidatingWebhookConfiguration", "cloud", webhooks=hook("kube-system"))
    cluster.add("ValidatingWebhookConfiguration", "url", webhooks=[{"clientConfig": {"url": "x"}}])
    assert cleaner.clean() == 0
    assert len(cluster.objects) == 5


def test_only_disks_that_go_with_their_claim_are_ours_to_remove(cluster, cleaner):
    volume(cluster, "a", OURS, "Delete")
    volume(cluster, "kept", OURS, "Retain")
    volume(cluster, "foreign", "theirs", "Delete")
    volume(cluster, "nfs", OURS, "Delete", driver="nfs.csi.k8s.io")
    assert cleaner.disks() == ["disk-a"]


def test_a_claim_that_no_pod_uses_is_freed_of_its_finalizer(cluster, cleaner):
    held = ["kubernetes.io/pvc-protection"]
    cluster.add("PersistentVolumeClaim", "data", OURS, spec={}, finalizers=held)
    assert cleaner.clean() == 1
    assert cluster.objects == {}


def test_a_claim_that_a_pod_uses_is_waited_for_and_named(cluster, cleaner):
    held = ["kubernetes.io/pvc-protection"]
    cluster.add("PersistentVolumeClaim", "data", OURS, spec={}, finalizers=held)
    claim = {"persistentVolumeClaim": {"claimName": "data"}}
    cluster.add("Pod", "p", OURS, spec={"volumes": [claim]})
    with pytest.raises(WaitTimeoutError, match="data"):
        cleaner.clean()
    assert cleaner.left() == ["PersistentVolumeClaim soperator/data"]


INPUTS = {
    "cluster_id": "mk8scluster-1",
    "project_id": "project-1",
    "kubeconfig": "{}",
    "namespaces": [OURS],
}


def test_inputs_are_refused_by_name():
    provider = TeardownProvider()
    assert provider.check({}, INPUTS) == (INPUTS, [])
    later = {**INPUTS, "cluster_id": UNKNOWN, "kubeconfig": UNKNOWN}
    assert provider.check({}, later)[1] == []
    _, problems = provider.check({}, {**INPUTS, "cluster_id": "", "namespace": "x"})
    assert [path for path, _ in problems] == ["namespace", "cluster_id"]


def test_another_cluster_is_another_clean_up_and_a_new_access_is_not():
    provider = TeardownProvider()
    found = provider.diff("i", INPUTS, INPUTS, {**INPUTS, "cluster_id": "mk8scluster-2"})
    assert found.replaces == ("cluster_id",)
    assert found.delete_before_replace
    found = provider.diff("i", INPUTS, INPUTS, {**INPUTS, "kubeconfig": "new"})
    assert found.replaces == ()
    assert "kubeconfig" in found.detailed


def test_nothing_happens_while_the_stack_lives():
    provider = TeardownProvider()
    id_, state = provider.create("urn", INPUTS)
    assert state == INPUTS
    assert id_
    assert provider.update("urn", id_, state, {**INPUTS, "kubeconfig": "n"})


def test_one_plugin_hands_each_type_to_its_provider():
    teardown = TeardownProvider()
    plugin = Dispatch({TYPE: teardown})
    assert plugin.of(TYPE).check({}, INPUTS) == (INPUTS, [])
    assert teardown.cancelled is plugin.cancelled
    with pytest.raises(ProviderError, match=f"soperator:x:Y: this plugin has only {TYPE}"):
        plugin.of("soperator:x:Y")


SILENT = json.dumps(
    {"clusters": [{"cluster": {"server": "https://127.0.0.1:1"}}], "users": [{"user": {}}]}
)
STATE = {
    "cluster_id": "mk8scluster-1",
    "project_id": "project-1",
    "kubeconfig": SILENT,
    "namespaces": [OURS],
}


def test_an_api_server_that_falls_silent_during_the_clean_up_is_not_gone(monkeypatch):
    """Else the clean-up had succeeded, and disks and load balancers were paid on."""

    def silent(*_: Any) -> Any:
        raise UnreachableError("https://kube: no answer: timed out")

    monkeypatch.setattr(KubeClient, "version", lambda _: "v1.36.0")
    monkeypatch.setattr(KubeClient, "list", silent)
    with pytest.raises(ProviderError, match=r"mk8scluster-1: .*no answer.*run the command again"):
        TeardownProvider().delete("id", STATE)


def test_an_interruption_is_no_sign_of_an_api_server_that_is_gone():
    provider = TeardownProvider()
    provider.cancelled.set()
    with pytest.raises(ProviderError, match=r"no answer.*run the command again"):
        provider.delete("id", STATE)
