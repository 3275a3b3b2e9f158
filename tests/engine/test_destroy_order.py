"""Destroy under the real engine: its order, what no resource owns, and a cluster that is gone.

Two clusters of one project on one emulator; a real API server stands for the first.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from infra.clients.kube import KubeClient
from infra.local.kube import api_server
from infra.local.kube.api_server import ApiServerConfig
from infra.providers.nebius.api import Api
from infra.providers.nebius.schema import Schema
from infra.providers.nebius.sdk import shared_sdk
from infra.providers.soperator.teardown import CLAIM_LABEL, CSI_DRIVER, destroy
from infra.state import Cache
from tests.engine.nebius_project import (
    PROJECT,
    Emulator,
    Project,
    pulumi_binary,
    running_emulator,
)
from tests.local.kube_server import kubeconfig, running_cluster

pytestmark = [
    pytest.mark.engine,
    pytest.mark.local,
    pytest.mark.skipif(pulumi_binary() is None, reason="no pulumi: run `make setup`"),
    pytest.mark.usefixtures("forks"),
]
PROGRAM = """
import os
from pathlib import Path

import pulumi

from infra.components.base import Kubernetes
from infra.components.kube_cluster import KubeCluster
from infra.components.kube_cluster import Network
from infra.components.kube_cluster import NodeGroups
from infra.components.storage import Filesystems
from infra.components.soperator import Soperator
from infra.components.kube_cluster import Teardown
from stacks.load import load_stack
from dataclasses import replace

