"""The stand-in of the k8up operator: Schedules, Backups, Prunes and Restores become runs of restic.

Owns one pass: what is due is made an object, what ended gets its status and its Snapshots, the
oldest that waits is started. One job at a time, since prunes and restores are exclusive in k8up
too. Safe to kill at any point: the next pass finds what runs by its records.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from infra import whole_file
from infra.kube.client import KubeClient
from infra.kube.errors import KubeError
from infra.local.k8up import cron, runs
from infra.local.k8up.claims import claim_folder
from infra.local.k8up.runs import Outcome, Runner, Work
from infra.local.reconcile.snapshot import Object, Snapshot, annotation, name_of, secret_data
from infra.local.reconcile.volumes import Places, UnboundError
from infra.local.state import State

API_VERSION: Final = "k8up.io/v1"
ANNOTATION: Final = "k8up.io/backup"
_JOBS: Final = ("Backup", "Prune", "Restore")
_SCHEDULED: Final = {"backup": "Backup", "prune": "Prune"}
_TIMES: Final = ("schedule", "concurrentRunsAllowed")
_KINDS: Final = (
    ("v1", "Node"),
    ("v1", "PersistentVolume"),
    ("v1", "PersistentVolumeClaim"),
    ("v1", "Secret"),
)


def utc_now() -> datetime:
    """This moment."""
    return datetime.now(UTC)


@dataclass(slots=True)
class K8up:
    """The operator of one state folder."""

    client: KubeClient
    state: State
    now: Callable[[], datetime] = utc_now
    runner: Runner = field(init=False)
    _places: Places = field(init=False)

    def __post_init__(self) -> None:
        folder = self.state.local / "k8up"
        self.runner = Runner(folder, self.state.run)
        self._places = Places(filesystems=self.state.local / "filesystems", pods=folder / "pods")

    def step(self) -> bool:
        """One pass over everything; True while there is something to do."""
        self._follow_schedules()
        waiting: list[Object] = []
        running, known, recorded = False, set[str](), self.runner.names()
        for kind in _JOBS:
            found = sorted(self._list(kind), key=_age)
            for job in found:
                known.add(_job_name(job))
                status = job.get("status") or {}
                if status.get("finished"):
                    if _job_name(job) in recorded:  # killed between its status and its end
                        self.runner.forget(_job_name(job))
                    continue
                if not status.get("started"):
                    waiting.append(job)
                elif (outcome := self.runner.outcome(_job_name(job))) is None:
                    running = True
                else:
                    self._finish(job, outcome)
            self._trim(found)
        for name in recorded:
            if name not in known:
                self.runner.forget(name)
        if waiting and not running:
            self._start(min(waiting, key=_age))
        return running or bool(waiting)

    def _follow_schedules(self) -> None:
        """Makes the objects that are due since the last pass."""
        path, now = self.state.local / "k8up" / "schedules.json", self.now()
        seen: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
        kept: dict[str, str] = {}
        for schedule in self._list("Schedule"):
            namespace, name = schedule["metadata"]["namespace"], name_of(schedule)
            effective: list[dict[str, str]] = []
            for part, kind in _SCHEDULED.items():
                spec = schedule["spec"].get(part)
                if not spec or not spec.get("schedule"):
                    continue
                text = cron.effective(spec["schedule"], namespace=namespace, name=name, job=part)
                effective.append({"jobType": part, "generatedSchedule": text})
                key = f"{schedule['metadata']['uid']} {part}"
                kept[key] = now.isoformat()
                # A schedule that is seen for the first time starts to count now.
                since = datetime.fromisoformat(seen.get(key, kept[key]))
                if cron.is_due(text, since, now):
                    self.client.apply(_scheduled(schedule, part, kind))
            if (schedule.get("status") or {}).get("effectiveSchedules") != effective:
                status = {"effectiveSchedules": effective}
                self.client.merge_patch(schedule, {"status": status}, subresource="status")
        if kept != seen:
            whole_file.write(path, json.dumps(kept, indent=1) + "\n")

    def _start(self, job: Object) -> None:
        snapshot = Snapshot.of(
            item for version, kind in _KINDS for item in self.client.list(version, kind)
        )
        try:
            if shutil.which("restic") is None:
                raise UnboundError("restic is not installed; run `make setup`")
            work = self._work(job, snapshot)
            environment = _environment(job, snapshot)
        except UnboundError as error:
            self._report(job, {"conditions": [self._condition("Ready", "CreationFailed", error)]})
            return
        self.runner.start(_job_name(job), work, environment)
        started = self._condition("Progressing", "Started", "The job is progressing", holds=True)
        self._report(job, {"started": True, "conditions": [started]})

    def _work(self, job: Object, snapshot: Snapshot) -> Work:
        spec, namespace = job["spec"], job["metadata"]["namespace"]
        rules = self._pod_rules(spec, namespace)

        def folder(claim: str) -> Path:
            return claim_folder(
                claim, namespace, snapshot=snapshot, places=self._places, rules=rules
            )

        if job["kind"] == "Prune":
            return runs.prune(spec.get("retention") or {})
        marked = [
            name_of(claim)
            for claim in snapshot.all("PersistentVolumeClaim", namespace)
            if annotation(claim, ANNOTATION) == "true"
        ]
        if job["kind"] == "Backup":
            if not marked:
                raise UnboundError(f"no claim has the annotation {ANNOTATION}: true")
            claims = {name: folder(name) for name in marked}
            return runs.backup(claims, host=namespace, tags=spec.get("tags") or ())
        id_ = spec.get("snapshot", "")
        return runs.restore(
            folder(spec["restoreMethod"]["folder"]["claimName"]),
            snapshot=id_,
            host=namespace,
            source=self._source(id_, marked),
            include=spec.get("restoreFilter", ""),
        )

    def _source(self, id_: str, marked: list[str]) -> str:
        """The path that a snapshot has, or that of the claim which is copied."""
        for found in self._list("Snapshot"):
            if id_ and found["spec"].get("id", "").startswith(id_):
                return found["spec"]["paths"][0]
        if not marked:
            raise UnboundError(f"no claim has the annotation {ANNOTATION}: true")
        return f"/data/{marked[0]}"

    def _pod_rules(self, spec: Mapping[str, Any], namespace: str) -> Mapping[str, Any]:
        name = (spec.get("podConfigRef") or {}).get("name")
        for found in self._list("PodConfig") if name else ():
            if name_of(found) == name and found["metadata"]["namespace"] == namespace:
                return found["spec"]["template"]["spec"]
        return {}

    def _finish(self, job: Object, outcome: Outcome) -> None:
        if outcome.snapshots is not None:
            self._sync_snapshots(job, outcome.snapshots)
        reason = "Succeeded" if outcome.succeeded else "Failed"
        completed = self._condition("Completed", reason, outcome.message, holds=True)
        progress = self._condition("Progressing", "Finished", outcome.message)
        status = {"started": True, "finished": True, "conditions": [progress, completed]}
        self._report(job, status)
        self.runner.forget(_job_name(job))

    def _sync_snapshots(self, job: Object, listed: tuple[dict[str, Any], ...]) -> None:
        """Makes the Snapshots of the job's repository those that restic lists."""
        namespace, repository = job["metadata"]["namespace"], _repository(job)
        wanted = {item["id"]: item for item in listed if item["hostname"] == namespace}
        for found in self._list("Snapshot"):
            if found["spec"].get("repository") != repository:
                continue
            if wanted.pop(found["spec"]["id"], None) is None:
                self.client.delete(found)
        for id_, item in wanted.items():
            spec = {"id": id_, "paths": item["paths"], "repository": repository}
            spec["date"] = f"{item['time'].partition('.')[0].removesuffix('Z')}Z"
            self.client.apply(_object("Snapshot", id_[:8], namespace, spec))

    def _trim(self, jobs: list[Object]) -> None:
        """Removes the oldest of those that succeeded, beyond what they say themselves."""
        done = [job for job in jobs if _reason(job) == "Succeeded"]
        for index, job in enumerate(reversed(done)):
            limit = job["spec"].get("successfulJobsHistoryLimit")
            if limit is not None and index >= limit:
                self.client.delete(job)

    def _report(self, job: Object, status: Mapping[str, Any]) -> None:
        old = (job.get("status") or {}).get("conditions") or []
        said = [(each["type"], each["message"]) for each in old]
        if said == [(each["type"], each["message"]) for each in status["conditions"]]:
            return
        try:
            self.client.merge_patch(job, {"status": dict(status)}, subresource="status")
        except KubeError as error:
            if error.status != 404:  # deleted meanwhile
                raise

    def _condition(
        self, type_: str, reason: str, message: object, *, holds: bool = False
    ) -> dict[str, Any]:
        return {
            "type": type_,
            "status": "True" if holds else "False",
            "reason": reason,
            "message": str(message),
            "lastTransitionTime": self.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
        }

    def _list(self, kind: str) -> list[Object]:
        found = self.client.list(API_VERSION, kind)
        return [each for each in found if "deletionTimestamp" not in each["metadata"]]


