"""A real API server refuses the pods that it refused of the real operator (C2), no others."""

from __future__ import annotations

import pytest

from infra.clients.kube import KubeClient
from infra.local.kube import api_server
from infra.operate.conformance import come_up
from tests.local.kube_server import config_in
from tests.unit.conformance.recorded import objects, one

pytestmark = pytest.mark.local


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    config = config_in(tmp_path_factory.mktemp("kube"))
    try:
        api_server.start(config)
        made = KubeClient(config.access())
        made.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "soperator"}})
        yield made
    finally:
        api_server.stop(config)


def test_pods_as_recorded_are_taken(client):
    looked = come_up.refused(client, come_up.pods_of(objects()))
    assert (looked.counted, looked.obstacles) == ("2 pods", ())


@pytest.mark.feature("S000-77")
def test_a_path_that_the_operator_mounts_itself_is_refused(client):
    found = objects()
    spec = one("StatefulSet", "worker-fabric", found)["spec"]["template"]["spec"]
    spec["volumes"].append({"name": "memory", "emptyDir": {"medium": "Memory"}})
    mount = {"name": "memory", "mountPath": "/mnt/jail.upper/mnt/memory"}
    spec["containers"][0]["volumeMounts"].append(mount)
    (obstacle,) = come_up.refused(client, come_up.pods_of(found)).obstacles
    assert obstacle.subject == "pods of StatefulSet soperator/worker-fabric"
    assert 'Invalid value: "/mnt/jail.upper/mnt/memory": must be unique' in obstacle.cause
