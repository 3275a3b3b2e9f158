"""Backups of the jail: one now, the snapshots that there are, and bringing one back.

k8up makes a Snapshot for each entry of a repository after every backup and prune, so a cluster that
was just made knows none until its first backup. One goes into the jail itself only while no pod of
Slurm runs, unless that is asked for: files that programs have open would change under them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from infra.clients.errors import AbsentError, UnreachableError
from infra.clients.kube import KubeClient
from infra.clients.kube_rules import condition, holds
from infra.render import backup as render
from infra.render.backup import API_VERSION, BACKUP_KIND, CLAIM, KIND, SCHEDULE
from infra.render.names import kube_object
from stacks.errors import UserError

LATEST: Final = "latest"
_ID: Final = re.compile(r"[0-9a-f]{8,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JailSnapshot:
    """One copy."""

    id: str
    """64 hex digits, or as many as were given of one that the cluster does not list."""
    at: datetime | None
    """None where the cluster does not list it."""
    repository: str
    """Empty stands for the one that the schedule writes to."""


def list_snapshots(client: KubeClient, namespace: str) -> tuple[JailSnapshot, ...]:
    """The copies that the cluster lists, the newest first."""
    found = [
        JailSnapshot(
            id=each["spec"]["id"],
            at=datetime.fromisoformat(each["spec"]["date"]),
            repository=each["spec"].get("repository", ""),
        )
        for each in client.list(API_VERSION, "Snapshot", namespace)
    ]
    return tuple(sorted(found, key=lambda each: (each.at, each.id), reverse=True))


def choose(found: Sequence[JailSnapshot], wanted: str) -> JailSnapshot:
    """The copy that `latest` or the first digits of an id mean."""
    if wanted == LATEST:
        if not found:
            raise UserError("latest: the cluster lists no copy of the jail; give an id")
        return found[0]
    if not _ID.fullmatch(wanted):
        raise UserError(f"'{wanted}' is no snapshot; give 'latest' or 8 or more hex digits")
    matching = [each for each in found if each.id.startswith(wanted)]
    if len(matching) > 1:
        ids = ", ".join(each.id[:16] for each in matching)
        raise UserError(f"'{wanted}' means several snapshots ({ids}); give more digits")
    # A new cluster lists none: the repository may have it all the same.
    return matching[0] if matching else JailSnapshot(id=wanted, at=None, repository="")


def schedule_spec(client: KubeClient, namespace: str) -> Mapping[str, Any]:
    """What the schedule of the cluster does, and where to."""
    schedule = client.get(kube_object(API_VERSION, KIND, SCHEDULE, namespace))
    if schedule is None:
        raise UserError(
            f"no {KIND} {namespace}/{SCHEDULE} in the cluster; declare storage.backup and run "
            "`pulumi up` first"
        )
    return schedule["spec"]


def longest_backup_s(client: KubeClient, namespace: str) -> float | None:
    """Seconds of the longest backup that the cluster remembers; None where none has ended."""
    at = datetime.fromisoformat
    times = [
        at(done["lastTransitionTime"]) - at(each["metadata"]["creationTimestamp"])
        for each in client.list(API_VERSION, BACKUP_KIND, namespace)
        if (done := condition(each, "Completed")) and done["reason"] == "Succeeded"
    ]
    return max((each.total_seconds() for each in times), default=None)


_LONGEST_S: Final = 48 * 3600.0


def await_end(
    client: KubeClient, target: dict[str, Any], *, tell: Callable[[str], None]
) -> str | None:
    """Why a Backup or Restore that was made has failed, with where its log is; None where it has
    succeeded."""
    kind = target["kind"].lower()
    name, namespace = target["metadata"]["name"], target["metadata"]["namespace"]
    try:
        done = client.wait_for(
            target,
            f"the end of the {kind}",
            lambda live: holds(live, "Completed"),
            timeout_s=_LONGEST_S,
            log=tell,
        )
    except UnreachableError as error:
        how = f"kubectl -n {namespace} get {kind}s.k8up.io {name}"
        raise UserError(f"{error}; {name} goes on in the cluster: {how} shows its end") from error
    ended = condition(done, "Completed")
    if ended["reason"] == "Succeeded":
        return None
    # A Backup has a numbered job for each node and their claims: here it is one.
    job = f"{kind}-{name}-0" if kind == "backup" else f"{kind}-{name}"
    return f"{name}: {ended['message']}; its log: kubectl -n {namespace} logs job/{job}"


def new_name() -> str:
    """Name of a Backup that nobody has."""
    return f"now-{datetime.now(UTC):%Y%m%d%H%M%S}"


def copy_now(
    client: KubeClient, namespace: str, name: str, *, tell: Callable[[str], None]
) -> tuple[JailSnapshot, ...]:
    """What it made, newest first, once it has succeeded; interrupted, it goes on by itself."""
    target = render.backup(name, namespace, schedule_spec(client, namespace))
    known = {each.id for each in list_snapshots(client, namespace)}
    client.apply(target)
    problem = await_end(client, target, tell=tell)
    if problem is not None:
        raise UserError(problem)
    return tuple(each for each in list_snapshots(client, namespace) if each.id not in known)


_SLURM: Final = ("slurm.nebius.ai/v1", "SlurmCluster")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a restore would do."""

    name: str
    snapshot: JailSnapshot
    backend: Mapping[str, Any]
    path: str | None
    """A path of the jail, or None for all of it."""
    into_jail: bool

    @property
    def target(self) -> str:
        """Path in the jail that the root of the copy lands at."""
        return "/" if self.into_jail else render.folder_in_jail(self.name)


