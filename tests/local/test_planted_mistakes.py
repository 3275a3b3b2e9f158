"""One mistake at a time in what the program applies, seen on real daemons through the user's door.

Each test spoils right values, applies them, and finds the cluster wrong the way it would be on the
cloud, with a status that says what is missing.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from infra.local import process
from infra.local.process import PORT_IN_USE
from infra.local.reconcile.pod_specs import MADE
from infra.local.reconcile.snapshot import annotation
from infra.providers.soperator.blocked_pods import blocked
from infra.state import PORT_SETTING
from tests.local.slurm_stand import (
    CLUSTER,
    NODESETS,
    TAGS,
    WAIT_S,
    Stand,
    node_groups,
    running_stand,
)

pytestmark = pytest.mark.local


@pytest.fixture(scope="module")
def module_stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with running_stand(tmp_path_factory.mktemp("stand")) as made:
        yield made


@pytest.fixture
def stand(module_stand: Stand) -> Iterator[Stand]:
    """The module's stand; what a test applied is deleted after it."""
    yield module_stand
    module_stand.delete()


def test_a_worker_without_gres_comes_up_without_gpus(stand: Stand) -> None:
    values = stand.values()
    values[NODESETS]["nodesets"][0]["nodeConfig"]["static"] = "CPUs=64"
    stand.apply(values)
    stand.wait_idle("worker-[0-1]")
    assert stand.ssh("sinfo -h -p main -o %G").stdout.strip() == "(null)"
    refused = stand.ssh("sbatch --gpus-per-node=1 --wrap hostname")
    assert refused.returncode != 0
    assert "Requested node configuration is not available" in refused.stderr


def test_default_partitions_leave_the_workers_without_node_lines(stand: Stand) -> None:
    values = stand.values()
    values[CLUSTER]["partitionConfiguration"] = {"configType": "default"}
    stand.apply(values)
    words = "slurmd initialization failed", "Unable to find node record"  # of 22.05, of 25.11

    def told() -> bool:
        return any(word in stand.messages("NodeSet", "worker") for word in words)

    stand.wait(told, "a slurmd that Slurm does not know")
    assert "n/a" in stand.ssh("sinfo -h -p main").stdout


def test_a_job_for_a_partition_that_is_not_declared_is_refused(stand: Stand) -> None:
    values = stand.values()
    partitions = values[CLUSTER]["partitionConfiguration"]["partitions"]
    values[CLUSTER]["partitionConfiguration"]["partitions"] = partitions[:1]
    stand.apply(values)
    stand.wait_idle("worker-[0-1]")
    refused = stand.ssh("sbatch -p hidden --wrap hostname")
    assert refused.returncode != 0
    assert "invalid partition specified" in refused.stderr


def test_a_nodeset_that_names_another_cluster_is_ignored(stand: Stand) -> None:
    values = stand.values()
    key = "slurm.nebius.ai/parental-cluster-ref"
    values[NODESETS]["nodesets"][0]["annotations"][key] = "slurm1"
    stand.apply(values)
    stand.wait_message("NodeSet", "worker", "no SlurmCluster 'slurm1'")
    stand.wait(lambda: stand.ssh("true").returncode == 0, "login")
    assert not process.alive("slurm-worker-0", stand.cloud.state.run)


def test_a_line_that_slurmctld_refuses_is_a_crash_loop_with_its_count(stand: Stand) -> None:
    """`up` takes it for one after four restarts."""
    values = stand.values()
    values[CLUSTER]["customSlurmConfig"] = "NoSuchParameter=1"
    stand.apply(values)

    def causes() -> list[str]:
        found = blocked(stand.client, "soperator", [stand.pod("controller-0")])
        return [cause.what for cause in found.values()]

    stand.wait(lambda: bool(stand.pod("controller-0")), "the pod")
    ends = "container slurmctld ends again and again"
    stand.wait(lambda: ends in "".join(causes()), ends)
    (container,) = stand.pod("controller-0")["status"]["containerStatuses"]
    assert container["restartCount"] >= 4


