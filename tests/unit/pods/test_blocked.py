"""What keeps a pod from starting for good, what only takes its time, and the line that says it."""

from __future__ import annotations

from typing import Any

import pytest

from infra.providers.soperator.blocked_pods import blocked, in_one_line, is_ready, slurm_pods

Object = dict[str, Any]
NAMESPACE = "soperator"
SYSTEM = {"slurm.nebius.ai/nodeset": "login"}


class Cluster:
    """Objects as the API server would give them."""

    def __init__(self, *objects: Object) -> None:
        self.objects = objects

    def list(self, api_version: str, kind: str, namespace: str | None = None) -> list[Object]:
        return [
            each
            for each in self.objects
            if (each["apiVersion"], each["kind"]) == (api_version, kind)
            and namespace in (None, each["metadata"].get("namespace"))
        ]

    def get(self, target: Object) -> Object | None:
        place = target["metadata"]
        found = self.list(target["apiVersion"], target["kind"], place.get("namespace"))
        return next((each for each in found if each["metadata"]["name"] == place["name"]), None)


def made(kind: str, name: str, version: str = "v1", **body: Any) -> Object:
    place = {"name": name, "namespace": NAMESPACE, "uid": f"uid of {name}"}
    return {"apiVersion": version, "kind": kind, "metadata": place, **body}


def pod(name: str = "login-0", *, phase: str = "Pending", **body: Any) -> Object:
    """A pod of one container and these volumes or statuses."""
    spec: Object = {"containers": [{"name": "sshd", "image": "i"}], "nodeName": "n"}
    spec |= body.pop("spec", {})
    found = made("Pod", name, spec=spec, status={"phase": phase, **body})
    found["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps.kruise.io/v1beta1", "kind": "StatefulSet", "name": "set"}
    ]
    return found


def lines(the_pod: Object | None, *objects: Object, labels: tuple[dict[str, str], ...] = ()) -> str:
    pods = [] if the_pod is None else [the_pod]
    return in_one_line(blocked(Cluster(*objects), NAMESPACE, pods, labels), NAMESPACE)


def mounting(**source: Any) -> Object:
    return pod(spec={"volumes": [{"name": "v", **source}]})


KEYS = {"secret": {"secretName": "login-host-keys", "items": [{"key": "a"}, {"key": "b"}]}}


def test_a_secret_without_a_key_that_the_pod_mounts_is_named_with_it() -> None:
    secret = made("Secret", "login-host-keys", data={"a": "eA=="})
    assert lines(mounting(**KEYS), secret) == (
        'pod soperator/login-0 cannot start: secret "login-host-keys" has no key b; '
        "if the stack makes it: pulumi refresh, pulumi up; if not: kubectl -n soperator edit "
        "secret login-host-keys, then run the command again"
    )
    secret["data"]["b"] = "eA=="
    assert lines(mounting(**KEYS), secret) == ""


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (KEYS, 'secret "login-host-keys" does not exist; if the stack makes it: pulumi'),
        ({"configMap": {"name": "c"}}, 'config map "c" does not exist'),
        ({"configMap": {"name": "c"}}, "kubectl -n soperator create configmap c --from-file="),
        ({"projected": {"sources": [{"configMap": {"name": "p"}}]}}, 'config map "p" does not'),
    ],
)
def test_what_a_pod_mounts_and_nobody_made_is_named(source: Object, said: str) -> None:
    assert said in lines(mounting(**source))


def test_what_may_be_missing_and_what_needs_no_object_is_no_cause() -> None:
    assert lines(mounting(configMap={"name": "c", "optional": True})) == ""
    assert lines(mounting(emptyDir={})) == ""


def test_a_pod_that_runs_is_not_judged_by_what_it_mounted() -> None:
    running = mounting(**KEYS)
    running["status"]["phase"] = "Running"
    assert lines(running) == ""