spec = load_stack("local", environ=os.environ)
network = Network(spec)
filesystems = Filesystems(spec)
kube = KubeCluster(spec, network)
nodes = NodeGroups(spec, kube, network, filesystems.ids)
kube.kubeconfig = pulumi.Output.secret(os.environ["CLUSTER"])
teardown = Teardown(spec, kube, pulumi.ResourceOptions(depends_on=[nodes]))
provider = Kubernetes("kube", kube.kubeconfig)
soperator = Soperator(spec, provider, pulumi.ResourceOptions(depends_on=[teardown]))
pulumi.export("cluster_id", kube.cluster_id)
"""
NAMESPACE = "soperator-system"
OURS_LABELS = {CLAIM_LABEL: NAMESPACE}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServerConfig]:
    with running_cluster(tmp_path_factory.mktemp("kube")) as config:
        yield config


@pytest.fixture
def emulator(
    tmp_path: Path, cluster: ApiServerConfig, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Emulator]:
    monkeypatch.setenv("SOPERATOR_LOCAL_KUBE_ENDPOINT", cluster.endpoint)
    monkeypatch.setenv("SOPERATOR_LOCAL_KUBE_CA_FILE", str(cluster.ca_file))
    with running_emulator(tmp_path / "emulator") as running:
        yield running


@pytest.fixture
def project(
    tmp_path: Path, emulator: Emulator, cluster: ApiServerConfig, public_key_file: Path
) -> Project:
    folder = tmp_path / "project"
    folder.mkdir()
    made = Project(folder, emulator.port)
    (folder / "__main__.py").write_text(PROGRAM)
    made.environ["CLUSTER"] = kubeconfig(cluster)
    made.environ["SOPERATOR_SSH_PUBLIC_KEY_FILE"] = str(public_key_file)
    made.up()
    return made


@pytest.fixture
def api(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """Another user of the project."""
    monkeypatch.setenv("SOPERATOR_NEBIUS_ENDPOINT", f"http://127.0.0.1:{emulator.port}")
    monkeypatch.setenv("NEBIUS_IAM_TOKEN", "local-token")
    shared_sdk.cache_clear()
    yield Api(Schema(Cache.from_environ().root), threading.Event())
    if shared_sdk.cache_info().currsize:
        shared_sdk().sync_close()
    shared_sdk.cache_clear()


def make(api: Api, service: str, name: str, spec: Any, labels: Any = None) -> str:
    """The id of a new resource of the project."""
    found = api.schema.services[f"nebius.{service}"]
    metadata = {"parent_id": PROJECT, "name": name, "labels": labels or {}}
    request = api.request(found, "Create", metadata=metadata, spec=spec)
    return api.wait(found, api.call(found, "Create", request)).resource_id


def disk(api: Api, name: str) -> str:
    """A disk as the CSI driver makes it: its labels name a namespace, and no cluster."""
    spec = {"type": 1, "size_gibibytes": 30}
    return make(api, "compute.v1.DiskService", name, spec, OURS_LABELS)


def second_cluster(api: Api) -> tuple[str, str]:
    """Another cluster of the same project, and a disk of it that nothing uses now."""
    spec = {"control_plane": {"version": "1.33", "subnet_id": "vpcsubnet-e00pdefault"}}
    return make(api, "mk8s.v1.ClusterService", "other-kube", spec), disk(api, "pvc-other")


def plant(client: KubeClient, disk_id: str) -> list[dict[str, Any]]:
    """What charts and controllers leave, with a webhook that nobody answers any more."""
    place = {"namespace": NAMESPACE}
    client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    objects: list[dict[str, Any]] = [
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "budget", **place},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "soperator-login-svc", **place},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 22, "name": "ssh"}]},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "database", **place},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "volumeName": f"pv-{disk_id}",
                "storageClassName": "",
                "resources": {"requests": {"storage": "30Gi"}},
            },
        },
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "kruise-validating"},
            "webhooks": [
                {
                    "name": "all.kruise.io",
                    "admissionReviewVersions": ["v1"],
                    "sideEffects": "None",
                    "failurePolicy": "Fail",
                    "clientConfig": {"service": {"name": "nobody", **place}},
                    "rules": [
                        {
                            "apiGroups": ["", "policy"],
                            "apiVersions": ["v1"],
                            "operations": ["DELETE"],
                            "resources": ["persistentvolumeclaims", "poddisruptionbudgets"],
                        }
                    ],
                }
            ],
        },
    ]
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"pv-{disk_id}"},
        "spec": {
            "capacity": {"storage": "30Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": NAMESPACE, "name": "database"},
            "csi": {"driver": CSI_DRIVER, "volumeHandle": disk_id},
        },
    }
    client.apply(volume)
    for one in objects:
        client.apply(one)
    return objects


def ids(emulator: Emulator, kind: str) -> set[str]:
    """Ids of one kind that the cloud has."""
    path = emulator.folder / "nebius.sqlite"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        rows = database.execute("SELECT id FROM resources WHERE id LIKE ?", (f"{kind}-%",))
        return {id_ for (id_,) in rows}


def deleted(output: str) -> list[str]:
    """Short types in the order in which their deletion ended."""
    return re.findall(r"^ -  \S*?(\w+) \S+ deleted", output, flags=re.MULTILINE)


@pytest.mark.feature("S000-02")
def test_a_destroy_goes_from_the_checks_to_the_address_and_leaves_nothing(
    project: Project, emulator: Emulator, api: Api, cluster: ApiServerConfig
) -> None:
    client = KubeClient(cluster.access())
    other_cluster, other_disk = second_cluster(api)
    own_disk = disk(api, "pvc-own")
    planted = plant(client, own_disk)
    output = project.run("destroy", "--yes", "--skip-preview")
    assert [one for one in planted if client.get(one) is not None] == []
    assert "1 disks of" in output
    assert ids(emulator, "computedisk") == {other_disk}
    assert ids(emulator, "mk8scluster") == {other_cluster}
    assert ids(emulator, "mk8snodegroup") == ids(emulator, "vpcallocation") == set()
    order = deleted(output)
    names = [order.index(kind) for kind in ("Release", "Teardown", "NodeGroup", "Cluster")]
    assert names == sorted(names)
    assert order.index("Cluster") < order.index("Allocation")
    last_release = len(order) - 1 - order[::-1].index("Release")
    assert last_release < order.index("Teardown")
    releases = re.findall(r"Release (\S+) deleted", output)
    assert releases.index("soperatorchecks") < releases.index("soperator")
    assert releases.index("soperator") < releases.index("kruise")


def test_the_verb_drops_what_ran_in_a_cluster_that_is_gone(
    project: Project,
    emulator: Emulator,
    cluster: ApiServerConfig,
    capfd: pytest.CaptureFixture[str],
) -> None:
    said: list[str] = []

    def end() -> int:
        return destroy(
            "test",
            root=project.folder,
            environ=project.environ,
            options=["--yes", "--skip-preview"],
            exists=lambda id_: id_ in ids(emulator, "mk8scluster"),
            say=said.append,
            pauses_s=(0.0, 0.0),
        )

    api_server.stop(cluster)
    try:
        status = end()
    finally:
        api_server.start(cluster)
    assert status == 0, capfd.readouterr().out
    assert len(said) == 3
    assert "does not answer; asking again" in said[0]
    assert "though cluster mk8scluster-" in said[2]
    assert "ends with the cluster (PULUMI_K8S_DELETE_UNREACHABLE=true, in this run only)" in said[2]
    assert ids(emulator, "mk8snodegroup") == ids(emulator, "mk8scluster") == set()
    # A stack that is gone has no cluster to ask for.
    assert end() == 0
    assert len(said) == 3


def test_the_verb_uninstalls_from_a_cluster_that_answers(
    project: Project, emulator: Emulator, cluster: ApiServerConfig
) -> None:
    said: list[str] = []
    status = destroy(
        "test",
        root=project.folder,
        environ=project.environ,
        options=["--yes", "--skip-preview"],
        exists=lambda _: True,
        say=said.append,
    )
    assert (status, said) == (0, [])
    client = KubeClient(cluster.access())
    label = "local.soperator/release"
    assert client.list("v1", "ConfigMap", label=label) == []


def releases_of(project: Project) -> list[str]:
    """URNs of the Helm releases of the stack."""
    resources = json.loads(project.run("stack", "export"))["deployment"]["resources"]
    return [each["urn"] for each in resources if each["type"] == "kubernetes:helm.sh/v3:Release"]


def test_a_cluster_that_is_gone_does_not_hold_the_rest(
    project: Project, emulator: Emulator, api: Api, cluster: ApiServerConfig
) -> None:
    _, other_disk = second_cluster(api)
    own_disk = disk(api, "pvc-own")
    plant(KubeClient(cluster.access()), own_disk)
    api_server.stop(cluster)
    try:
        refused = project.run("destroy", "--yes", "--skip-preview", fails=True)
        assert "can't delete Helm Release with unreachable cluster" in refused
        project.environ["PULUMI_K8S_DELETE_UNREACHABLE"] = "true"
        refused = project.run("destroy", "--yes", "--skip-preview", fails=True)
        assert "can't delete Helm Release with unreachable cluster" in refused
        assert ids(emulator, "mk8snodegroup")
        # As `soperator cluster destroy` does: only a refresh forgets a release.
        releases = [f"--target={urn}" for urn in releases_of(project)]
        project.run("refresh", "--yes", "--skip-preview", *releases)
        output = project.run("destroy", "--yes", "--skip-preview")
    finally:
        api_server.start(cluster)
    assert "does not answer: nothing is removed from it" in output
    assert ids(emulator, "mk8snodegroup") == ids(emulator, "vpcallocation") == set()
    # Which cluster an unused disk was of cannot be told: both are named, none is touched.
    assert ids(emulator, "computedisk") == {own_disk, other_disk}
    told = next(x for x in output.splitlines() if "disks of claims that nothing uses" in x)
    assert own_disk in told
    assert other_disk in told
    assert os.environ.get("PULUMI_K8S_DELETE_UNREACHABLE") is None