def test_a_cluster_without_the_jail_source_does_not_come_up(stand: Stand) -> None:
    values = stand.values()
    sources = values[CLUSTER]["volumeSources"]
    values[CLUSTER]["volumeSources"] = [item for item in sources if item["name"] != "jail"]
    stand.apply(values)
    stand.wait_message("SlurmCluster", "soperator", "no source named 'jail'")
    assert stand.ssh("true").returncode != 0


@pytest.mark.feature("S000-37")
def test_a_submount_that_is_not_declared_is_absent_in_jobs(stand: Stand) -> None:
    values = stand.values()
    volumes = values[NODESETS]["nodesets"][0]["slurmd"]["volumes"]
    volumes["jailSubMounts"] = [m for m in volumes["jailSubMounts"] if m["name"] != "memory"]
    stand.apply(values)
    stand.wait_idle("worker-[0-1]")
    job = stand.submit("findmnt /mnt/ram || echo absent")
    assert stand.output(job).strip() == "absent"


def test_a_claim_that_nobody_made_keeps_the_workers_pending(stand: Stand) -> None:
    values = stand.values()
    values["helm-slurm-cluster-storage"]["volume"]["jailSubMounts"].pop(0)
    stand.apply(values)
    claim = 'persistentvolumeclaim "jail-submount-data-pvc" not found'
    stand.wait_message("NodeSet", "worker", claim)
    stand.wait_message("SlurmCluster", "soperator", claim)
    told = ("FailedScheduling", f"0/6 nodes are available: {claim}.")
    stand.wait(lambda: told in stand.events("login-0"), "an event of the login pod")


def test_a_secret_that_lacks_a_host_key_keeps_login_and_workers_from_starting(
    stand: Stand,
) -> None:
    """Soperator mounts six files of the Secret by name, in workers too; none is optional."""
    stand.apply(stand.values(), without_key="ssh_host_ecdsa_key")
    told = (
        'MountVolume.SetUp failed for volume "sshd-keys" : '
        "references non-existent secret key: ssh_host_ecdsa_key"
    )
    for name in ("login-0", "worker-0", "worker-1"):
        stand.wait(lambda name=name: ("FailedMount", told) in stand.events(name), name)
        (container,) = stand.pod(name)["status"]["containerStatuses"]
        assert container["state"] == {"waiting": {"reason": "PodInitializing"}}
    stand.wait(lambda: stand.is_ready("controller-0"), "the controller, which mounts no host key")
    stand.wait_message("SlurmCluster", "soperator", told)
    stand.wait_message("NodeSet", "worker", told)
    assert stand.ssh("true").returncode != 0


def test_a_mount_at_the_operators_own_path_makes_the_pods_invalid(stand: Stand) -> None:
    """Soperator has a tmpfs at /mnt/memory in every login and worker pod."""
    values = stand.values()
    volumes = values[NODESETS]["nodesets"][0]["slurmd"]["volumes"]
    volumes["jailSubMounts"][-1]["mountPath"] = "/mnt/memory"
    stand.apply(values)
    invalid = (
        'Pod "worker-0" is invalid: spec.containers[0].volumeMounts[20].mountPath: '
        'Invalid value: "/mnt/jail.upper/mnt/memory": must be unique'
    )
    told = f"create Pod worker-0 in StatefulSet worker failed error: {invalid}"
    stand.wait(lambda: ("FailedCreate", told) in stand.events("worker"), "an event of the set")
    stand.wait_message("NodeSet", "worker", invalid)
    assert not stand.pod("worker-0")
    assert not process.alive("slurm-worker-0", stand.cloud.state.run)
    stand.wait(lambda: stand.is_ready("login-0"), "the login pod")