CLASS = made(
    "StorageClass",
    "slurm-local-pv",
    "storage.k8s.io/v1",
    provisioner="kubernetes.io/no-provisioner",
)


def claim(mode: str = "ReadWriteOnce", class_name: str = "slurm-local-pv") -> Object:
    spec = {
        "accessModes": [mode],
        "storageClassName": class_name,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return made("PersistentVolumeClaim", "storage-0", spec=spec, status={"phase": "Pending"})


def volume(size: str = "1Gi", **more: Any) -> Object:
    spec = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "slurm-local-pv",
        "capacity": {"storage": size},
    }
    return made("PersistentVolume", "accounting-pv", spec={**spec, **more})


CLAIMING = pod(
    "db-0", spec={"volumes": [{"name": "s", "persistentVolumeClaim": {"claimName": "storage-0"}}]}
)


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        ([], "claim storage-0 does not exist"),
        ([claim(), CLASS, volume()], "storage-0 (ReadWriteOnce of class slurm-local-pv, 1Gi) fits"),
        (
            [claim(), CLASS, volume()],
            "free of this class: accounting-pv is ReadWriteMany, not ReadWriteOnce",
        ),
        ([claim("ReadWriteMany"), CLASS, volume("512Mi")], "accounting-pv has 512Mi only"),
        (
            [claim("ReadWriteMany"), CLASS, volume(claimRef={"namespace": "x", "name": "y"})],
            "free of this class: none",
        ),
        (
            [
                claim("ReadWriteMany"),
                CLASS,
                volume(
                    claimRef={"namespace": "soperator", "name": "storage-0", "uid": "of-before"}
                ),
            ],
            (
                "accounting-pv is kept for a claim of this name that is gone (to give this one its "
                "data: kubectl patch pv accounting-pv --type=json "
                '-p \'[{"op": "remove", "path": "/spec/claimRef/uid"}]\')'
            ),
        ),
        ([claim(class_name="gone")], "storage class gone, which does not exist"),
    ],
)
def test_a_claim_that_no_volume_will_fit_is_named(objects: list[Object], said: str) -> None:
    assert said in lines(CLAIMING, *objects)


def test_a_claim_that_a_pod_makes_for_itself_is_looked_at_too() -> None:
    volumes = [{"name": "images", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]
    worker = pod("worker-0", spec={"volumes": volumes})
    assert lines(worker) == ""  # Kubernetes is about to make it
    unfit = claim(class_name="gone")
    unfit["metadata"]["name"] = "worker-0-images"
    assert "claim worker-0-images asks for storage class gone" in lines(worker, unfit)


def test_the_advice_for_a_claim_deletes_what_cannot_change_and_what_owns_it() -> None:
    database = {**CLAIMING, "metadata": dict(CLAIMING["metadata"])}
    said = lines(database, claim(), CLASS, volume())
    delete = "kubectl -n soperator delete"
    assert f"waits: {delete} statefulset.apps.kruise.io set; {delete} pvc storage-0 (" in said
    owners = [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "soperator-acct-db"}]
    database["metadata"]["ownerReferences"] = owners
    said = lines(database, claim(class_name="gone"))
    assert f"waits: {delete} statefulset soperator-acct-db; {delete} pvc storage-0 (" in said
    owners[0] = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r"}
    assert f"waits: {delete} pvc storage-0 (" in lines(database, claim(), CLASS, volume())


def test_a_claim_whose_volume_is_on_its_way_is_no_cause() -> None:
    fits = [claim("ReadWriteMany"), CLASS, volume()]
    assert lines(CLAIMING, *fits) == ""
    disk = made("StorageClass", "disk", "storage.k8s.io/v1", provisioner="compute.csi.nebius.com")
    assert lines(CLAIMING, claim(class_name="disk"), disk) == ""
    failed = made(
        "Event",
        "e",
        reason="ProvisioningFailed",
        message="quota",
        involvedObject={"kind": "PersistentVolumeClaim", "name": "storage-0"},
    )
    assert "gets no disk: quota" in lines(CLAIMING, claim(class_name="disk"), disk, failed)
    later = {**failed, "message": "rpc error: code = DeadlineExceeded desc = still being made"}
    assert lines(CLAIMING, claim(class_name="disk"), disk, later) == ""


