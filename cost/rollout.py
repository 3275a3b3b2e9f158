"""What a change of a deployed stack drains, in its order, with the way back: rollout(before, ...).

Owns the steps and their words. Which nodes a key replaces is rolling.py's, what is refused is
stacks/upgrade.py's; the order is that of the program (docs/adr/0025).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cost.estimate import Estimate
from cost.layout import usd_text
from cost.rolling import Leaving, Roll, leaving, nodesets, rolls
from stacks.compatibility import ROLLOUT, release_of
from stacks.spec import StackSpec
from stacks.upgrade import KUBERNETES, SOPERATOR

_NEW_CLUSTER: Final = (
    "nebius.project_id",
    "nebius.network_id",
    "nebius.subnet_id",
    "nebius.discover_network",
)
_POD_FIELDS: Final = ("shared_memory_gib", "local_disks[", "image_disk")
_POD_KEYS: Final = (SOPERATOR, "soperator.cuda_version", "storage.memory")
_NO_WAY_BACK: Final = "none: a control plane never goes back to an older version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a change."""

    what: str
    """What happens, in one line."""
    way_back: str
    """How it is undone, or why it is not."""
    causes: tuple[str, ...] = ()
    """Config keys with what they were and are."""
    slurm_nodes: tuple[str, ...] = ()
    """Slurm nodes whose running jobs end in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """The way of a deployed stack to what is declared, as far as it disturbs somebody."""

    steps: tuple[Step, ...]
    is_staged: bool = False
    """Whether node groups of several stages roll, which the program then does one by one."""

    @property
    def slurm_nodes(self) -> tuple[str, ...]:
        """Slurm nodes whose running jobs end, each once."""
        return tuple(dict.fromkeys(node for step in self.steps for node in step.slurm_nodes))

    def render(self) -> str:
        """The steps as text, empty where nothing is disturbed."""
        if not self.steps:
            return ""
        lines = ["What this change disturbs, in its order (times and dollars are at most):"]
        for number, step in enumerate(self.steps, 1):
            lines.append(f" {number:2}. {step.what}")
            lines += [f"     because {cause}" for cause in step.causes]
            lines.append(f"     way back: {step.way_back}")
        return "\n".join(lines) + "\n"


def rollout(
    before: Mapping[str, str], after: Mapping[str, str], spec: StackSpec, total: Estimate
) -> Rollout:
    """The steps from the deployed values to the declared ones, with prices of `total`."""
    if KUBERNETES not in before:
        return Rollout(steps=())
    rolling = rolls(before, after, spec, total)
    gone = leaving(before, spec)
    return Rollout(
        steps=(
            *_cluster(before, after, spec),
            *_grown(before, after),
            *map(_roll, rolling),
            *map(_leaving, gone),
            *_charts(before, after, spec),
        ),
        is_staged=len({roll.stage for roll in rolling}) > 1,
    )


def _cluster(
    before: Mapping[str, str], after: Mapping[str, str], spec: StackSpec
) -> Iterator[Step]:
    moved = [key for key in _NEW_CLUSTER if before.get(key) != after.get(key)]
    if moved:
        yield Step(
            what="kube cluster: made anew, with every node group; all jobs end",
            causes=tuple(_told(key, before, after) for key in moved),
            way_back="none: set the key back before `pulumi up`; filesystems are other resources",
            slurm_nodes=_every_node(before),
        )
    was, now = before[KUBERNETES], after[KUBERNETES]
    if was != now:
        members = spec.cluster.etcd_size
        away = "stays reachable" if members > 1 else "is away for minutes"
        yield Step(
            what=f"control plane: Kubernetes {was} -> {now}; nothing drains, its API {away} "
            f"(etcd_size {members})",
            causes=(f"{KUBERNETES}: {was} -> {now}",),
            way_back=_NO_WAY_BACK,
        )


def _grown(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Step]:
    """Filesystems that get larger; smaller ones are refused."""
    ending = ".size_gib"
    for key, was in before.items():
        now = after.get(key)
        of_storage = key.startswith("storage.") and key.endswith(ending)
        if not of_storage or f"{key.removesuffix(ending)}.type" not in before:
            continue
        if now is not None and int(now) > int(was):
            yield Step(
                what=f"filesystem {key.removesuffix(ending)}: {was} -> {now} GiB in place; nothing "
                "drains",
                way_back="none: a filesystem never shrinks",
            )


def _roll(roll: Roll) -> Step:
    nodes = f"{roll.count} node{'s' if roll.num_nodes > 1 else ''}"
    surge = (
        f"{roll.surge} beyond the number for {_surge_price(roll)}" if roll.surge else "none beyond"
    )
    jobs = "; jobs on them end" if roll.nodeset is not None else ""
    kubernetes = any(cause.subject == KUBERNETES for cause in roll.causes)
    return Step(
        what=f"{roll.label}: {nodes} made anew, {roll.at_once} away at once, {surge}; "
        f"{_duration(roll)}{jobs}",
        causes=tuple(map(str, roll.causes)),
        way_back="none: nodes follow the control plane"
        if kubernetes
        else "set the keys back: the nodes are made anew once more",
        slurm_nodes=roll.slurm_nodes,
    )


def _leaving(gone: Leaving) -> Step:
    nodes = gone.slurm_nodes
    span = (
        f"{nodes[0]}, the one with the highest number, leaves; jobs on it end"
        if len(nodes) == 1
        else f"{nodes[0]} to {nodes[-1]}, those with the highest numbers, leave; jobs on them end"
    )
    return Step(
        what=f"{gone.label}: {span}",
        causes=(f"{gone.key}: {gone.cause}",),
        way_back="set the number back: nodes of the same names come, without local disks",
        slurm_nodes=nodes,
    )


def _charts(before: Mapping[str, str], after: Mapping[str, str], spec: StackSpec) -> Iterator[Step]:
    was, now = before.get(SOPERATOR), after[SOPERATOR]
    if was is not None and was != now:
        old, new = release_of(was), release_of(now)
        yield Step(
            what=f"custom resources of Soperator: {was} -> {now}, before any chart; nothing drains",
            way_back=f"set {SOPERATOR} back: those of {was} are applied again",
        )
        same = old.slurm is not None and old.slurm == new.slurm
        back = (
            f"set {SOPERATOR} back to {was}: Slurm is {old.slurm} in both"
            if same
            else "none: Slurm converts its state and the accounting database; copy "
            "storage.controller_spool and storage.accounting first"
        )
        yield Step(
            what=f"Soperator's charts: {was} -> {now}; every pod of Slurm starts anew, jobs end",
            causes=(f"{SOPERATOR}: {was} -> {now}",),
            way_back=back,
            slurm_nodes=_every_node(before),
        )
        return
    keys = [key for key in _changed(before, after) if _restarts_workers(key)]
    if keys:
        sets = {key.split("[")[1].split("]")[0] for key in keys if key.startswith("nodes.workers[")}
        shared = any(key.startswith(_POD_KEYS) for key in keys)
        names = [each.name for each in spec.nodes.workers if shared or each.name in sets]
        if names:
            yield Step(
                what=f"pods of {', '.join(names)}: started anew; jobs on them end",
                causes=tuple(_told(key, before, after) for key in keys),
                way_back="set the keys back: the pods start anew once more",
                slurm_nodes=tuple(
                    node
                    for node in _every_node(before)
                    if any(node.rpartition("-")[0] == name for name in names)
                ),
            )


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for key in dict.fromkeys((*before, *after)):
        if before.get(key) != after.get(key):
            yield key


def _told(key: str, before: Mapping[str, str], after: Mapping[str, str]) -> str:
    return f"{key}: {before.get(key, 'not set')} -> {after.get(key, 'not set')}"


def _restarts_workers(key: str) -> bool:
    if key.startswith(_POD_KEYS):
        return True
    return key.startswith("nodes.workers[") and key.partition("].")[2].startswith(_POD_FIELDS)


def _every_node(before: Mapping[str, str]) -> tuple[str, ...]:
    """Every Slurm node of the deployment."""
    return tuple(f"{name}-{at}" for name, most in nodesets(before) for at in range(most))


def _surge_price(roll: Roll) -> str:
    return "UNPRICED" if roll.surge_usd is None else usd_text(roll.surge_usd)


def _duration(roll: Roll) -> str:
    times = f"{roll.rounds} round{'s' if roll.rounds > 1 else ''}"
    if roll.minutes is None:
        return f"{times}, each as long as pods take to leave (drain_timeout_s: 0)"
    hours, minutes = divmod(roll.minutes, 60)
    told = f"{hours} h {minutes:02} min" if hours else f"{minutes} min"
    each = f"{roll.drain_minutes} + {ROLLOUT.round_minutes_max} min"
    return f"{times} of {each}: {told}"