def test_a_claim_that_the_accounting_volume_does_not_fit_keeps_slurmctld_waiting(
    stand: Stand,
) -> None:
    """The chart's volume offers ReadWriteMany alone; slurmctld waits for accounting."""
    values = stand.values()
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "slurm-local-pv",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    values[CLUSTER]["slurmNodes"]["accounting"] |= {
        "enabled": True,
        "mariadbOperator": {"enabled": True, "storage": {"volumeClaimTemplate": claim}},
    }
    stand.apply(values)
    unbound = "1 node(s) didn't find available persistent volumes to bind"
    stand.wait_message("SlurmCluster", "soperator", unbound)
    stand.wait(
        lambda: "conditions" in stand.pod("soperator-acct-db-0").get("status", {}),
        "the scheduler's word",
    )
    (condition,) = stand.pod("soperator-acct-db-0")["status"]["conditions"]
    assert (condition["reason"], condition["status"]) == ("Unschedulable", "False")
    assert condition["message"].startswith(f"0/6 nodes are available: {unbound}")

    def waits_for_accounting() -> bool:
        states = {
            each["name"]: each["state"]
            for each in stand.pod("controller-0")["status"]["initContainerStatuses"]
        }
        return "running" in states["wait-for-accounting"]

    stand.wait(waits_for_accounting, "slurmctld's init container")
    assert not process.alive("slurm-controller-0", stand.cloud.state.run)
    # Neither a claim's modes nor a set's templates ever change: both are made anew.
    claim["accessModes"] = ["ReadWriteMany"]
    place = {"name": "soperator-acct-db", "namespace": "soperator"}
    database = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": place}

    def made_of() -> str:
        return annotation(stand.client.get(database) or {"metadata": {}}, MADE)

    before = made_of()
    stand.apply(values)
    # A set that goes while the operator still reads the cluster of before is made as it was.
    stand.wait(lambda: made_of() != before, "a set that has seen the change")
    for version, kind, name in (
        ("apps/v1", "StatefulSet", "soperator-acct-db"),
        ("v1", "PersistentVolumeClaim", "storage-soperator-acct-db-0"),
    ):
        place = {"name": name, "namespace": "soperator"}
        stand.client.delete({"apiVersion": version, "kind": kind, "metadata": place})
    # A first start of MariaDB, slurmdbd and slurmctld one after the other.
    stand.wait(lambda: stand.is_ready("controller-0"), "slurmctld", timeout_s=2 * WAIT_S)
    stand.wait_idle("worker-[0-1]")


def test_a_deleted_pod_is_made_anew_with_its_daemon(stand: Stand) -> None:
    stand.apply(stand.values())
    stand.wait(lambda: stand.is_ready("login-0"), "the login pod")
    before, pid = stand.pod("login-0"), stand.pid("slurm-login-0")
    stand.client.delete(before)
    stand.wait(
        lambda: (
            # The old one is ready until it is gone, and then there is none for a moment.
            stand.pod("login-0").get("metadata", before["metadata"])["uid"]
            != before["metadata"]["uid"]
            and stand.is_ready("login-0")
            and stand.pid("slurm-login-0") not in (0, pid)
        ),
        "another login pod with another sshd",
    )


def test_a_filesystem_that_is_not_attached_keeps_the_workers_pending(stand: Stand) -> None:
    tags = tuple(tag for tag in TAGS if tag != "jail-submount-data")
    stand.apply(stand.values(), node_groups(tags=tags))
    stand.wait_message("NodeSet", "worker", "no filesystem with mount tag 'jail-submount-data'")


@pytest.mark.feature("S000-58")
def test_a_cluster_without_user_keys_lets_nobody_in(stand: Stand) -> None:
    values = stand.values()
    values[CLUSTER]["slurmNodes"]["login"]["sshRootPublicKeys"] = []
    stand.apply(values)
    stand.wait_message("SlurmCluster", "soperator", "login.sshRootPublicKeys is empty")
    stand.wait(lambda: "Permission denied" in stand.ssh("true").stderr, "a refusal")


