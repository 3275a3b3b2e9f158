"""One restore on the cluster: what it would do, whether it may, and the run to its end.

Into the jail itself only while no pod of Slurm runs, unless that is asked for: files that programs
have open would change under them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from infra.kube.client import KubeClient
from infra.kube.errors import KubeError
from infra.render import restore as render
from infra.render.backup import CLAIM
from infra.restore.end import await_end
from infra.restore.snapshots import JailSnapshot
from stacks.errors import UserError

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


def run(
    client: KubeClient,
    namespace: str,
    plan: Plan,
    *,
    tell: Callable[[str], None],
    cancelled: threading.Event | None = None,
) -> None:
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
    problem = await_end(client, target, tell=tell, cancelled=cancelled)
    # The claim is let go; what it holds stays in the jail.
    for each in reversed(extra):
        client.delete(each)
    if problem is not None:
        raise UserError(problem)


def _running(client: KubeClient, namespace: str) -> list[str]:
    """Slurm clusters of the namespace that have pods."""
    try:
        found = client.list(*_SLURM, namespace)
    except KubeError as error:
        if error.status == 404:  # no such kind: Soperator is not there, so nothing runs
            return []
        raise
    return [
        f"SlurmCluster {each['metadata']['name']}"
        for each in found
        if not each["spec"].get("maintenance", "none").startswith("downscale")
    ]


def _has_password(client: KubeClient, namespace: str, backend: Mapping[str, Any]) -> bool:
    place = backend["repoPasswordSecretRef"]
    metadata = {"name": place["name"], "namespace": namespace}
    secret = client.get({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
    return secret is not None and place["key"] in (secret.get("data") or {})
