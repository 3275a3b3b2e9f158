"""When a stack is idle, what `cluster autostop` does then, and what is undone when it stays.

Jobs of people and of this program count as work, those of Soperator's checks do not. The decision's
reasons: docs/adr/0013-what-ends-by-itself.md.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from infra.clients import slurm
from infra.clients.errors import AbsentError, JobsError
from infra.clients.kube_rules import describe
from infra.clients.slurm import Shell, asked
from infra.render import names
from stacks.schedule import end_of
from stacks.spec import StackSpec

if TYPE_CHECKING:
    from infra.clients.kube import KubeClient

_CHECKS_USER: Final = "soperatorchecks"
_CHECKS_PARTITION: Final = "hidden"
_ANY_H: Final = 24
"""How far back the reason looks where no idle limit is declared."""
_BOOT: Final = re.compile(r"^BOOT_TIME\s*=\s*(\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Jobs that are not over, and since when there is none; times in UTC."""

    unfinished: tuple[str, ...]
    """Jobs that run or wait, as `12 finetune`."""
    job_ids: tuple[str, ...] = ()
    """Those of them that Slurm has."""
    idle_since: datetime
    """End of the last job, or the start of the controller where that is later or knows of none."""


def activity(
    shell: Shell,
    cluster: str,
    *,
    now: datetime,
    hours: int | None,
    stack: str,
    placeholders: Collection[str] = (),
) -> Activity:
    """What the cluster did in the last `hours`, and does now; None: only now matters.

    `stack`: its name, for what a person is told to do.
    `placeholders`: names of recurring jobs that wait for their next time, which is no work.
    """
    since = now - timedelta(hours=hours or _ANY_H)
    known = slurm.uses(shell, cluster, since=since, until=now)
    if hours is not None and not known.has_accounting:
        raise JobsError(
            "accounting is off on the cluster, so nobody knows when the last job ended and nothing "
            "is paused; bring it back (slurm.accounting), or pause by hand: soperator cluster "
            f"pause --stack {stack}"
        )
    # The queue alone says what is not over: accounting lacks held jobs and keeps lost ones.
    unfinished = [
        use
        for use in known.queued
        # Of the checks' partition only their own: who else is there has a node at work.
        if use.user != _CHECKS_USER and not (use.job in placeholders and use.state == "PENDING")
    ]
    work = [
        use for use in known.uses if use.user != _CHECKS_USER and use.partition != _CHECKS_PARTITION
    ]
    ends = [run.ended_at for use in work for run in use.runs if run.ended_at is not None]
    return Activity(
        unfinished=tuple(f"{use.job_id} {use.job}" for use in unfinished),
        job_ids=tuple(use.job_id for use in unfinished),
        idle_since=max([_started_at(shell, stack), *ends]),
    )


def _started_at(shell: Shell, stack: str) -> datetime:
    """When the controller started: before that nothing is known of a new or resumed cluster."""
    config = asked(shell, "scontrol show config", "export TZ=UTC0; scontrol show config")
    found = _BOOT.search(config)
    if found is None:
        raise JobsError(f"scontrol show config: no BOOT_TIME; look with `soperator ssh -s {stack}`")
    return datetime.fromisoformat(found[1]).replace(tzinfo=UTC)


_SYSTEM: Final = ("kube-system", "soperator-system")
_ENDED: Final = ("Succeeded", "Failed")
_SLURMS: Final = ("apps.kruise.io/", "slurm.nebius.ai/")
"""Owners of slurmd's pods: every StatefulSet of Soperator is OpenKruise's."""