def _scheduled(schedule: Object, part: str, kind: str) -> Object:
    """The object that a schedule makes when it is due."""
    spec = schedule["spec"]
    own = {key: value for key, value in spec[part].items() if key not in _TIMES}
    shared = {key: spec[key] for key in ("backend", "podSecurityContext") if key in spec}
    head = schedule["metadata"]
    name = f"{name_of(schedule)}-{part}-{secrets.token_hex(3)}"
    made = _object(kind, name, head["namespace"], {**shared, **own})
    owner = {"apiVersion": API_VERSION, "kind": "Schedule", "name": name_of(schedule)}
    made["metadata"]["ownerReferences"] = [{**owner, "uid": head["uid"]}]
    return made


def _environment(job: Object, snapshot: Snapshot) -> dict[str, str]:
    backend, namespace = job["spec"]["backend"], job["metadata"]["namespace"]
    s3 = backend["s3"]
    return {
        "AWS_ACCESS_KEY_ID": _secret(s3["accessKeyIDSecretRef"], namespace, snapshot),
        "AWS_SECRET_ACCESS_KEY": _secret(s3["secretAccessKeySecretRef"], namespace, snapshot),
        "RESTIC_PASSWORD": _secret(backend["repoPasswordSecretRef"], namespace, snapshot),
        "RESTIC_REPOSITORY": _repository(job),
    }


def _secret(reference: Mapping[str, str], namespace: str, snapshot: Snapshot) -> str:
    found = snapshot.find("Secret", reference["name"], namespace)
    value = secret_data(found).get(reference["key"]) if found is not None else None
    if value is None:
        raise UnboundError(f"secret '{reference['name']}' has no key '{reference['key']}'")
    return value.decode()


def _repository(job: Object) -> str:
    s3 = job["spec"]["backend"]["s3"]
    return f"s3:{s3['endpoint']}/{s3['bucket']}"


def _object(kind: str, name: str, namespace: str, spec: Mapping[str, Any]) -> Object:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": dict(spec)}


def _job_name(job: Object) -> str:
    return f"{job['kind'].lower()}-{name_of(job)}"


def _age(job: Object) -> tuple[str, str]:
    return job["metadata"]["creationTimestamp"], name_of(job)


def _reason(job: Object) -> str:
    conditions = (job.get("status") or {}).get("conditions") or []
    return next((each["reason"] for each in conditions if each["type"] == "Completed"), "")
