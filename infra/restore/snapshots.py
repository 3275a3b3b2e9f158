"""What the cluster knows about copies of its jail: snapshots, and how long copies took.

k8up makes a Snapshot for each entry of a repository after every backup and prune, so a cluster that
was just made knows none until its first backup. Reads only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from infra.kube.client import KubeClient
from infra.render.backup import API_VERSION, BACKUP_KIND, KIND, SCHEDULE
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


def backend(client: KubeClient, namespace: str) -> Mapping[str, Any]:
    """Where the schedule of the cluster writes to."""
    return schedule_spec(client, namespace)["backend"]


def schedule_spec(client: KubeClient, namespace: str) -> Mapping[str, Any]:
    """What the schedule of the cluster does, and where to."""
    target = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": SCHEDULE, "namespace": namespace},
    }
    schedule = client.get(target)
    if schedule is None:
        raise UserError(
            f"no {KIND} {namespace}/{SCHEDULE} in the cluster; declare storage.backup and run "
            "`pulumi up` first"
        )
    return schedule["spec"]


def longest_backup_s(client: KubeClient, namespace: str) -> float | None:
    """Seconds of the longest backup that the cluster remembers; None where none has ended."""
    times = [
        (_time(done["lastTransitionTime"]) - _time(each["metadata"]["creationTimestamp"]))
        for each in client.list(API_VERSION, BACKUP_KIND, namespace)
        for done in (each.get("status") or {}).get("conditions") or []
        if done["type"] == "Completed" and done["reason"] == "Succeeded"
    ]
    return max((each.total_seconds() for each in times), default=None)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
