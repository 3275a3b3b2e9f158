"""Slurm nodes out of use and back, those that do not come, jobs on them, how full filesystems are.

A drained node takes no new job; those that run on it end by themselves.
"""

from __future__ import annotations

import re
import shlex
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from infra.clients import slurm
from infra.clients.errors import JobsError
from infra.clients.pulumi import outputs_from
from infra.clients.slurm import Job, Shell, asked, expand, refused
from infra.providers.soperator.blocked_pods import (
    PATIENCE_S,
    Cause,
    Patience,
    blocked,
    in_one_line,
    slurm_pods,
)
from infra.render.nodes import node_labels
from stacks.errors import UserError
from stacks.spec import StackSpec

if TYPE_CHECKING:
    from infra.clients.kube import KubeClient

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_POLL_S: Final = 5.0
_REASON_MAX: Final = 200
_NOTHING_TO_RESUME: Final = "Invalid node state specified"
"""slurmctld's answer to a resume of a node that takes jobs already."""
_UNKNOWN: Final = "Invalid node name specified"


def drain(shell: Shell, nodes: Sequence[str], reason: str) -> tuple[Job, ...]:
    """Keeps new jobs off the nodes; the jobs that still run there."""
    if not reason.strip() or not reason.isprintable() or len(reason) > _REASON_MAX:
        raise JobsError(
            f"--reason: {reason!r} is no line of 1 to {_REASON_MAX} characters; say why, for "
            "whoever looks at `sinfo -R`"
        )
    _check_names(nodes)
    _update(shell, nodes, "State=DRAIN", f"Reason={reason.strip()}")
    return jobs_on(shell, nodes)


def resume(shell: Shell, nodes: Sequence[str]) -> None:
    """Lets jobs onto the nodes again; one that takes them already stays as it is."""
    _check_names(nodes)
    for node in nodes:
        _update(shell, (node,), "State=RESUME", harmless=_NOTHING_TO_RESUME)


