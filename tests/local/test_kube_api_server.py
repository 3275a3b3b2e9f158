"""The local API server starts, survives the death of either half, and says what is in its way."""

from __future__ import annotations

import os
import signal
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from cost.prices.book import PriceBook
from cost.resources.estimate import estimate
from infra.clients.errors import KubeError
from infra.clients.kube import Access, KubeClient
from infra.local import process
from infra.local.kube import api_server
from infra.local.kube.api_server import install_crds, load_crds
from infra.local.process import LocalError
from infra.render.charts import MONITORING
from infra.render.kube_job import pytorch_job, service_and_job, training_pods
from infra.render.monitoring.objects import config_map, custom_resources
from infra.reports.acceptance import comparison
from stacks.load import load_stack
from stacks.spec.cluster import Observability
from tests.local.kube_server import config_in, running_cluster
from tests.nightly import at_night

pytestmark = pytest.mark.local

NOTE = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "note", "namespace": "default"},
    "data": {"text": "kept"},
}


def listening(family):
    """(address, port) of every listening socket, from /proc/net."""
    rows = [line.split() for line in Path(f"/proc/net/{family}").read_text().splitlines()[1:]]
    local = [row[1].split(":") for row in rows if row[3] == "0A"]
    return [(host, int(port, 16)) for host, port in local]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("kube")) as config:
        yield config


@pytest.mark.parametrize("victim", ["etcd", at_night("kube-apiserver")])
def test_what_was_stored_survives_a_kill_of_either_process(cluster, victim):
    client = KubeClient(cluster.access())
    client.apply(NOTE)
    found = process.find(victim, cluster.run_dir)
    os.kill(found.pid, signal.SIGKILL)
    api_server.start(cluster)
    assert api_server.is_ready(cluster)
    assert client.get(NOTE)["data"] == {"text": "kept"}


@pytest.mark.parametrize("victim", [at_night("etcd"), "kube-apiserver"])
def test_a_process_that_dies_only_while_a_start_waits_for_it_is_started_anew(cluster, victim):
    """A killed process is there until the kernel has its memory back; a stopped one plays it.

    It ends after the start's first look at it (2 s, the time limit of one question).
    """
    found = process.find(victim, cluster.run_dir)
    os.kill(found.pid, signal.SIGSTOP)
    killer = threading.Timer(3, os.kill, (found.pid, signal.SIGKILL))
    killer.start()
    api_server.start(cluster)
    killer.join()
    assert api_server.is_ready(cluster)
    assert process.find(victim, cluster.run_dir).pid != found.pid


@pytest.mark.feature("S001-17", "S001-74", "S001-77", "S001-78")
def test_the_job_of_an_acceptance_is_one_that_kubernetes_takes(cluster, tmp_path):
    """Strict validation: a field that no version of the API knows is refused."""
    key = tmp_path / "id.pub"
    key.write_text(f"ssh-ed25519 {'A' * 68} a\n")
    spec = load_stack("h100-prod", environ={"SOPERATOR_SSH_PUBLIC_KEY_FILE": str(key)})
    job = {"name": "accept", "image": "registry.example/soperator:sha-1", "nodes": 2}
    client = KubeClient(cluster.access())
    pods = comparison.kube_pods(spec, spec.nodes.workers[0], **job)
    service, policy, batch = service_and_job(pods)
    assert client.apply(service)["spec"]["clusterIP"] == "None"
    assert client.apply(policy)["spec"] == policy["spec"]
    (container,) = client.apply(batch)["spec"]["template"]["spec"]["containers"]
    asks = {"cpu": "64", "memory": "1400Gi", "nvidia.com/gpu": "8"}
    assert container["resources"] == {"limits": asks, "requests": asks}
    batch["spec"]["template"]["spec"]["subdomian"] = "accept"
    with pytest.raises(KubeError, match="subdomian"):
        client.apply(batch)
    for each in (batch, policy, service):
        client.delete(each)
        assert client.get(each) is None