def kube_activity(
    client: KubeClient, slurm_namespace: str, workers: Collection[str]
) -> tuple[list[str], list[datetime]]:
    """What works, or waits to work, on the nodesets outside Slurm, and when the rest ended.

    Pods and Jobs that are not over are named as `Job soperator/finetune`.
    """
    nodes = {each["metadata"]["name"] for each in worker_nodes(client, workers)}
    unfinished: list[str] = []
    ended: list[datetime] = []
    for job in client.list("batch/v1", "Job"):
        if not _wants_worker(job["spec"]["template"]["spec"], workers):
            continue
        status = job.get("status", {})
        ends = [
            datetime.fromisoformat(each["lastTransitionTime"])
            for each in status.get("conditions", ())
            if each["type"] in ("Complete", "Failed") and each["status"] == "True"
        ]
        ended += ends
        if not ends and not (job["spec"].get("suspend") and not status.get("active")):
            unfinished.append(describe(job))
    for pod in client.list("v1", "Pod"):
        if _is_infrastructure(pod, slurm_namespace) or not (
            _wants_worker(pod["spec"], workers) or _works_on(pod, nodes, slurm_namespace)
        ):
            continue
        if pod.get("status", {}).get("phase") not in _ENDED:
            unfinished.append(describe(pod))
        for container in pod.get("status", {}).get("containerStatuses", ()):
            if finished := container.get("state", {}).get("terminated", {}).get("finishedAt"):
                ended.append(datetime.fromisoformat(finished))
    return unfinished, ended


def worker_nodes(client: KubeClient, workers: Collection[str]) -> list[dict[str, Any]]:
    """The nodes of these nodesets."""
    return [
        each
        for each in client.list("v1", "Node")
        if each["metadata"].get("labels", {}).get(names.NODESET_NAME_LABEL) in workers
    ]


def _wants_worker(spec: dict[str, Any], workers: Collection[str]) -> bool:
    if spec.get("nodeSelector", {}).get(names.NODESET_NAME_LABEL) in workers:
        return True
    return any(
        names.GPU_RESOURCE in container.get("resources", {}).get(key, {})
        for container in [*spec["containers"], *spec.get("initContainers", ())]
        for key in ("limits", "requests")
    )


def _works_on(pod: dict[str, Any], nodes: Collection[str], slurm_namespace: str) -> bool:
    """Whether it is a Job's pod, or nobody's, on a worker; Soperator's checks are no work."""
    meta = pod["metadata"]
    return (
        pod["spec"].get("nodeName") in nodes
        and meta["namespace"] not in (*_SYSTEM, slurm_namespace)
        and all(owner["kind"].endswith("Job") for owner in meta.get("ownerReferences", ()))
    )


