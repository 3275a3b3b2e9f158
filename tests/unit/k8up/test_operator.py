"""The stand-in of k8up: what schedules make, what a job is started with, and what it reports."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from infra.local import k8up as k8up
from infra.local import process
from infra.local.k8up import K8up
from infra.render import backup as render
from infra.render import backup as restoring
from infra.state import State
from stacks.spec.storage import BackupSpec

NAMESPACE = "soperator"
MORNING = datetime(2026, 11, 21, 3, 29, tzinfo=UTC)
SECRETS = {"password": "PASSWORD", "secret": "SECRET-KEY"}


class Cluster:
    """The API server's objects, as much of it as the operator asks for."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}

    def apply(self, target: dict[str, Any]) -> None:
        key = (target["kind"], target["metadata"]["name"])
        known = self.objects.get(key, {})
        head = {"creationTimestamp": f"2026-11-21T03:00:{len(self.objects):02}Z", "uid": str(key)}
        metadata = {**head, **target["metadata"]}
        self.objects[key] = {**known, **target, "metadata": metadata}

    def list(self, version: str, kind: str) -> list[dict[str, Any]]:
        return [each for (own, _), each in self.objects.items() if own == kind]

    def merge_patch(self, target: Mapping[str, Any], patch: Any, *, subresource: str) -> None:
        live = self.objects[target["kind"], target["metadata"]["name"]]
        live["status"] = {**live.get("status", {}), **patch["status"]}

    def delete(self, target: Mapping[str, Any]) -> None:
        del self.objects[target["kind"], target["metadata"]["name"]]


class Processes:
    """Recorded processes that run until a test ends them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: dict[str, dict[str, Any]] = {}
        self.running: set[str] = set()
        monkeypatch.setattr(process, "start", self._start)
        monkeypatch.setattr(process, "alive", lambda name, run_dir: name in self.running)
        monkeypatch.setattr(process, "stop", lambda name, run_dir: self.running.discard(name))
        monkeypatch.setattr(process, "all_processes", self._all)
        monkeypatch.setattr(k8up.shutil, "which", lambda name: f"/usr/bin/{name}")

    def _start(self, name: str, argv: list[str], **options: Any) -> None:
        self.started[name] = {"argv": argv, **options}
        self.running.add(name)

    def _all(self, run_dir: Path) -> list[process.Process]:
        return [
            process.Process(name=name, pid=0, start_ticks=0, boot_id="", argv=(), log="")
            for name in sorted(self.running)
        ]


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    data = render.secret_data(
        key_id="KEY", secret=SECRETS["secret"], password=SECRETS["password"], earlier={}
    )
    coded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    place = {"namespace": NAMESPACE}
    made.apply({"kind": "Secret", "metadata": {"name": render.SECRET, **place}, "data": coded})
    spec = render.pod_config_spec()
    made.apply(
        {"kind": "PodConfig", "metadata": {"name": render.POD_CONFIG, **place}, "spec": spec}
    )
    for each in jail_objects():
        made.apply(each)
    return made


def jail_objects() -> list[dict[str, Any]]:
    """The jail's volume and claim, and a tainted node that has the filesystem."""
    place = {"matchExpressions": [{"key": "jail", "operator": "In", "values": ["true"]}]}
    shared = {"accessModes": ["ReadWriteMany"], "storageClassName": "slurm-local-pv"}
    reference = {"namespace": NAMESPACE, "name": render.CLAIM}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    return [
        {
            "kind": "PersistentVolume",
            "metadata": {"name": "jail-pv", "annotations": {"local.soperator/mount-tag": "jail"}},
            "spec": {
                **shared,
                "capacity": {"storage": "1Gi"},
                "local": {"path": "/mnt/jail"},
                "claimRef": reference,
                "nodeAffinity": {"required": {"nodeSelectorTerms": [place]}},
            },
        },
        {
            "kind": "PersistentVolumeClaim",
            "metadata": {**reference, "annotations": {"k8up.io/backup": "true"}},
            "spec": {**shared, "resources": {"requests": {"storage": "1Gi"}}},
        },
        {
            "kind": "Node",
            "metadata": {
                "name": "node",
                "labels": {"jail": "true"},
                "annotations": {"local.soperator/filesystems": "jail=computefilesystem-1"},
            },
            "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
            "status": ready,
        },
    ]


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    return Processes(monkeypatch)