def make_plan(
    client: KubeClient,
    namespace: str,
    snapshot: JailSnapshot,
    backend: Mapping[str, Any],
    *,
    path: str | None,
    into_jail: bool,
    while_running: bool,
) -> Plan:
    """The plan of a restore that may run; every problem at once otherwise."""
    problems: list[str] = []
    if path is not None and (problem := render.path_problem(path)):
        problems.append(f"--path {path}: {problem}")
    running = into_jail and not while_running and _running(client, namespace)
    if running:
        problems.append(
            f"--into-jail: {', '.join(running)} runs, and its files would change under it; declare "
            "soperator.maintenance: downscale and run `pulumi up` first, restore beside it "
            "(without --into-jail), or insist with --while-running"
        )
    candidates = render.backends_of(backend, snapshot.repository)
    chosen = next((each for each in candidates if _has_password(client, namespace, each)), None)
    if chosen is None:
        wanted = " nor ".join(
            "secret {name} has key {key}".format_map(each["repoPasswordSecretRef"])
            for each in candidates
        )
        problems.append(
            f"no {wanted}: the copy was made with a password that neither this state nor this "
            "cluster has; add it there by hand"
        )
    if problems or chosen is None:
        raise UserError("\n".join(problems))
    return Plan(
        name=f"jail-{snapshot.id[:8]}-{datetime.now(UTC):%Y%m%d%H%M%S}",
        snapshot=snapshot,
        backend=chosen,
        path=path,
        into_jail=into_jail,
    )


def run(client: KubeClient, namespace: str, plan: Plan, *, tell: Callable[[str], None]) -> None:
    """Makes the restore and returns once it has succeeded; interrupted, it goes on by itself."""
    extra = () if plan.into_jail else render.folder_objects(plan.name, namespace)
    for each in extra:
        client.apply(each)
    target = render.restore(
        plan.name,
        namespace,
        backend=plan.backend,
        snapshot=plan.snapshot.id,
        claim=CLAIM if plan.into_jail else plan.name,
        path=plan.path,
    )
    client.apply(target)
    problem = await_end(client, target, tell=tell)
    # The claim is let go; what it holds stays in the jail.
    for each in reversed(extra):
        client.delete(each)
    if problem is not None:
        raise UserError(problem)


def _running(client: KubeClient, namespace: str) -> list[str]:
    """Slurm clusters of the namespace that have pods."""
    try:
        found = client.list(*_SLURM, namespace)
    except AbsentError:  # no such kind: Soperator is not there, so nothing runs
        return []
    return [
        f"SlurmCluster {each['metadata']['name']}"
        for each in found
        if not each["spec"].get("maintenance", "none").startswith("downscale")
    ]


def _has_password(client: KubeClient, namespace: str, backend: Mapping[str, Any]) -> bool:
    place = backend["repoPasswordSecretRef"]
    secret = client.get(kube_object("v1", "Secret", place["name"], namespace)) or {}
    return place["key"] in (secret.get("data") or {})