def await_idle(
    shell: Shell,
    nodes: Sequence[str],
    *,
    on_change: Callable[[tuple[Job, ...]], None],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Returns once no job holds one of the nodes; `on_change` gets those that do."""
    before: tuple[str, ...] | None = None
    while jobs := jobs_on(shell, nodes):
        now = tuple(job.id for job in jobs)
        if now != before:
            on_change(jobs)
            before = now
        pause(_POLL_S)


def _check_names(nodes: Sequence[str]) -> None:
    for node in nodes:
        if not _NAME.fullmatch(node):
            raise JobsError(
                f"{node!r} is no name of a Slurm node, such as worker-0; see `sinfo -N`"
            )


def _update(shell: Shell, nodes: Sequence[str], *changes: str, harmless: str | None = None) -> None:
    named = ",".join(nodes)
    result = shell.run(shlex.join(["scontrol", "update", f"NodeName={named}", *changes]))
    if result.ok or (harmless is not None and harmless in result.stderr):
        return
    error = refused(f"scontrol update {named}", result)
    if _UNKNOWN in result.stderr:
        raise JobsError(f"{error}; `soperator ssh -s STACK 'sinfo -N'` lists the nodes")
    raise error


_FOR_NODES: Final = (
    "Resources",
    "Priority",
    "ReqNodeNotAvail",
    "NodeDown",
    "Nodes required",
    "BeginTime",  # a job whose nodes did not come in ResumeTimeout is queued again
)
"""Begins of Slurm's reasons behind which may be a node that does not come."""
_LOOK_S: Final = 10.0


def waits_for_nodes(job: Job) -> bool:
    """Whether the job waits for nodes to start, or may."""
    reason = (job.where or "").replace("_", " ")
    return job.state == "CONFIGURING" or (job.waits and reason.startswith(_FOR_NODES))


def not_coming(client: KubeClient, spec: StackSpec, jobs: Collection[Job]) -> dict[str, Cause]:
    """By pod, why workers cannot start that these jobs wait for; looks once.

    Of a job without nodes yet, every worker whose pod is wanted counts.
    """
    awaited = [job for job in jobs if waits_for_nodes(job)]
    if not awaited:
        return {}
    namespace = spec.cluster.namespace
    pods = slurm_pods(client, namespace, spec.cluster.slurm_cluster_name)
    given = {name for job in awaited if not job.waits for name in expand(job.where or "")}
    sets = {worker.name for worker in spec.nodes.workers if any(job.waits for job in awaited)}
    return {
        name: cause
        for name, cause in blocked(client, namespace, pods, node_labels(spec)).items()
        if name in given or name.rpartition("-")[0] in sets
    }


def not_seen(spec: StackSpec, error: UserError) -> str:
    """The line for nodes whose pods cannot be looked at from here."""
    return (
        f"{spec.name}: why nodes do not come cannot be read here: {error}; "
        f"kubectl -n {spec.cluster.namespace} get pods,events says it"
    )


class NodeWatch:
    """Tells of a job that waits why its nodes do not come: each cause once, when it has lasted."""

    def __init__(
        self,
        spec: StackSpec,
        connect: Callable[[], KubeClient],
        log: Callable[[str], None],
        *,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec, self._connect, self._log = spec, connect, log
        self._patience, self._clock = Patience(patience_s), clock
        self._next_s: float | None = None
        self._told: set[tuple[str, str]] = set()

    def look(self, job: Job) -> None:
        """Look, at most every 10 s and not at a job that starts at once."""
        if not waits_for_nodes(job):
            return
        now_s = self._clock()
        if self._next_s is None or now_s < self._next_s:
            self._next_s = self._next_s or now_s + _LOOK_S
            return
        self._next_s = now_s + _LOOK_S
        try:
            found = not_coming(self._connect(), self._spec, (job,))
        except UserError as error:
            self._log(not_seen(self._spec, error))
            self._next_s = float("inf")
            return
        lasting = self._patience.lasting(found, now_s).items()
        if new := {name: each for name, each in lasting if (name, each.blamed) not in self._told}:
            self._told |= {(name, cause.blamed) for name, cause in new.items()}
            self._log(in_one_line(new, self._spec.cluster.namespace))


_WITHIN_S: Final = 4.0
_SHOWN: Final = 20
"""More jobs than these are counted, not listed."""


def jobs_on(shell: Shell, nodes: Collection[str]) -> tuple[Job, ...]:
    """Jobs that hold one of the nodes now, in the order of squeue."""
    states = "RUNNING,SUSPENDED,COMPLETING"
    # Not --nodelist: squeue refuses a list with one name that it does not know.
    form = shlex.quote(slurm.SQUEUE_FORMAT)
    printed = asked(shell, "squeue", f"squeue --noheader --states={states} --format={form}")
    wanted = frozenset(nodes)
    return tuple(
        job
        for job in slurm.squeue(printed)
        if job.where is not None and not wanted.isdisjoint(expand(job.where))
    )


def describe_jobs(
    stack: str, outputs: Mapping[str, Any], nodes: Collection[str], identity: Path
) -> str:
    """What runs on the nodes, a line each job, or why that is not known; ends in a newline."""
    answer: list[str] = []

    def ask() -> None:
        # Only here: a preview that drains nothing does not pay for the import.
        from infra.clients.ssh import Connection

        try:
            endpoint = outputs_from(stack, outputs).as_owner_of(identity).endpoint(identity)
            with Connection(endpoint) as connection:
                answer.append(describe(jobs_on(connection, nodes)))
        except (JobsError, OSError) as error:
            answer.append(f"Jobs on these nodes: not checked: {error}\n")

    # A daemon: a login node that hangs must not keep the process.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_WITHIN_S)
    late = f"Jobs on these nodes: not checked: no answer in {_WITHIN_S:g} s\n"
    return answer[0] if answer else late


def describe(jobs: Collection[Job]) -> str:
    """The jobs as text, ending in a newline."""
    if not jobs:
        return "Jobs on these nodes: none runs now\n"
    return f"Jobs on these nodes, which the change ends: {len(jobs)}\n{listed(jobs)}"


def listed(jobs: Collection[Job]) -> str:
    """A line for each job, up to a number, ending in a newline."""
    lines = [
        f" {job.id} {job.name}, {job.elapsed or '0:00'} so far, on {job.where}"
        for job in list(jobs)[:_SHOWN]
    ]
    if len(jobs) > _SHOWN:
        lines.append(f" and {len(jobs) - _SHOWN} more: squeue")
    return "\n".join(lines) + "\n"


_COLUMNS: Final = "fstype,size,used,avail,target"
TMP: Final = "/tmp"  # noqa: S108  # of the cluster
"""In no jail: each node has its own."""
_OF_NODE: Final = "of the node's own disk"
# Only a node that is up: sinfo marks one that sleeps, which a job would wake and pay for.
_ON_A_WORKER: Final = """\
set -- $(sinfo --noheader --Node --format='%N %R %t' | awk '$3 == "idle" { print $1, $2; exit }')
[ -z "$1" ] || { echo "node $1"; srun --quiet --job-name=df --nodelist="$1" --partition="$2" \
--ntasks=1 --immediate=10 sh -c SCRIPT 2>/dev/null; }
"""
NEARLY_FULL_PERCENT: Final = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Filesystem:
    """One mounted path; every size is None where neither login node nor an idle worker has it."""

    path: str
    what: str
    """What the stack declares behind the path."""
    kind: str | None = None
    size_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    node: str | None = None
    """The worker that was asked; None for the login node."""

    @property
    def used_percent(self) -> float | None:
        """Share of what its users may write, as df counts it."""
        if self.used_bytes is None or self.free_bytes is None:
            return None
        whole = self.used_bytes + self.free_bytes
        return 100 * self.used_bytes / whole if whole else None

    @property
    def nearly_full(self) -> bool:
        return (self.used_percent or 0) >= NEARLY_FULL_PERCENT


def usage(
    shell: Shell, mounts: Mapping[str, str], *, are_folders: bool = False
) -> tuple[Filesystem, ...]:
    """The declared paths (path -> what is behind it) in order, and /tmp.

    `are_folders`: of an attached cluster, whose mounts nobody declares. What the login node has
    not, an idle worker is asked for, where there is one.
    """
    if not mounts:
        return ()
    wanted = {**mounts, TMP: _OF_NODE}
    of_folders = {TMP, *wanted} if are_folders else {TMP}
    found = _measured(shell, wanted, None, of_folders)
    if rest := {path: wanted[path] for path in wanted if path not in found}:
        found |= _measured(shell, rest, _ON_A_WORKER, of_folders)
    return tuple(found.get(path, Filesystem(path=path, what=wanted[path])) for path in wanted)


def _measured(
    shell: Shell, wanted: Mapping[str, str], where: str | None, of_folders: Collection[str]
) -> dict[str, Filesystem]:
    """Those of the paths that are mounted there; `where` names the node it chose, None: here."""
    # Each path by itself: df ends with 1 when one of several is missing.
    script = "".join(
        f"echo {shlex.quote(path)}; "
        f"df --block-size=1 --output={_COLUMNS} {shlex.quote(path)} 2>/dev/null | tail -n +2; "
        for path in wanted
    )
    if where is not None:
        script = where.replace("SCRIPT", shlex.quote(script))
    result = shell.run(f"{script} true")
    if not result.ok:
        raise JobsError(f"df: exit {result.exit_code}: {result.stderr.strip() or 'no message'}")
    found: dict[str, Filesystem] = {}
    path, node = "", None
    for line in result.stdout.splitlines():
        if line in wanted:
            path = line
        elif line.startswith("node "):
            node = None if where is None else line.removeprefix("node ")
        elif line.strip():
            *fields, target = line.split(maxsplit=4)
            # A folder of the jail in a mount's place is not the mount; /tmp may be the root's.
            if target != path and path not in of_folders:
                continue
            names = ("size_bytes", "used_bytes", "free_bytes")
            try:
                kind, *sizes = fields
                of = dict(zip(names, map(int, sizes), strict=True))
            except ValueError as error:
                text = f"df {path}: printed {fields!r}, which is not {_COLUMNS}"
                raise JobsError(text) from error
            found[path] = Filesystem(path=path, what=wanted[path], kind=kind, node=node, **of)
    return found