@pytest.fixture
def operator(tmp_path: Path, cluster: Cluster, processes: Processes) -> K8up:
    made = K8up(cluster, State(tmp_path))  # pyright: ignore[reportArgumentType]
    made.now = lambda: MORNING
    return made


def schedule(**changed: Any) -> dict[str, Any]:
    given = {"schedule": "30 3 * * *", "prune_schedule": "0 5 * * 0", **changed}
    backup = BackupSpec(keep_daily=7, size_gib=1, **given)
    spec = render.schedule_spec(backup, bucket="b", endpoint="http://s3", repository="fp")
    metadata = {"name": render.SCHEDULE, "namespace": NAMESPACE}
    return {"kind": "Schedule", "metadata": metadata, "spec": spec}


def backup(cluster: Cluster, name: str = "now", **spec: Any) -> None:
    shared = {"backend": schedule()["spec"]["backend"], "podConfigRef": {"name": render.POD_CONFIG}}
    metadata = {"name": name, "namespace": NAMESPACE}
    cluster.apply({"kind": "Backup", "metadata": metadata, "spec": {**shared, **spec}})


def conditions(cluster: Cluster, kind: str, name: str) -> dict[str, tuple[str, str]]:
    found = cluster.objects[kind, name].get("status", {}).get("conditions", [])
    return {each["type"]: (each["reason"], each["message"]) for each in found}


def end(operator: K8up, processes: Processes, name: str, status: str | None, log: str = "") -> None:
    """The process ends as it would."""
    processes.running.discard(f"k8up-{name}")
    out = operator.runner.folder / "pods" / name / "out"
    (out / "log").write_text(log)
    if status is not None:
        (out / "status").write_text(f"{status}\n")


def test_a_schedule_makes_a_backup_of_its_own_at_its_minute_and_one_only(
    operator: K8up, cluster: Cluster, processes: Processes
) -> None:
    cluster.apply(schedule())
    operator.step()
    assert not cluster.list("", "Backup")
    for minutes in (1, 1, 2):
        operator.now = lambda later=MORNING + timedelta(minutes=minutes): later
        operator.step()
    (made,) = cluster.list("", "Backup")
    assert made["metadata"]["ownerReferences"][0]["name"] == render.SCHEDULE
    assert "schedule" not in made["spec"]
    assert made["spec"]["tags"] == ["soperator-jail-schedule"]
    assert not cluster.list("", "Prune")
    effective = cluster.objects["Schedule", render.SCHEDULE]["status"]["effectiveSchedules"]
    assert {"jobType": "backup", "generatedSchedule": "30 3 * * *"} in effective


def test_secrets_are_in_the_environment_of_a_job_and_nowhere_else(
    operator: K8up, cluster: Cluster, processes: Processes
) -> None:
    backup(cluster, tags=["t"])
    assert operator.step()
    started = processes.started["k8up-backup-now"]
    assert started["env"]["RESTIC_PASSWORD"] == SECRETS["password"]
    assert started["env"]["AWS_SECRET_ACCESS_KEY"] == SECRETS["secret"]
    assert started["env"]["RESTIC_REPOSITORY"] == "s3:http://s3/b/fp"
    written = [path.read_text() for path in operator.runner.folder.rglob("*") if path.is_file()]
    assert any("--tag t /data/jail-pvc" in text for text in written)
    for text in (*written, *started["argv"]):
        assert not [each for each in SECRETS.values() if each in text]


