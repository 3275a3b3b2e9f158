"""What a pod waits for on the local stack, worked out from objects alone, as a kubelet would."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.clients.errors import AbsentError, KubeError
from infra.local.kube.values import Release
from infra.local.plugins.kubernetes_objects import render
from infra.local.reconcile.__main__ import node_objects
from infra.local.reconcile.planner import make_plan
from infra.local.reconcile.pods import Plan, PodPlan, Pods, cluster_status, pod_object
from infra.local.reconcile.snapshot import Places, Snapshot
from infra.render.login import host_key_files
from infra.state import Ports
from tests.local.slurm_stand import (
    CHART_VERSION,
    CLUSTER,
    NAMESPACE,
    NODESETS,
    Values,
    node_groups,
    shipped_values,
)

Object = dict[str, Any]


@pytest.fixture
def values() -> Values:
    return copy.deepcopy(shipped_values(30022, "ssh-ed25519 AAAA user"))


def objects(values: Values) -> Iterator[Object]:
    """What the API server has of these values, with its nodes and the host key."""
    yield from node_objects(node_groups())
    for chart, given in values.items():
        name = chart.removeprefix("helm-")
        release = Release(name=name, namespace=NAMESPACE, chart=chart, version=CHART_VERSION)
        yield from render(release, given).objects
    place = {"name": "login-host-keys", "namespace": NAMESPACE}
    keys = dict.fromkeys(host_key_files("a", "b"), "eA==")
    yield {"kind": "Secret", "metadata": place, "data": keys}


def whole_plan(values: Values, *more: Object, without: str = "") -> tuple[Plan, Snapshot]:
    """`without` names an object, or a key of one, that is not there."""
    kinds = Snapshot.of([]).by_kind
    known = []
    for each in (*objects(values), *more):
        each["metadata"].setdefault("uid", each["metadata"]["name"])
        if "data" in each:
            each = {**each, "data": {k: x for k, x in each["data"].items() if k != without}}
        if each["kind"] in kinds and each["metadata"]["name"] != without:
            known.append(each)
    places = Places(filesystems=Path("/fs"), pods=Path("/pods"))
    snapshot = Snapshot.of(known)
    plan = make_plan(snapshot, places=places, ports=Ports(17800), worker_port=lambda _: 1)
    return plan, snapshot


def planned(values: Values, *more: Object, without: str = "") -> dict[str, PodPlan]:
    """The pods by name."""
    plan, _ = whole_plan(values, *more, without=without)
    assert plan.cluster is not None
    workers = (pod for item in plan.nodesets for pod in item.pods)
    return {pod.name: pod for pod in (*plan.cluster.pods.values(), *workers)}


def live(plan: PodPlan, phase: str) -> Object:
    """The planned pod as the API server has it."""
    assert plan.of is not None
    return {**pod_object(plan, plan.of), "status": {"phase": phase}}


def test_right_values_let_every_pod_run(values: Values) -> None:
    assert {pod.problem for pod in planned(values).values()} == {""}


def test_what_a_container_shows_in_the_jail_is_there_on_every_pod(values: Values) -> None:
    """The chart gives its scripts to login pods too, and the operator IMEX to those of workers."""
    found = planned(values)
    shown = {name: [path for path, _ in found[name].mounts] for name in ("login-0", "worker-0")}
    assert shown["login-0"] == ["/home", "/mnt/data", "/mnt/memory", "/opt/slurm_scripts"]
    assert {"/dev/shm", "/opt/slurm_scripts"} < set(shown["worker-0"])
    assert not [path for path in shown["worker-0"] if "imex" in path]


def test_a_folder_of_the_node_in_the_jail_is_refused(values: Values) -> None:
    volumes = values[NODESETS]["nodesets"][0]["slurmd"]["volumes"]
    host = {"name": "own", "mountPath": "/mnt/own", "volumeSource": {"hostPath": {"path": "/etc"}}}
    volumes["jailSubMounts"].append(host)
    assert "volume 'own': hostPath cannot be mounted" in planned(values)["worker-0"].problem


@pytest.mark.parametrize("missing", ["ssh_host_ecdsa_key", "slurm-scripts"])
def test_a_pod_that_runs_goes_on_without_what_it_mounted(values: Values, missing: str) -> None:
    """A kubelet mounts once: what goes afterwards holds the next pod, not this one."""
    first = planned(values)["worker-0"]
    held = planned(values, live(first, "Pending"), without=missing)["worker-0"]
    assert missing in held.problem
    running = planned(values, live(first, "Running"), without=missing)["worker-0"]
    assert running.problem == ""
    assert [path for path, _ in running.mounts] == [path for path, _ in first.mounts]


def test_a_pod_that_has_to_be_made_anew_is_judged_like_a_new_one(values: Values) -> None:
    first = live(planned(values)["worker-0"], "Running")
    values[NODESETS]["nodesets"][0]["configMapRefSshd"] = "mistyped"
    assert '"mistyped" not found' in planned(values, first)["worker-0"].problem


class Server(dict[str, Object]):
    """Objects by kind and name, as a client of the API server sees them; it takes no new pod."""

    def apply(self, target: Object, **_options: Any) -> Object:
        return {**target, "metadata": {**target["metadata"], "uid": "made"}}

    def create(self, target: Object) -> None:
        if target["kind"] == "Pod":
            raise KubeError("Pod is invalid", status=422)

    def delete(self, target: Object, **_options: Any) -> None:
        self.pop(target["metadata"]["name"], None)

    def merge_patch(self, target: Object, patch: Object, **_options: Any) -> None:
        if target["kind"] == "Pod" and target["metadata"]["name"] not in self:
            raise AbsentError("pods not found", status=404)


@pytest.mark.parametrize("is_ending", [False, True])
def test_a_pod_that_goes_in_a_pass_is_told_of_no_more_in_it(
    values: Values, is_ending: bool
) -> None:
    """Else the pass ended there, and the SlurmCluster and the NodeSets were not told of either."""
    old = live(planned(values)["login-0"], "Running")
    old["metadata"]["uid"] = "old"
    if is_ending:
        old["metadata"]["deletionTimestamp"] = "2026-11-28T12:00:00Z"
    values[CLUSTER]["slurmNodes"]["login"]["sshd"] = {"resources": {"cpu": "1", "memory": "2Gi"}}
    place = {"kind": "Namespace", "metadata": {"name": NAMESPACE}}
    plan, snapshot = whole_plan(values, old, place)
    pods = Pods(Server({"login-0": old}))  # pyright: ignore[reportArgumentType]
    pods.keep(plan, snapshot)
    pods.tell(plan, {}, snapshot, lambda _pod: 0)
    assert plan.cluster is not None
    told = {each["type"]: each for each in cluster_status(plan.cluster, {})["conditions"]}
    said = "the pod is being deleted" if is_ending else "Pod is invalid"
    assert said in told["LoginAvailable"]["message"]


OWN_CLAIM = {"persistentVolumeClaim": {"claimName": "own-pvc"}}


def test_a_claim_of_a_mount_outside_the_jail_holds_the_pod(values: Values) -> None:
    """It is a claim like any other to the scheduler, wherever it is mounted."""
    own = {"name": "own", "mountPath": "/opt/own"}
    volumes = values[NODESETS]["nodesets"][0]["slurmd"]["volumes"]
    volumes["customVolumeMounts"].append({**own, "volumeSource": OWN_CLAIM})
    values[CLUSTER]["volumeSources"].append({"name": "own", **OWN_CLAIM})
    for role in ("controller", "login"):
        mounted = values[CLUSTER]["slurmNodes"][role]["volumes"]
        mounted["customMounts"] = [{**own, "volumeSourceName": "own"}]
    found = planned(values)
    for name in ("worker-0", "login-0", "controller-0"):
        assert found[name].problem == 'persistentvolumeclaim "own-pvc" not found'
    disk = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    place = {"name": "own-pvc", "namespace": NAMESPACE}
    made = {"kind": "PersistentVolumeClaim", "metadata": place, "spec": disk}
    assert {pod.problem for pod in planned(values, made).values()} == {""}


@pytest.mark.parametrize(
    ("class_name", "mode", "runs"),
    [
        ("compute-csi-network-ssd-ext4", "ReadWriteOnce", True),
        ("compute-csi-network-ssd-io-m3-xfs", "ReadWriteOnce", True),
        ("compute-csi-default-sc", "ReadWriteOnce", True),
        ("compute-csi-network-ssd-ext4", "ReadWriteMany", False),
        ("compute-csi-network-hdd-ext4", "ReadWriteOnce", False),
        ("mistyped", "ReadWriteOnce", False),
    ],
)
@pytest.mark.parametrize("place", ["submount", "spool"])
def test_a_disk_of_a_worker_needs_a_class_that_makes_it(
    values: Values, place: str, class_name: str, mode: str, runs: bool
) -> None:
    claim = {
        "accessModes": [mode],
        "storageClassName": class_name,
        "resources": {"requests": {"storage": "93Gi"}},
    }
    volumes = values[NODESETS]["nodesets"][0]["slurmd"]["volumes"]
    if place == "spool":
        volumes["spool"] = {"ephemeral": {"volumeClaimTemplate": {"spec": claim}}}
        name = "worker-0-worker-spool"
    else:
        disk = {"name": "scratch", "mountPath": "/mnt/scratch", "volumeClaimTemplateSpec": claim}
        volumes["jailSubMounts"].append(disk)
        name = "scratch-worker-0"
    problem = planned(values)["worker-0"].problem
    told = f"pod has unbound immediate PersistentVolumeClaims ({name})"
    assert problem == ("" if runs else told)


@pytest.mark.parametrize(
    ("role", "container"), [("controller", "slurmctld"), ("login", "sshd"), ("login", "munge")]
)
def test_a_pod_that_is_larger_than_its_node_waits(
    values: Values, role: str, container: str
) -> None:
    large = {"resources": {"cpu": "7800m", "memory": "1Gi"}}
    values[CLUSTER]["slurmNodes"][role][container] = large
    problem = planned(values)[f"{role}-0"].problem
    assert problem.startswith("insufficient cpu: needs ")


def test_a_database_that_is_larger_than_its_node_waits(values: Values) -> None:
    mariadb = {"enabled": True, "resources": {"cpu": "9", "memory": "1Gi"}}
    accounting = values[CLUSTER]["slurmNodes"]["accounting"]
    accounting |= {"enabled": True, "mariadbOperator": mariadb}
    problem = planned(values)["acct-db-0"].problem
    assert problem.startswith("insufficient cpu: needs 9")


def test_a_pod_that_is_refused_for_its_filter_takes_nothing_of_a_node(values: Values) -> None:
    """Else the login pod, which comes after it, was said to be too large."""
    mariadb = {"enabled": True, "resources": {"cpu": "5", "memory": "1Gi"}}
    accounting = values[CLUSTER]["slurmNodes"]["accounting"]
    accounting |= {"enabled": True, "mariadbOperator": mariadb, "k8sNodeFilterName": "mistyped"}
    login = values[CLUSTER]["slurmNodes"]["login"]
    login |= {"k8sNodeFilterName": "accounting", "sshd": {"resources": {"cpu": "2"}}}
    found = planned(values)
    refused = "k8sNodeFilterName 'mistyped' is not in spec.k8sNodeFilters"
    assert {found[name].problem for name in ("accounting", "acct-db-0")} == {refused}
    assert found["login-0"].problem == ""
