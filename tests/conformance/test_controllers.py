"""kruise, mariadb-operator and k8up, real ones, take what the program and the operator made.

A stack that came up is laid on a fresh API server, without what its operator said about it; then
each controller does its part: sets become pods, the database a set with its claim, a backup a job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from infra.clients.kube_rules import Object, name_of
from infra.local.kube import api_server
from infra.operate.conformance import come_up
from infra.operate.conformance.cluster import ApiServer, Cluster, Running, last_word, running
from infra.operate.conformance.come_up import ComeUp, definitions
from infra.operate.conformance.sources import NotRunError
from infra.providers.soperator.crds import apply_crds
from infra.render import backup
from infra.render.names import kube_object
from tests.ports import free_ports

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(900)]
STACK = "all-keys"
_WAIT_S = 90.0
_SET = ("apps.kruise.io/v1beta1", "StatefulSet")
_OF_SERVER = ("uid", "resourceVersion", "generation", "managedFields", "creationTimestamp")
_LAID = ("Secret", "ConfigMap", "ServiceAccount", "PersistentVolume", "PersistentVolumeClaim")


def laid(one: Object) -> Object:
    """The object as somebody would send it, without its owner, who is not here."""
    dropped = (*_OF_SERVER, "ownerReferences", "finalizers")
    metadata = {key: value for key, value in one["metadata"].items() if key not in dropped}
    kept = {key: value for key, value in one.items() if key != "status"}
    return {**kept, "metadata": metadata}


@pytest.fixture(scope="module")
def way(came_up) -> ComeUp:
    up = came_up(STACK)
    if up.steps["reconciled"].outcome == "NOT RUN":
        raise NotRunError("; ".join(up.steps["reconciled"].not_run))
    return up.way


@pytest.fixture(scope="module")
def cluster(way, sources, tmp_path_factory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("controllers")
    (api,) = free_ports(1)
    with api_server.running(folder, api) as config:
        found = Cluster(
            ApiServer(access=config.access(), certificate=config.certificate, key=config.key)
        )
        # Without kruise's or mariadb-operator's there is no `way`; k8up's lie beside its chart.
        crds, _missing = definitions(sources)
        apply_crds(found.client, crds)
        for rendering in way.renderings:
            for each in rendering.objects:
                if each["kind"] == "PriorityClass":
                    found.accept([each], "default")
        for each in way.live:
            if each["kind"] in _LAID:
                found.accept([laid(each)], each["metadata"].get("namespace", "default"))
            if each["kind"] == "PersistentVolumeClaim":
                # The binder's word; whether it would say so is asked in test_operator.py.
                found.client.merge_patch(
                    laid(each), {"status": {"phase": "Bound"}}, subresource="status"
                )
        yield found
        found.client.close()


def container(way: ComeUp, release: str, name: str) -> Object:
    """The controller's container as its chart renders it with our values."""
    for each in way.of_release(release):
        if each["kind"] == "Deployment":
            for one in each["spec"]["template"]["spec"]["containers"]:
                if one["name"] == name:
                    return one
    raise NotRunError(f"release {release} has no container {name}")


def environment(one: Object, **more: str) -> dict[str, str]:
    return {
        **{each["name"]: each["value"] for each in one.get("env") or [] if "value" in each},
        **more,
    }


def until(what: str, is_met: Callable[[], bool], child: Running) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not is_met():
        child.check()
        told = last_word(child.log)
        assert time.monotonic() < deadline, f"{what}: not after {_WAIT_S:g} s; {told}"
        time.sleep(0.5)


@contextmanager
def kruise(way: ComeUp, sources, cluster: Cluster, folder):
    one = container(way, "kruise", "manager")
    webhook, metrics, health = free_ports(3)
    mine = ("--enable-leader-election", "--metrics-addr", "--health-probe-addr")
    argv = [
        str(sources.program("kruise-manager")),
        *(each for each in one["args"] if each.partition("=")[0] not in mine),
        "--enable-leader-election=false",
        "--enable-pprof=false",
        f"--metrics-addr=127.0.0.1:{metrics}",
        f"--health-probe-addr=127.0.0.1:{health}",
    ]
    # It writes its address and authority into its webhooks by itself.
    own = {"POD_NAMESPACE": "kruise-system", "WEBHOOK_HOST": "127.0.0.1"}
    certificates = str(folder / "certificates")
    env = {**environment(one), **own, "WEBHOOK_PORT": str(webhook)}
    env["WEBHOOK_CERT_DIR"] = certificates
    for each in way.of_release("kruise"):
        if each["kind"].endswith("WebhookConfiguration"):
            cluster.client.apply(each)
        elif each["kind"] in ("Secret", "Service", "Namespace"):
            cluster.accept([each], "kruise-system")
    try:
        with running(argv, server=cluster.server, folder=folder, env=env) as child:
            yield child
    finally:
        # Nobody answers them any more, and every pod would be refused.
        for each in way.of_release("kruise"):
            if each["kind"].endswith("WebhookConfiguration"):
                cluster.client.delete(each)


