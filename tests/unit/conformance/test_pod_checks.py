"""The checks see what the first comparison with the real operator found, planted once more.

C1: a host key Secret with two of six keys. C2 needs an API server: tests/local. C3: a claim by a
mode that its only volume does not offer.
"""

from __future__ import annotations

import pytest

from infra.clients.kube_rules import name_of
from infra.operate.conformance import come_up
from tests.unit.conformance.recorded import NODES, host_keys, objects, one


@pytest.mark.feature("S000-01", "S000-13")
def test_as_recorded_every_pod_would_run():
    found = objects()
    every = come_up.pods_of(found)
    assert {name_of(each.owner) for each in every} == {
        "login",
        "worker-fabric",
        "soperator-acct-db",
    }
    assert come_up.missing_keys(every, found).obstacles == ()
    assert come_up.unplaced(every, NODES).obstacles == ()


def test_a_host_key_under_one_name_keeps_login_and_workers_away():
    """C1."""
    found = [each for each in objects() if each["kind"] != "Secret"]
    found.append(host_keys(["ssh_host_ed25519_key", "ssh_host_ed25519_key.pub"]))
    looked = come_up.missing_keys(come_up.pods_of(found), found)
    assert len(looked.obstacles) == 8
    assert str(looked.obstacles[0]) == (
        "pods of StatefulSet soperator/login: Secret 'login-host-keys' has no key "
        "'ssh_host_ecdsa_key' (has: ssh_host_ed25519_key, ssh_host_ed25519_key.pub)"
    )


def test_a_database_that_asks_for_another_mode_gets_no_volume():
    """C3."""
    found = objects()
    database = one("MariaDB", "soperator-acct-db", found)
    template = database["spec"]["storage"]["volumeClaimTemplate"]
    template["accessModes"] = ["ReadWriteOnce"]
    (obstacle,) = come_up.unbound(come_up.pods_of(found), found, NODES).obstacles
    assert str(obstacle) == (
        "PersistentVolumeClaim soperator/storage-soperator-acct-db-0: no volume of class "
        "'slurm-local-pv' for ReadWriteOnce: accounting-pv is ReadWriteMany, not ReadWriteOnce"
    )
    template["accessModes"] = ["ReadWriteMany"]
    assert come_up.unbound(come_up.pods_of(found), found, NODES).obstacles == ()


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda spec: spec["capacity"].update(storage="1Mi"), "accounting-pv has 1Mi only"),
        (lambda spec: spec.update(storageClassName="other"), "no volume of class 'slurm-local-pv'"),
        (lambda spec: spec.update(volumeMode="Block"), "accounting-pv has volume mode Block"),
        (
            lambda spec: spec.update(claimRef={"namespace": "soperator", "name": "another"}),
            "no volume of class 'slurm-local-pv'",
        ),
        (
            lambda spec: spec["nodeAffinity"]["required"]["nodeSelectorTerms"][0][
                "matchExpressions"
            ][0].update(values=["login"]),
            "accounting-pv is on no node that takes the pods",
        ),
    ],
)
def test_a_volume_is_bound_by_kubernetes_own_rules(change, cause):
    found = objects()
    template = one("MariaDB", "soperator-acct-db", found)["spec"]["storage"]["volumeClaimTemplate"]
    template["accessModes"] = ["ReadWriteMany"]
    change(one("PersistentVolume", "accounting-pv", found)["spec"])
    (obstacle,) = come_up.unbound(come_up.pods_of(found), found, NODES).obstacles
    assert cause in obstacle.cause


