"""A copy of the jail now, besides those of the schedule: copy_now(client, namespace, ...).

Owns its name, the wait and which snapshots it made. What k8up gets is rendered in
infra/render/backup.py, from the schedule that the cluster has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime

from infra.kube.client import KubeClient
from infra.render import backup as render
from infra.restore.end import await_end
from infra.restore.snapshots import JailSnapshot, list_snapshots, schedule_spec
from stacks.errors import UserError


def new_name(at: datetime | None = None) -> str:
    """Name of a Backup that nobody has."""
    return f"now-{at or datetime.now(UTC):%Y%m%d%H%M%S}"


def copy_now(
    client: KubeClient,
    namespace: str,
    name: str,
    *,
    tell: Callable[[str], None],
    cancelled: threading.Event | None = None,
) -> tuple[JailSnapshot, ...]:
    """What it made, newest first, once it has succeeded; interrupted, it goes on by itself."""
    target = render.backup(name, namespace, schedule_spec(client, namespace))
    known = {each.id for each in list_snapshots(client, namespace)}
    client.apply(target)
    problem = await_end(client, target, tell=tell, cancelled=cancelled)
    if problem is not None:
        raise UserError(problem)
    return tuple(each for each in list_snapshots(client, namespace) if each.id not in known)