def test_kruise_makes_the_pods_of_every_set(way, sources, cluster, tmp_path, record_property):
    sets = [each for each in way.live if each["apiVersion"] == _SET[0]]
    wanted = {
        f"{name_of(each)}-{ordinal}"
        for each in sets
        # One after the other, where the set says so: the next once a kubelet has started the last.
        for ordinal in range(
            each["spec"]["replicas"]
            if each["spec"].get("podManagementPolicy") == "Parallel"
            else min(1, each["spec"]["replicas"])
        )
    }
    namespace = sets[0]["metadata"]["namespace"]
    with kruise(way, sources, cluster, tmp_path) as child:
        made: set[str] = set()

        def all_made() -> bool:
            made.update(name_of(each) for each in cluster.client.list("v1", "Pod", namespace))
            return wanted <= made

        def accepted() -> bool:
            return not cluster.accept([laid(each) for each in sets], namespace).refused

        until("the sets", accepted, child)
        until(f"pods {', '.join(sorted(wanted))}", all_made, child)
    record_property("sets of kruise", len(sets))
    record_property("pods of kruise", len(made))


def test_the_database_becomes_a_set_whose_claim_binds(
    way, sources, cluster, tmp_path, record_property
):
    (database,) = [each for each in way.live if each["kind"] == "MariaDB"]
    namespace = database["metadata"]["namespace"]
    one = container(way, "mariadb-operator", "controller")
    metrics, health = free_ports(2)
    own = {"MARIADB_OPERATOR_NAME": "mariadb-operator"}
    own["MARIADB_OPERATOR_NAMESPACE"] = "mariadb-operator-system"
    own["MARIADB_OPERATOR_SA_PATH"] = str(tmp_path / "token")
    (tmp_path / "token").write_text("none")
    config = {
        key: value
        for each in way.of_release("mariadb-operator")
        if each["kind"] == "ConfigMap" and name_of(each) == "mariadb-operator-env"
        for key, value in each["data"].items()
    }
    argv = [
        str(sources.program("mariadb-operator")),
        f"--metrics-addr=127.0.0.1:{metrics}",
        f"--health-addr=127.0.0.1:{health}",
    ]
    env = {**environment(one), **config, **own}
    with running(argv, server=cluster.server, folder=tmp_path / "run", env=env) as child:
        accepted = cluster.accept([laid(database)], namespace)
        assert not accepted.refused

        def live() -> list[Object]:
            return cluster.client.list("apps/v1", "StatefulSet", namespace)

        until("the database's set", lambda: bool(live()), child)
    sets = come_up.pods_of(live())
    assert not come_up.refused(cluster.client, sets).obstacles
    volumes = [each for each in way.live if each["kind"] in ("PersistentVolume", "StorageClass")]
    bound = come_up.unbound(sets, volumes, way.declared.nodes)
    record_property("counted", f"{bound.counted} of MariaDB")
    assert bound.counted
    assert not bound.obstacles, "\n".join(map(str, bound.obstacles))


def test_k8up_makes_the_jobs_of_a_backup_a_restore_and_a_prune(
    way, sources, cluster, tmp_path, record_property
):
    (schedule,) = [each for each in way.declared.own if each["kind"] == "Schedule"]
    (wanted,) = [each for each in way.declared.own if each["kind"] == "PodConfig"]
    namespace, spec = schedule["metadata"]["namespace"], schedule["spec"]
    one = container(way, "k8up", "k8up-operator")
    (metrics,) = free_ports(1)
    argv = [str(sources.program("k8up")), "operator"]
    own = {"BACKUP_OPERATOR_NAMESPACE": "k8up-system", "BACKUP_ENABLE_LEADER_ELECTION": "false"}
    env = {**environment(one), **own, "BACKUP_METRICS_BINDADDRESS": f"127.0.0.1:{metrics}"}
    backend = spec["backend"]
    prune = {**spec["prune"], "backend": backend}
    del prune["schedule"]
    targets = {
        "backup-now-0": backup.backup("now", namespace, spec),
        "restore-now": backup.restore(
            "now", namespace, backend=backend, snapshot="ab" * 32, path="/home/user"
        ),
        "prune-now": kube_object(backup.API_VERSION, "Prune", "now", namespace, spec=prune),
    }
    kinds = ("Schedule", "PodConfig", "Secret")
    sent = [each for each in way.declared.own if each["kind"] in kinds]
    assert not cluster.accept(sent, namespace).refused
    with running(argv, server=cluster.server, folder=tmp_path / "run", env=env) as child:

        def jobs() -> list[Object]:
            return cluster.client.list("batch/v1", "Job", namespace)

        for name, target in targets.items():
            assert not cluster.accept([target], namespace).refused
            until(f"the job {name}", lambda: bool(jobs()), child)
            (job,) = jobs()
            assert name_of(job) == name
            (made,) = come_up.pods_of([job])
            for toleration in wanted["spec"]["template"]["spec"]["tolerations"]:
                assert toleration in made.spec["tolerations"]
            if target["kind"] == "Restore":
                words = made.spec["containers"][0]["args"]
                assert words[words.index("-restoreFilter") + 1] == "/home/user"
            assert not come_up.refused(cluster.client, [made]).obstacles
            keys = come_up.missing_keys([made], cluster.client.list("v1", "Secret", namespace))
            assert not [each for each in keys.obstacles if "ServiceAccount" not in each.cause]
            # One that restores or prunes waits for all others.
            cluster.client.delete(target)
            cluster.client.delete(job)
    record_property("jobs of k8up", len(targets))