INVALID = (
    'create Pod worker-0 in StatefulSet worker failed error: Pod "worker-0" is invalid: '
    'spec.containers[0].volumeMounts[23].mountPath: Invalid value: "/x": must be unique'
)


def refusal(owner: Object, message: str = INVALID) -> Object:
    about = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    return made("Event", "e", reason="FailedCreate", message=message, involvedObject=about)


def statefulset(**status: Any) -> Object:
    return made(
        "StatefulSet", "worker", "apps.kruise.io/v1beta1", spec={"replicas": 2}, status=status
    )


def test_a_pod_that_the_api_server_refuses_is_named_with_its_words() -> None:
    owner = statefulset(replicas=1)
    said = lines(None, owner, refusal(owner))
    assert said.startswith("pod soperator/worker-0 cannot start: the API server refuses it: spec.")
    assert '"/x": must be unique; the message names the field: correct it' in said


@pytest.mark.parametrize(
    ("of", "why"),
    [
        ("Pod worker-0", 'admission webhook "policy" denied the request: no host paths'),
        ("Claim d-worker-0 for Pod worker-0", 'persistentvolumeclaims "d" is forbidden: quota'),
    ],
)
def test_what_a_webhook_or_a_quota_keeps_from_being_made_is_named(of: str, why: str) -> None:
    owner = statefulset(replicas=1)
    told = f"create {of} in StatefulSet worker failed error: {why}"
    assert f"worker-0 cannot start: the API server refuses it: {why}" in lines(
        None, owner, refusal(owner, told)
    )
    away = "create Pod worker-0 in StatefulSet worker failed error: Post: connection refused"
    assert lines(None, owner, refusal(owner, away)) == ""


def test_a_refusal_of_an_earlier_time_is_no_cause() -> None:
    owner = statefulset(replicas=1)
    assert lines(pod("worker-0", phase="Running"), owner, refusal(owner)) == ""
    assert lines(None, refusal(owner)) == "", "its set has gone"
    full = statefulset(replicas=2)
    assert lines(None, full, refusal(full)) == "", "its set has all its pods"
    changed = statefulset(replicas=1)
    changed["metadata"]["managedFields"] = [
        {"time": "2026-11-22T10:00:00Z"},
        {"time": "2026-11-22T12:00:00Z", "subresource": "status"},
    ]
    before = {**refusal(changed), "lastTimestamp": "2026-11-22T09:59:59Z"}
    assert lines(None, changed, before) == "", "its set is another one since"
    del before["lastTimestamp"]
    assert lines(None, changed, {**before, "eventTime": "2026-11-22T10:00:00.000001Z"})
    passing = "create Pod worker-0 failed error: failed calling webhook: connection refused"
    assert lines(None, owner, refusal(owner, passing)) == ""


def waiting(reason: str, message: str = "", *, restarts: int = 0, name: str = "sshd") -> Object:
    state = {"waiting": {"reason": reason, "message": message}}
    status = {"name": name, "image": "cr/i:1", "state": state, "restartCount": restarts}
    status["lastState"] = {"terminated": {"exitCode": 3}}
    return pod(containerStatuses=[status])


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (waiting("ErrImagePull", "not found"), "image cr/i:1 cannot be pulled: not found"),
        (waiting("InvalidImageName"), "image cr/i:1 cannot be pulled: InvalidImageName"),
        (waiting("CreateContainerConfigError", "no secret"), "sshd cannot be made: no secret"),
        (waiting("CreateContainerError"), "kubectl -n soperator describe pod login-0 shows why"),
        (
            waiting("CrashLoopBackOff", restarts=5),
            "with exit code 3; see kubectl -n soperator logs login-0 -c sshd --previous",
        ),
    ],
)
def test_a_container_that_never_runs_is_named(found: Object, said: str) -> None:
    assert said in lines(found)