def test_a_class_of_disks_serves_no_claim_of_several_nodes():
    found = objects()
    template = one("MariaDB", "soperator-acct-db", found)["spec"]["storage"]["volumeClaimTemplate"]
    template |= {"accessModes": ["ReadWriteMany"], "storageClassName": "disks"}
    made = {"kind": "StorageClass", "metadata": {"name": "disks"}}
    found.append({**made, "provisioner": "compute.csi.nebius.com"})
    (obstacle,) = come_up.unbound(come_up.pods_of(found), found, NODES).obstacles
    assert obstacle.cause == "class 'disks' makes disks of one node, not ReadWriteMany"


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (
            lambda claim, _: claim.update(
                selector={"matchExpressions": [{"key": "x", "operator": "Exists"}]}
            ),
            "does not match the claim's selector",
        ),
        (lambda _, volume: volume.update(status={"phase": "Failed"}), "accounting-pv is Failed"),
    ],
)
def test_what_a_binder_passes_over_is_named(change, cause):
    found = objects()
    template = one("MariaDB", "soperator-acct-db", found)["spec"]["storage"]["volumeClaimTemplate"]
    template["accessModes"] = ["ReadWriteMany"]
    change(template, one("PersistentVolume", "accounting-pv", found))
    (obstacle,) = come_up.unbound(come_up.pods_of(found), found, NODES).obstacles
    assert cause in obstacle.cause


def test_a_volume_serves_one_claim():
    found = objects()
    database = one("MariaDB", "soperator-acct-db", found)
    database["spec"]["storage"]["volumeClaimTemplate"]["accessModes"] = ["ReadWriteMany"]
    database["spec"]["replicas"] = 2
    (obstacle,) = come_up.unbound(come_up.pods_of(found), found, NODES).obstacles
    assert obstacle.subject.endswith("storage-soperator-acct-db-1")


def test_a_pod_that_no_declared_node_takes_is_named():
    found = objects()
    spec = one("StatefulSet", "login", found)["spec"]["template"]["spec"]
    spec["tolerations"] = []
    (obstacle,) = come_up.unplaced(come_up.pods_of(found), NODES).obstacles
    assert obstacle.subject == "pods of StatefulSet soperator/login"


def test_a_volume_of_another_node_than_the_pods_is_named():
    found = objects()
    volume = one("PersistentVolume", "jail-pv", found)["spec"]
    rule = volume["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0]
    rule |= {"key": "slurm.nebius.ai/nodeset", "operator": "In", "values": ["login"]}
    causes = [str(each) for each in come_up.unbound(come_up.pods_of(found), found, NODES).obstacles]
    assert (
        "pods of StatefulSet soperator/worker-fabric: no node that takes them has all of their "
        "volumes"
    ) in causes


@pytest.mark.parametrize(
    ("need", "cause"),
    [
        (
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
            "Secret 's' does not exist",
        ),
        ({"envFrom": [{"configMapRef": {"name": "c"}}]}, "ConfigMap 'c' does not exist"),
        (
            {"volumeMounts": [{"name": "sshd-keys", "mountPath": "/x", "subPath": "gone"}]},
            None,  # its volume has items, which decide
        ),
        ({"envFrom": [{"configMapRef": {"name": "c", "optional": True}}]}, None),
    ],
)
def test_what_a_container_takes_from_elsewhere_must_be_there(need, cause):
    found = objects()
    spec = one("StatefulSet", "login", found)["spec"]["template"]["spec"]
    spec["containers"][0].update(need)
    causes = [each.cause for each in come_up.missing_keys(come_up.pods_of(found), found).obstacles]
    assert causes == ([] if cause is None else [cause])


def test_a_missing_key_of_a_file_that_is_mounted_alone_is_named():
    found = objects()
    spec = one("StatefulSet", "login", found)["spec"]["template"]["spec"]
    spec["volumes"].append({"name": "daemon", "configMap": {"name": "image-storage"}})
    mount = {"name": "daemon", "mountPath": "/etc/docker/daemon.json", "subPath": "daemon.json"}
    spec["containers"][0]["volumeMounts"].append(mount)
    metadata = {"name": "image-storage", "namespace": "soperator"}
    found.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": ""}})
    (obstacle,) = come_up.missing_keys(come_up.pods_of(found), found).obstacles
    assert obstacle.cause == "ConfigMap 'image-storage' has no key 'daemon.json' (has: a)"