def test_host_keys_that_are_not_declared_break_the_pinning(stand: Stand) -> None:
    values = stand.values()
    values[CLUSTER]["secrets"] = {}
    stand.apply(values)
    stand.wait(lambda: stand.status("SlurmCluster", "soperator").get("readyLogin") == 1, "login")
    assert "Host key verification failed" in stand.ssh("true").stderr


def test_fewer_replicas_make_fewer_nodes(stand: Stand) -> None:
    values = stand.values()
    values[NODESETS]["nodesets"][0]["replicas"] = 1
    stand.apply(values)
    stand.wait_idle("worker-0")
    assert stand.ssh("sinfo -h -N -p main -o %N").stdout.split() == ["worker-0"]


def test_tree_topology_without_infiniband_keeps_gpu_workers_away(stand: Stand) -> None:
    values = stand.values()
    values[CLUSTER]["slurmConfig"] = {}
    stand.apply(values)
    stand.wait_message("NodeSet", "worker", "worker-init waits for the label")


def test_a_nodeset_that_selects_no_node_stays_pending(stand: Stand) -> None:
    values = stand.values()
    selector = {"slurm.nebius.ai/nodeset-name": "worker-h100"}
    values[NODESETS]["nodesets"][0]["nodeSelector"] = selector
    stand.apply(values)
    stand.wait_message("NodeSet", "worker", "no node matches nodeSelector")


def test_a_taint_that_is_not_tolerated_keeps_the_workers_pending(stand: Stand) -> None:
    values = stand.values()
    values[NODESETS]["nodesets"][0]["tolerations"] = []
    stand.apply(values)
    stand.wait_message("NodeSet", "worker", "taint nvidia.com/gpu")


def test_a_third_worker_waits_for_a_third_node(stand: Stand) -> None:
    values = stand.values()
    values[NODESETS]["nodesets"][0]["replicas"] = 3
    stand.apply(values)
    stand.wait_idle("worker-[0-1]")
    stand.wait_message("NodeSet", "worker", "2 of 3 ready; worker-2: insufficient")


def test_rest_without_accounting_is_skipped_and_said(stand: Stand) -> None:
    values = stand.values()
    values[CLUSTER]["slurmNodes"]["rest"]["enabled"] = True
    stand.apply(values)
    stand.wait_message("SlurmCluster", "soperator", "it needs accounting.enabled")


def stranger_on(port: int) -> socket.socket:
    """Another program that listens there; connections of the test before may still be fading."""
    stranger = socket.socket()
    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    stranger.bind(("127.0.0.1", port))
    stranger.listen()
    return stranger


def test_a_stranger_on_the_ssh_port_is_told_until_he_leaves(stand: Stand) -> None:
    with stranger_on(stand.ssh_port):
        stand.apply(stand.values())
        told = f"port {stand.ssh_port} of 127.0.0.1 is in use by another program; stop it or "
        stand.wait_message("SlurmCluster", "soperator", told + "declare a free port")
        conditions = stand.status("SlurmCluster", "soperator")["conditions"]
        assert [c["type"] for c in conditions if c["reason"] == PORT_IN_USE] == ["LoginAvailable"]
    stand.wait_idle("worker-[0-1]")


def test_a_stranger_on_a_port_of_slurmd_is_told_with_the_setting(stand: Stand) -> None:
    port = stand.cloud.ports.slurmd(0)
    with stranger_on(port):
        stand.apply(stand.values())
        told = f"port {port} is in use by another program; stop it or set {PORT_SETTING}"
        stand.wait_message("NodeSet", "worker", told)
        (condition,) = stand.status("NodeSet", "worker")["conditions"]
        assert condition["reason"] == PORT_IN_USE
    stand.wait_idle("worker-[0-1]")