@pytest.mark.parametrize(
    "found",
    [
        waiting("ContainerCreating"),
        waiting("PodInitializing"),
        waiting("ImagePullBackOff", "dial tcp: i/o timeout"),
        waiting("ErrImagePull", "429 Too Many Requests"),
        waiting("CrashLoopBackOff", restarts=2),
        waiting("CrashLoopBackOff", restarts=9, name="wait-for-database"),
        waiting("CrashLoopBackOff", restarts=9, name="worker-init"),
    ],
)
def test_a_container_on_its_way_is_no_cause(found: Object) -> None:
    assert lines(found) == ""


def unplaced(**spec: Any) -> Object:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return pod(spec={"nodeName": "", "nodeSelector": SYSTEM, **spec}, conditions=[condition])


def node(*taints: Object, memory: str = "16Gi", **labels: str) -> Object:
    found = made("Node", "n", spec={"taints": list(taints)})
    found["metadata"]["labels"] = labels or SYSTEM
    return found | {"status": {"allocatable": {"cpu": "4", "memory": memory}}}


def test_a_pod_whose_nodes_are_still_made_is_no_cause() -> None:
    assert lines(unplaced(), labels=(SYSTEM,)) == ""
    assert lines(unplaced()) == "", "nobody said which nodes there will be"
    starting = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    assert lines(unplaced(), node(starting)) == ""


def test_a_pod_that_no_node_of_the_stack_will_take_is_named() -> None:
    said = lines(unplaced(), labels=({"slurm.nebius.ai/nodeset": "worker"},))
    assert "no node group of the stack makes nodes with slurm.nebius.ai/nodeset=login" in said
    taint = {"key": "gpu", "value": "true", "effect": "NoSchedule"}
    assert "it does not tolerate gpu=true:NoSchedule of node n" in lines(unplaced(), node(taint))


def test_a_pod_that_is_larger_than_its_nodes_is_named_but_not_for_gpus() -> None:
    def asking(**amounts: str) -> Object:
        container = {"name": "c", "image": "i", "resources": {"requests": amounts}}
        return unplaced(containers=[container])

    assert "it asks for 8 of cpu, its nodes have 4" in lines(asking(cpu="8"), node())
    assert lines(asking(cpu="2"), node()) == ""
    # They come with the device plugin, minutes after the node.
    assert lines(asking(**{"nvidia.com/gpu": "8"}), node()) == ""


def test_pods_of_one_cause_share_a_line() -> None:
    first, second = mounting(**KEYS), mounting(**KEYS)
    second["metadata"] = {**second["metadata"], "name": "worker-0"}
    found = blocked(Cluster(), NAMESPACE, [second, first])
    assert in_one_line(found, NAMESPACE).startswith(
        "pod soperator/login-0 (and worker-0) cannot start: "
    )


def test_only_pods_of_the_slurm_cluster_are_looked_at() -> None:
    own, labelled, database = pod(), pod("accounting-x"), pod("soperator-acct-db-0")
    for each in (labelled, database):
        each["metadata"]["ownerReferences"] = [{"apiVersion": "apps/v1"}]
    labelled["metadata"]["labels"] = {"app.kubernetes.io/name": "slurmcluster"}
    foreign = pod("my-notebook")
    foreign["metadata"]["ownerReferences"] = [{"apiVersion": "apps/v1"}]
    seen = slurm_pods(Cluster(own, labelled, database, foreign), NAMESPACE, "soperator")
    assert seen == [own, labelled, database]


def test_a_pod_is_ready_when_it_says_so() -> None:
    assert is_ready(pod(conditions=[{"type": "Ready", "status": "True"}]))
    assert not is_ready(pod(conditions=[{"type": "Ready", "status": "False"}]))
    assert not is_ready(pod())