def test_jobs_run_one_after_the_other_the_oldest_first(
    operator: K8up, cluster: Cluster, processes: Processes
) -> None:
    backup(cluster, "one")
    backup(cluster, "two")
    operator.step()
    operator.step()
    assert processes.running == {"k8up-backup-one"}
    end(operator, processes, "backup-one", "0")
    operator.step()
    assert conditions(cluster, "Backup", "one")["Completed"][0] == "Succeeded"
    assert processes.running == {"k8up-backup-two"}


@pytest.mark.parametrize(
    ("status", "told"),
    [("1", "restic ended with 1: Fatal: no"), (None, "restic ended with killed")],
)
def test_a_job_that_fails_or_is_killed_says_so(
    operator: K8up, cluster: Cluster, processes: Processes, status: str | None, told: str
) -> None:
    backup(cluster)
    operator.step()
    end(operator, processes, "backup-now", status, "much\nFatal: no\n")
    operator.step()
    reason, message = conditions(cluster, "Backup", "now")["Completed"]
    assert reason == "Failed"
    assert message.startswith(told)
    assert not (operator.runner.folder / "pods" / "backup-now").exists()


def test_a_job_whose_pod_no_node_takes_waits_and_says_why(
    operator: K8up, cluster: Cluster, processes: Processes
) -> None:
    """Every node with the jail has a taint of its role; k8up's restores tolerate none."""
    backup(cluster, podConfigRef=None)
    operator.step()
    assert "not tolerated" in conditions(cluster, "Backup", "now")["Ready"][1]
    assert not processes.started
    backup(cluster)
    operator.step()
    assert processes.started


def test_a_job_that_cannot_start_holds_no_other_one_up(
    operator: K8up, cluster: Cluster, processes: Processes
) -> None:
    """A restore into a claim that is not there would end all backups from then on."""
    backup(cluster, "stuck", podConfigRef=None)
    backup(cluster, "two")
    operator.step()
    assert "not tolerated" in conditions(cluster, "Backup", "stuck")["Ready"][1]
    assert processes.running == {"k8up-backup-two"}


def test_a_missing_password_and_a_missing_claim_are_named(
    operator: K8up, cluster: Cluster, processes: Processes
) -> None:
    del cluster.objects["Secret", render.SECRET]["data"]["backup-password"]
    backup(cluster)
    operator.step()
    assert conditions(cluster, "Backup", "now")["Ready"][1] == (
        "secret 'jail-backup' has no key 'backup-password'"
    )
    del cluster.objects["PersistentVolumeClaim", render.CLAIM]
    operator.step()
    assert "no claim has the annotation" in conditions(cluster, "Backup", "now")["Ready"][1]


def test_a_restore_beside_writes_to_the_folder_of_the_jail_that_its_volume_names(
    operator: K8up, cluster: Cluster, processes: Processes
) -> None:
    backend = schedule()["spec"]["backend"]
    for each in restoring.folder_objects("back", NAMESPACE):
        cluster.apply(each)
    cluster.objects["Node", "node"]["metadata"]["labels"]["slurm.nebius.ai/jail"] = "true"
    target = restoring.restore(
        "back", NAMESPACE, backend=backend, snapshot="ab" * 32, claim="back", path="/home/x"
    )
    cluster.apply(target)
    operator.step()
    script = (operator.runner.folder / "pods" / "restore-back" / "start.sh").read_text()
    assert "filesystems/computefilesystem-1/mnt/restored/back" in script
    assert f"restore {'ab' * 32} --target /restore --include /data/jail-pvc/home/x" in script


def test_a_job_without_its_object_is_ended(
    operator: K8up, cluster: Cluster, processes: Processes
) -> None:
    backup(cluster)
    operator.step()
    del cluster.objects["Backup", "now"]
    operator.step()
    assert not processes.running


def test_as_many_jobs_are_kept_as_they_say(
    operator: K8up, cluster: Cluster, processes: Processes
) -> None:
    for name in ("one", "two", "three"):
        backup(cluster, name, successfulJobsHistoryLimit=2)
        operator.step()
        end(operator, processes, f"backup-{name}", "0")
        operator.step()
    operator.step()
    assert {each["metadata"]["name"] for each in cluster.list("", "Backup")} == {"two", "three"}