def _is_infrastructure(pod: dict[str, Any], slurm_namespace: str) -> bool:
    owners = pod["metadata"].get("ownerReferences", ())
    is_slurms_place = pod["metadata"]["namespace"] == slurm_namespace
    return any(
        owner["kind"] == "DaemonSet"
        or (is_slurms_place and owner["apiVersion"].startswith(_SLURMS))
        for owner in owners
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether it is time, and why or why not, in one line."""

    is_due: bool
    reason: str


def verdict(
    spec: StackSpec, activity: Activity, now: datetime, *, ends_jobs: bool = False
) -> Verdict:
    """A stack is due when its end has passed, or when it was idle for its hours; never while a job
    runs or waits, unless its end has passed and `ends_jobs`.
    """
    assert spec.lifetime is not None, "the caller refuses a stack without lifetime"
    end = end_of(spec)
    is_over = end is not None and now >= end
    if activity.unfinished and not (is_over and ends_jobs):
        what = f"{len(activity.unfinished)} jobs run or wait: {', '.join(activity.unfinished[:5])}"
        if is_over:
            what += "; its end has passed: --end-jobs pauses it all the same"
        return Verdict(is_due=False, reason=what)
    if is_over:
        return Verdict(is_due=True, reason=f"its end, {end:%Y-%m-%d %H:%M} UTC, has passed")
    hours = spec.lifetime.idle_hours
    words = f"no job since {activity.idle_since:%Y-%m-%d %H:%M} UTC"
    if hours is None:
        return Verdict(is_due=False, reason=f"{words}, and lifetime.idle_hours is not declared")
    left = activity.idle_since + timedelta(hours=hours) - now
    if left <= timedelta(0):
        return Verdict(is_due=True, reason=f"{words}, longer than lifetime.idle_hours ({hours})")
    due = f"{words}; due in {left // timedelta(minutes=1)} min without a job"
    return Verdict(is_due=False, reason=due)


_GROUP: Final = "nebius:mk8s/v1:NodeGroup"


def is_half_made(preview: str) -> bool:
    """Whether `pulumi preview --json` only makes what is missing: what is there is as declared."""
    try:
        summary = json.loads(preview)["changeSummary"]
    except (ValueError, KeyError, TypeError):
        return False
    return bool(summary.get("create")) and set(summary) <= {"same", "create"}


def worker_groups(export: str, workers: Collection[str]) -> tuple[str, ...]:
    """URNs of the worker groups that `pulumi stack export` knows."""
    resources = json.loads(export)["deployment"].get("resources", ())
    return tuple(
        each["urn"]
        for each in resources
        if each["type"] == _GROUP
        and each["inputs"]["spec"]["template"]
        .get("metadata", {})
        .get("labels", {})
        .get(names.NODESET_NAME_LABEL)
        in workers
    )


_PARTITION: Final = re.compile(r"^PartitionName=(\S+) .*?\bState=(\S+)", re.MULTILINE)


def open_partitions(shell: Shell) -> tuple[str, ...]:
    """Names of the partitions that take jobs."""
    command = "scontrol show partition --all --oneliner"
    shown = _PARTITION.findall(asked(shell, "scontrol show partition", command))
    return tuple(name for name, state in shown if state == "UP")


def set_partitions(shell: Shell, partitions: Sequence[str], state: Literal["DRAIN", "UP"]) -> None:
    """Keeps jobs off the partitions, or lets them in again."""
    for name in partitions:
        asked(shell, f"scontrol update PartitionName={name}", _command(name, state))


def how_to_release(stack: str, partitions: Sequence[str]) -> str:
    """What to type where `set_partitions` did not come through."""
    steps = "; ".join(_command(name, "UP") for name in partitions)
    return f"soperator ssh --root -s {stack} {shlex.quote(steps)}"


def _command(partition: str, state: str) -> str:
    return shlex.join(["scontrol", "update", f"PartitionName={partition}", f"State={state}"])


def open_nodes(client: KubeClient, workers: Collection[str]) -> tuple[str, ...]:
    """Names of the workers' nodes that take pods."""
    return tuple(
        node["metadata"]["name"]
        for node in worker_nodes(client, workers)
        if not node.get("spec", {}).get("unschedulable")
    )


def set_nodes(client: KubeClient, nodes: Sequence[str], *, unschedulable: bool) -> None:
    """Keeps pods off the nodes, or lets them in again."""
    for name in nodes:
        patch = {"spec": {"unschedulable": unschedulable or None}}
        # An engine that failed may have taken some of the nodes, and autoscaling any.
        with contextlib.suppress(AbsentError):
            client.merge_patch(names.kube_object("v1", "Node", name), patch)


POLL_S: Final = 5.0
_KILL_S: Final = 300.0
"""Until scancel's SIGKILL is through: Soperator's KillWait is 180 s, an epilog follows."""


def end_jobs(
    shell: Shell,
    left: Callable[[], Sequence[str]],
    *,
    stack: str,
    save_s: float,
    say: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Returns when no job is `left`; running ones had `save_s`. An error where some stay."""
    ids = left()
    if not ids:
        return
    say(f"ends jobs {', '.join(ids)}; they have {save_s:.0f} s to save")
    for each in ids:
        # What saved would queue itself again, in a partition that lets queued jobs start. Whatever
        # the answer is: a job may have ended meanwhile, and only running ones take a signal.
        job = slurm.job_id(each)
        shell.run(shlex.join(["scontrol", "update", f"JobId={job}", "Requeue=0"]))
        shell.run(shlex.join(["scancel", "--state=RUNNING", "--batch", "--signal=USR1", job]))
    if ids := _wait(left, save_s, pause):
        slurm.cancel(shell, ids)
        ids = _wait(left, _KILL_S, pause)
    if ids:
        raise JobsError(
            f"jobs {', '.join(ids)} do not end, so nothing was paused; look with `soperator "
            f"status -s {stack}`, end them, then run this again"
        )


def _wait(
    left: Callable[[], Sequence[str]], limit_s: float, pause: Callable[[float], None]
) -> Sequence[str]:
    """What is left when none is, or after the limit."""
    for _ in range(int(limit_s // POLL_S) + 1):
        if not (ids := left()):
            return ids
        pause(POLL_S)
    return left()
