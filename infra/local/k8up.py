"""The stand-in of k8up: Schedules, Backups, Prunes and Restores become runs of real restic.

One pass makes what is due an object, gives what ended its status and Snapshots, and starts the
oldest that can start: one at a time, since prunes and restores are exclusive in k8up too. Safe to
kill at any point: the next pass finds what runs by its records. Secrets are in the environment of
the process and nowhere on the disk. The random words of schedules follow k8up's
operator/handler/randomizer.go (read 2026-11-21): the same minute everywhere. Times are UTC.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

from infra import files
from infra.clients.errors import AbsentError
from infra.clients.kube import KubeClient
from infra.clients.kube_rules import Scheduler, condition, kubernetes_time
from infra.local import process
from infra.local.reconcile.snapshot import (
    Object,
    Places,
    Snapshot,
    UnboundError,
    annotation,
    bound_volume,
    filesystem_folder,
    name_of,
    secret_data,
)
from infra.local.slurm import pod as pods
from infra.local.slurm.pod import Mount, PodSpec
from infra.render.names import kube_object
from infra.state import State
from stacks.schedule import WORDS, CronError, parse_k8up

_MISSED: Final = timedelta(minutes=10)
"""The operator keeps no memory: what was due while nobody ran is not made up for."""


def effective(schedule: str, *, namespace: str, name: str, job: str) -> str:
    """Five fields of cron for what a Schedule says of one kind of job."""
    if not schedule.endswith("-random"):
        return WORDS.get(schedule, schedule)
    seed = f"{namespace}/{name}@{job}"
    number = int(hashlib.sha1(seed.encode(), usedforsecurity=False).hexdigest(), 16)
    minute, hour, day = number % 60, number % 24, 1 + number % 27
    made = {
        "@hourly-random": f"{minute} * * * *",
        "@daily-random": f"{minute} {hour} * * *",
        "@weekly-random": f"{minute} {hour} * * {number % 6}",
        "@monthly-random": f"{minute} {hour} {day} * *",
        "@yearly-random": f"{minute} {hour} {day} {1 + number % 12} *",
    }
    return made.get(schedule, schedule)


def is_due(cron: str, since: datetime, now: datetime) -> bool:
    """Whether a minute after `since` and up to `now` is one of the schedule's.

    What the operator's cron cannot read is never due, as there.
    """
    try:
        # Between the fields it takes any white space.
        found = parse_k8up(" ".join(cron.split()))
    except CronError:
        return False
    return any(at <= now for at in found.next_times(max(since, now - _MISSED), 1))


def _on_node(volume: Object, node: Object, snapshot: Snapshot, places: Places) -> Path:
    host_path = volume["spec"].get("hostPath")
    if host_path is None:
        return filesystem_folder(volume, node, places)
    # A folder of the node that lies on another volume's mount.
    path = PurePosixPath(host_path["path"])
    for other in snapshot.all("PersistentVolume"):
        mount = (other["spec"].get("local") or {}).get("path")
        if mount is not None and path.is_relative_to(mount):
            return filesystem_folder(other, node, places) / path.relative_to(mount)
    raise UnboundError(f"PersistentVolume {name_of(volume)}: {path} is on no filesystem")


PREFIX: Final = "k8up-"
"""Start of the names of its processes."""
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OUT: Final = "/out"
_DATA: Final = "/data"
_RESTORE: Final = "/restore"
_RESTIC: Final = "restic --no-cache"
_LISTING: Final = f"{_RESTIC} snapshots --json > {_OUT}/snapshots.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a job does."""

    steps: tuple[str, ...]
    """Shell commands, one after the other until one fails."""
    mounts: tuple[Mount, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job ended."""

    succeeded: bool
    message: str
    snapshots: tuple[dict[str, Any], ...] | None
    """What the repository holds, as restic prints it; None where the job does not ask."""


def backup(claims: Mapping[str, Path], *, host: str, tags: Sequence[str]) -> Work:
    """Copies each claim's folder into a repository that is made first."""
    marks = " ".join(f"--tag {shlex.quote(tag)}" for tag in tags)
    copies = (
        f"{_RESTIC} backup --host {shlex.quote(host)} {marks} {_DATA}/{shlex.quote(claim)}"
        for claim in claims
    )
    mounts = (
        Mount(path=f"{_DATA}/{claim}", source=folder, read_only=True)
        for claim, folder in claims.items()
    )
    # As k8up does: where it cannot be made, the copy says why.
    made = f"{_RESTIC} cat config > /dev/null 2>&1 || {_RESTIC} init > /dev/null 2>&1 || :"
    return Work(steps=(made, *copies, _LISTING), mounts=tuple(mounts))


def prune(retention: Mapping[str, Any]) -> Work:
    """Forgets all but the newest of each day, and frees what they alone held."""
    marks = " ".join(f"--tag {shlex.quote(tag)}" for tag in retention.get("tags") or ())
    keep = int(retention.get("keepDaily") or 14)  # k8up's own default
    forget = f"{_RESTIC} forget --prune --keep-daily {keep} {marks}"
    return Work(steps=(forget, _LISTING), mounts=())


def restore(target: Path, *, snapshot: str, host: str, source: str, include: str) -> Work:
    """Writes a snapshot of `source`, or what `include` names below it, into the folder."""
    chosen = shlex.quote(snapshot) if snapshot else f"latest --host {shlex.quote(host)}"
    only = f"--include {shlex.quote(source + include)}" if include else ""
    # The root of what was copied becomes the root of the target, as k8up's trimmed paths do.
    mount = Mount(path=f"{_RESTORE}{source}", source=target)
    return Work(steps=(f"{_RESTIC} restore {chosen} --target {_RESTORE} {only}",), mounts=(mount,))


@dataclass(frozen=True, slots=True)
class Runner:
    """Jobs of one state folder."""

    folder: Path
    run_dir: Path

    def start(self, name: str, work: Work, environment: Mapping[str, str]) -> None:
        """Starts a job; `environment` has the repository and its keys."""
        shared = self.folder / "shared"
        shared.mkdir(parents=True, exist_ok=True, mode=0o700)
        (shared / "hosts").write_text("127.0.0.1 localhost\n")
        home = self._home(name)
        for part in ("jail", "out"):
            (home / part).mkdir(parents=True, exist_ok=True)
        for mount in work.mounts:
            assert mount.source is not None
            mount.source.mkdir(parents=True, exist_ok=True)
        steps = " && ".join(f"{{ {step}; }}" for step in work.steps)
        script = f"{steps}; echo $? > {_OUT}/status.new; mv {_OUT}/status.new {_OUT}/status"
        spec = PodSpec(
            name=name,
            argv=("/bin/sh", "-c", script),
            jail=home / "jail",
            mounts=(*work.mounts, Mount(path=_OUT, source=home / "out")),
        )
        env = {"PATH": _PATH, "HOME": "/root", "TZ": "UTC", **environment}
        log = home / "out" / "log"
        pods.start(spec, self.folder, name=PREFIX + name, run_dir=self.run_dir, log=log, env=env)

    def outcome(self, name: str) -> Outcome | None:
        """How the job ended; None while it runs."""
        if process.alive(PREFIX + name, self.run_dir):
            return None
        out = self._home(name) / "out"
        status = (out / "status").read_text().strip() if (out / "status").exists() else "killed"
        if status != "0":
            message = f"restic ended with {status}: {process.last_line(out / 'log')[:300]}"
            return Outcome(succeeded=False, message=message, snapshots=None)
        listed = out / "snapshots.json"
        snapshots = tuple(json.loads(listed.read_text()) or ()) if listed.exists() else None
        return Outcome(succeeded=True, message="the job succeeded", snapshots=snapshots)

    def forget(self, name: str) -> None:
        """Ends the job and removes all that it left."""
        process.stop(PREFIX + name, self.run_dir)
        pods.kill(self.folder, name)
        shutil.rmtree(self._home(name), ignore_errors=True)

    def stop_all(self) -> None:
        """Ends every job; one that its object calls running has failed then."""
        for name in self.names():
            self.forget(name)

    def names(self) -> list[str]:
        """Jobs that were started and not forgotten."""
        recorded = process.all_processes(self.run_dir)
        return [each.name.removeprefix(PREFIX) for each in recorded if each.name.startswith(PREFIX)]

    def _home(self, name: str) -> Path:
        return self.folder / "pods" / name


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


_now: Final = partial(datetime.now, UTC)


@dataclass(slots=True)
class K8up:
    """The operator of one state folder."""

    client: KubeClient
    state: State
    now: Callable[[], datetime] = _now
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
        running = running or any(self._start(job) for job in sorted(waiting, key=_age))
        return running or bool(waiting)

    def _follow_schedules(self) -> None:
        """Makes the objects that are due since the last pass."""
        path, now = self.state.local / "k8up" / "schedules.json", self.now()
        seen: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
        kept: dict[str, str] = {}
        for schedule in self._list("Schedule"):
            namespace, name = schedule["metadata"]["namespace"], name_of(schedule)
            generated: list[dict[str, str]] = []
            for part, kind in _SCHEDULED.items():
                spec = schedule["spec"].get(part)
                if not spec or not spec.get("schedule"):
                    continue
                text = effective(spec["schedule"], namespace=namespace, name=name, job=part)
                generated.append({"jobType": part, "generatedSchedule": text})
                key = f"{schedule['metadata']['uid']} {part}"
                kept[key] = now.isoformat()
                # A schedule that is seen for the first time starts to count now.
                since = datetime.fromisoformat(seen.get(key, kept[key]))
                if is_due(text, since, now):
                    self.client.apply(_scheduled(schedule, part, kind))
            if (schedule.get("status") or {}).get("effectiveSchedules") != generated:
                status = {"effectiveSchedules": generated}
                self.client.merge_patch(schedule, {"status": status}, subresource="status")
        if kept != seen:
            files.write(path, json.dumps(kept, indent=1) + "\n")

    def _start(self, job: Object) -> bool:
        """Whether it runs now; else it says why not, and waits."""
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
            return False
        self.runner.start(_job_name(job), work, environment)
        started = self._condition("Progressing", "Started", "The job is progressing", holds=True)
        self._report(job, {"started": True, "conditions": [started]})
        return True

    def _work(self, job: Object, snapshot: Snapshot) -> Work:
        spec, namespace = job["spec"], job["metadata"]["namespace"]
        rules = self._pod_rules(spec, namespace)

        def folder(name: str) -> Path:
            """Where the job's pod, with these tolerations, finds the claim's files."""
            claim = snapshot.find("PersistentVolumeClaim", name, namespace)
            if claim is None:
                raise UnboundError(f"persistentvolumeclaim '{name}' not found")
            volume = bound_volume(claim, snapshot)
            if volume is None:
                text = f"persistentvolumeclaim '{name}' is not bound to a PersistentVolume"
                raise UnboundError(text)
            needed = volume["spec"]["nodeAffinity"]["required"]
            affinity = {"requiredDuringSchedulingIgnoredDuringExecution": needed}
            placed = {**rules, "affinity": {"nodeAffinity": affinity}}
            node, problem = Scheduler(snapshot.all("Node")).place(placed)
            if node is None:
                raise UnboundError(problem)
            return _on_node(volume, node, snapshot, self._places)

        if job["kind"] == "Prune":
            return prune(spec.get("retention") or {})
        marked = [
            name_of(claim)
            for claim in snapshot.all("PersistentVolumeClaim", namespace)
            if annotation(claim, ANNOTATION) == "true"
        ]
        if job["kind"] == "Backup":
            if not marked:
                raise UnboundError(f"no claim has the annotation {ANNOTATION}: true")
            claims = {name: folder(name) for name in marked}
            return backup(claims, host=namespace, tags=spec.get("tags") or ())
        id_ = spec.get("snapshot", "")
        return restore(
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
            self.client.apply(kube_object(API_VERSION, "Snapshot", id_[:8], namespace, spec=spec))

    def _trim(self, jobs: list[Object]) -> None:
        """Removes the oldest of those that succeeded, beyond what they say themselves."""
        done = [job for job in jobs if condition(job, "Completed").get("reason") == "Succeeded"]
        for index, job in enumerate(reversed(done)):
            limit = job["spec"].get("successfulJobsHistoryLimit")
            if limit is not None and index >= limit:
                self.client.delete(job)

    def _report(self, job: Object, status: Mapping[str, Any]) -> None:
        old = (job.get("status") or {}).get("conditions") or []
        said = [(each["type"], each["message"]) for each in old]
        if said == [(each["type"], each["message"]) for each in status["conditions"]]:
            return
        with contextlib.suppress(AbsentError):  # deleted meanwhile
            self.client.merge_patch(job, {"status": dict(status)}, subresource="status")

    def _condition(
        self, type_: str, reason: str, message: object, *, holds: bool = False
    ) -> dict[str, Any]:
        return {
            "type": type_,
            "status": "True" if holds else "False",
            "reason": reason,
            "message": str(message),
            "lastTransitionTime": kubernetes_time(self.now()),
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
    made = kube_object(API_VERSION, kind, name, head["namespace"], spec={**shared, **own})
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


def _job_name(job: Object) -> str:
    return f"{job['kind'].lower()}-{name_of(job)}"


def _age(job: Object) -> tuple[str, str]:
    return job["metadata"]["creationTimestamp"], name_of(job)