@pytest.mark.feature("S004-37")
def test_a_training_job_is_one_that_kubernetes_takes(cluster, tmp_path):
    """The same pods stand in the PyTorchJob, whose own fields a schema checks."""
    key = tmp_path / "id.pub"
    key.write_text(f"ssh-ed25519 {'A' * 68} a\n")
    spec = load_stack("h100-prod", environ={"SOPERATOR_SSH_PUBLIC_KEY_FILE": str(key)})
    declared = next(job for job in spec.jobs if job.name == "finetune")
    client = KubeClient(cluster.access())
    space = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": spec.cluster.namespace},
    }
    client.apply(space)
    pods = training_pods(spec, declared, image="registry.example/soperator-jobs:sha-1")
    objects = service_and_job(pods)
    for each in objects:
        client.apply(each)
    replicas = pytorch_job(pods)[1]["spec"]["pytorchReplicaSpecs"]
    for name, each in replicas.items():
        meta = {"name": name.lower(), "namespace": pods.namespace}
        template = each["template"]
        pod = {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": meta,
            "template": template,
        }
        objects.append(client.apply(pod))
    pod["template"]["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(KubeError, match="volumeMount"):
        client.apply(pod)
    for each in objects:
        client.delete(each)


def test_the_rules_of_a_watched_stack_are_taken_by_kubernetes(cluster, tmp_path):
    """So that a stack with observability comes up here too, where no operator evaluates them."""
    key = tmp_path / "id.pub"
    key.write_text(f"ssh-ed25519 {'A' * 68} a\n")
    spec = load_stack("h100-prod", environ={"SOPERATOR_SSH_PUBLIC_KEY_FILE": str(key)})
    watched = replace(
        spec,
        soperator=replace(spec.soperator, observability=Observability.SMALL, slack_notifier=True),
    )
    book = PriceBook.load(spec.prices)
    costs = estimate(watched, book)
    client = KubeClient(cluster.access())
    client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": MONITORING}})
    pages = {"apiVersion": "v1", "kind": "ConfigMap", **config_map(costs)}
    rules = custom_resources(watched, costs)
    for each in (pages, *rules):
        assert client.apply(each)["metadata"]["namespace"] == MONITORING
    rules[0]["spec"]["groups"][0]["rules"][0]["fro"] = "1m"
    with pytest.raises(KubeError, match="fro"):
        client.apply(rules[0])
    for each in (pages, *rules):
        client.delete(each)


def test_a_second_start_keeps_the_processes(cluster):
    before = [process.find(name, cluster.run_dir).pid for name in ("etcd", "kube-apiserver")]
    api_server.start(cluster)
    after = [process.find(name, cluster.run_dir).pid for name in ("etcd", "kube-apiserver")]
    assert before == after


def test_only_the_token_opens_the_door(cluster):
    stranger = Access(
        server=cluster.endpoint, ca_pem=cluster.ca_file.read_text(), static_token="guess"
    )
    with pytest.raises(KubeError, match="Unauthorized"):
        KubeClient(stranger).get(NOTE)


def test_it_listens_on_loopback_only(cluster):
    found = [*listening("tcp"), *listening("tcp6")]
    hosts = {host for host, port in found if port == cluster.api_port}
    assert hosts == {"0100007F"}  # 127.0.0.1, as the kernel writes it


def test_private_keys_are_readable_by_their_owner_only(cluster):
    secret = [*(cluster.folder / "pki").glob("*.key"), cluster.folder / "tokens.csv"]
    assert len(secret) == 3
    assert {path.stat().st_mode & 0o777 for path in secret} == {0o600}


def test_installing_the_kinds_again_changes_nothing(cluster):
    client = KubeClient(cluster.access())
    before = [client.get(crd)["metadata"]["resourceVersion"] for crd in load_crds()]
    install_crds(client)
    assert [client.get(crd)["metadata"]["resourceVersion"] for crd in load_crds()] == before


def test_a_port_in_use_is_named_with_the_setting_that_moves_it(tmp_path):
    config = config_in(tmp_path)
    with socket.socket() as other:
        # As servers do: what is left of an earlier test's connections is no hindrance.
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", config.api_port))
        other.listen()
        port = config.api_port
        try:
            with pytest.raises(LocalError, match=f"port {port} .* SOPERATOR_LOCAL_PORT_BASE"):
                api_server.start(config)
        finally:
            api_server.stop(config)


def test_stopping_leaves_no_process(tmp_path):
    config = config_in(tmp_path)
    api_server.start(config)
    started = [process.find(name, config.run_dir) for name in ("etcd", "kube-apiserver")]
    api_server.stop(config)
    assert [found.alive for found in started] == [False, False]
    assert not api_server.is_ready(config)
