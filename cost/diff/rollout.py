"""What a change of a deployed stack drains, in its order, with the way back: rollout(before, ...).

Which config keys replace nodes, how many go at once, how long that takes at most and what the nodes
beyond the declared number cost. Field by field as nebius.mk8s.v1.NodeTemplate says (SDK of
requirements.lock, read 2026-11-21): every field rolls the group, but labels and taints reach new
nodes only; counts and the strategy itself roll nothing. The order is the program's
(docs/adr/0011).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cost.diff.diff import changed_keys
from cost.prices.book import HOURS_PER_MONTH
from cost.report.layout import usd_text
from cost.resources.estimate import Estimate
from cost.resources.lines import Group, groups
from stacks.catalog import NODES_PER_GROUP_MAX
from stacks.changes import KUBERNETES_KEY, SOPERATOR_KEY, stage_of
from stacks.compatibility import ROLLOUT, release_of
from stacks.spec import StackSpec
from stacks.spec.cluster import GpuDrivers
from stacks.spec.nodes import StrategySpec, WorkerSpec

_EVERY: Final = ("cluster.kubernetes_version", "cluster.os", "nodes.ssh_users")
_GPU: Final = ("cluster.drivers_preset", "cluster.gpu_drivers")
_FIELDS: Final = (
    "platform", "preset", "boot_disk", "billing", "public_ip", "infiniband_fabric",
    "gpu_cluster_id", "reservation", "max_pods", "nvidia_config_lines", "local_nvme"
)  # fmt: skip
"""Of a group; all else of it is the number of nodes, what new ones get, or a matter of its pods."""
_JAILED: Final = ("storage.jail", "storage.submounts[")
_OF_ROLE: Final = {"storage.controller_spool": "controller", "storage.accounting": "accounting"}
_UNJAILED: Final = ("nfs",)
_IDENTITY: Final = (".type", ".existing_id")
_DEFAULT_PERCENT: Final = 50
"""Of a nodeset that says nothing: infra/render/nodes.py, as the recipe has it."""


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


def rolls(
    before: Mapping[str, str], after: Mapping[str, str], spec: StackSpec, total: Estimate
) -> Iterator[tuple[int, Step]]:
    """Stage and step of every group whose nodes are all made anew; a new one has none to replace.

    Groups of one stage roll together, after those of earlier ones.
    """
    changed = dict(changed_keys(before, after))
    for group in groups(spec):
        if f"{group.key}.platform" not in before:
            continue
        nodes = min(_most(before, group.key), group.max_nodes)
        causes = dict.fromkeys(c for key, c in changed.items() if _makes_anew(key, group, spec))
        if nodes and causes:
            stage = stage_of(None if group.nodeset is not None else group.label)
            yield stage, _roll(group, nodes, tuple(causes), total)


def _makes_anew(key: str, group: Group, spec: StackSpec) -> bool:
    if key.startswith(_EVERY):
        return True
    if key in _GPU:
        is_last = key == "cluster.gpu_drivers" or (
            spec.cluster.gpu_drivers is GpuDrivers.PREINSTALLED
        )
        return is_last and group.spec.gpus > 0
    if key.startswith(f"{group.key}."):
        return key.removeprefix(f"{group.key}.").split(".")[0].split("[")[0] in _FIELDS
    # A filesystem that comes to the group's nodes, goes, or is another; the rest of a declaration,
    # such as its size, is the filesystem's own affair.
    if not key.endswith(_IDENTITY):
        return False
    if key.startswith(_JAILED):
        return group.label not in _UNJAILED
    return any(key.startswith(each) and group.label == role for each, role in _OF_ROLE.items())


def _roll(group: Group, num_nodes: int, causes: tuple[str, ...], total: Estimate) -> Step:
    chunks = [
        min(NODES_PER_GROUP_MAX, num_nodes - first)
        for first in range(0, num_nodes, NODES_PER_GROUP_MAX)
    ]
    strategy = group.spec.strategy if isinstance(group.spec, WorkerSpec) else None
    pace = [_pace(strategy, chunk) for chunk in chunks]
    rounds = max(
        math.ceil(chunk / max(away + surge, 1))
        for chunk, (away, surge) in zip(chunks, pace, strict=True)
    )
    at_once, surge = (sum(each) for each in zip(*pace, strict=True))
    # At most so many, where the group scales by itself.
    count = group.count if num_nodes == group.max_nodes else str(num_nodes)
    beyond = f"{surge} beyond the number for {_surge_price(group, surge, rounds, total)}"
    jobs = "" if group.nodeset is None else "; jobs on them end"
    follows = any(cause.startswith(f"{KUBERNETES_KEY}: ") for cause in causes)
    return Step(
        what=f"{group.label}: {count} node{'s' if num_nodes > 1 else ''} made anew, {at_once} away "
        f"at once, {beyond if surge else 'none beyond'}; {_duration(strategy, rounds)}{jobs}",
        causes=causes,
        way_back="none: nodes follow the control plane"
        if follows
        else "set the keys back: the nodes are made anew once more",
        slurm_nodes=()
        if group.nodeset is None
        else tuple(f"{group.nodeset}-{index}" for index in range(num_nodes)),
    )


def _duration(strategy: StrategySpec | None, rounds: int) -> str:
    """Longest in all, every round with its longest drain."""
    drain_minutes: int | None = ROLLOUT.drain_timeout_minutes
    if strategy is not None and strategy.drain_timeout_s is not None:
        drain_minutes = math.ceil(strategy.drain_timeout_s / 60)
    times = f"{rounds} round{'s' if rounds > 1 else ''}"
    if not drain_minutes:
        return f"{times}, each as long as pods take to leave (drain_timeout_s: 0)"
    hours, minutes = divmod(rounds * (drain_minutes + ROLLOUT.round_minutes_max), 60)
    told = f"{hours} h {minutes:02} min" if hours else f"{minutes} min"
    return f"{times} of {drain_minutes} + {ROLLOUT.round_minutes_max} min: {told}"


def _pace(strategy: StrategySpec | None, nodes: int) -> tuple[int, int]:
    """Nodes away at once and nodes beyond the number, of one mk8s group."""
    if strategy is None:
        return min(ROLLOUT.max_unavailable, nodes), ROLLOUT.max_surge
    away, surge = strategy.max_unavailable_nodes, strategy.max_surge_nodes
    if away is None:
        percent = strategy.max_unavailable_percent
        # The API rounds nodes that are away down and surge up.
        away = nodes * (_DEFAULT_PERCENT if percent is None else percent) // 100
    if surge is None:
        surge = math.ceil(nodes * (strategy.max_surge_percent or 0) / 100)
    # Both 0 would never end; the API takes at least one node.
    return min(max(away, 0 if surge else 1), nodes), surge


def _surge_price(group: Group, surge: int, rounds: int, total: Estimate) -> str:
    """US dollars at most of the nodes beyond the number."""
    monthly = total.node_month_usd(group.key)
    if monthly is None:
        return "UNPRICED"
    minutes = rounds * ROLLOUT.round_minutes_max
    return usd_text(monthly / HOURS_PER_MONTH * surge * minutes / 60)


def _most(values: Mapping[str, str], key: str) -> int:
    """Most nodes of a group as the values have it; none of a nodeset of a paused stack."""
    if values.get("nodes.paused") == "true" and key.startswith("nodes.workers["):
        return 0
    return int(values.get(f"{key}.nodes") or values.get(f"{key}.max_nodes") or 0)


def nodesets(values: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Name and most nodes of every nodeset that the values declare."""
    start, end = "nodes.workers[", "].platform"
    for key in values:
        if key.startswith(start) and key.endswith(end):
            name = key.removeprefix(start).removesuffix(end)
            yield name, _most(values, f"{start}{name}]")


_NEW_CLUSTER: Final = (
    "nebius.project_id",
    "nebius.network_id",
    "nebius.subnet_id",
    "nebius.discover_network",
)
_POD_FIELDS: Final = ("shared_memory_gib", "local_disks[", "image_disk")
_POD_KEYS: Final = (SOPERATOR_KEY, "soperator.cuda_version", "storage.memory")
_NO_WAY_BACK: Final = "none: a control plane never goes back to an older version"


def rollout(
    before: Mapping[str, str], after: Mapping[str, str], spec: StackSpec, total: Estimate
) -> Rollout:
    """The steps from the deployed values to the declared ones, with prices of `total`."""
    if KUBERNETES_KEY not in before:
        return Rollout(steps=())
    rolling = sorted(rolls(before, after, spec, total), key=lambda each: each[0])
    return Rollout(
        steps=(
            *_cluster(before, after, spec),
            *_grown(before, after),
            *(step for _, step in rolling),
            *leaving(before, spec),
            *_charts(before, after, spec),
        ),
        is_staged=len({stage for stage, _ in rolling}) > 1,
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
    was, now = before[KUBERNETES_KEY], after[KUBERNETES_KEY]
    if was != now:
        members = spec.cluster.etcd_size
        away = "stays reachable" if members > 1 else "is away for minutes"
        yield Step(
            what=f"control plane: Kubernetes {was} -> {now}; nothing drains, its API {away} "
            f"(etcd_size {members})",
            causes=(f"{KUBERNETES_KEY}: {was} -> {now}",),
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


def leaving(before: Mapping[str, str], spec: StackSpec) -> Iterator[Step]:
    """Workers that go for good, by set: those with the highest numbers, or a whole set."""
    declared = {group.label: group.max_nodes for group in groups(spec) if group.nodeset is not None}
    for name, was in nodesets(before):
        nodes = tuple(f"{name}-{index}" for index in range(declared.get(name, 0), was))
        if not nodes:
            continue
        span = (
            f"{nodes[0]}, the one with the highest number, leaves"
            if len(nodes) == 1
            else f"{nodes[0]} to {nodes[-1]}, those with the highest numbers, leave"
        )
        now = f"{was} -> {declared[name]} nodes" if name in declared else "no longer declared"
        yield Step(
            what=f"{name}: {span}; jobs on {'it' if len(nodes) == 1 else 'them'} end",
            causes=(f"nodes.workers[{name}]: {now}",),
            way_back="set the number back: nodes of the same names come, without local disks",
            slurm_nodes=nodes,
        )


def _charts(before: Mapping[str, str], after: Mapping[str, str], spec: StackSpec) -> Iterator[Step]:
    was, now = before.get(SOPERATOR_KEY), after[SOPERATOR_KEY]
    if was is not None and was != now:
        old, new = release_of(was), release_of(now)
        yield Step(
            what=f"custom resources of Soperator: {was} -> {now}, before any chart; nothing drains",
            way_back=f"set {SOPERATOR_KEY} back: those of {was} are applied again",
        )
        same = old.slurm is not None and old.slurm == new.slurm
        back = (
            f"set {SOPERATOR_KEY} back to {was}: Slurm is {old.slurm} in both"
            if same
            else "none: Slurm converts its state and the accounting database; copy "
            "storage.controller_spool and storage.accounting first"
        )
        yield Step(
            what=f"Soperator's charts: {was} -> {now}; every pod of Slurm starts anew, jobs end",
            causes=(f"{SOPERATOR_KEY}: {was} -> {now}",),
            way_back=back,
            slurm_nodes=_every_node(before),
        )
        return
    changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    # What restarts the pods of all workers, and of one set.
    shared = [key for key in changed if key.startswith(_POD_KEYS)]
    own = [
        key
        for key in changed
        if key.startswith("nodes.workers[") and key.partition("].")[2].startswith(_POD_FIELDS)
    ]
    sets = {key.split("[")[1].split("]")[0] for key in own}
    names = [each.name for each in spec.nodes.workers if shared or each.name in sets]
    if names:
        yield Step(
            what=f"pods of {', '.join(names)}: started anew; jobs on them end",
            causes=tuple(_told(key, before, after) for key in changed if key in (*shared, *own)),
            way_back="set the keys back: the pods start anew once more",
            slurm_nodes=tuple(
                node for node in _every_node(before) if node.rpartition("-")[0] in names
            ),
        )


def _told(key: str, before: Mapping[str, str], after: Mapping[str, str]) -> str:
    return f"{key}: {before.get(key, 'not set')} -> {after.get(key, 'not set')}"


def _every_node(before: Mapping[str, str]) -> tuple[str, ...]:
    """Every Slurm node of the deployment."""
    return tuple(f"{name}-{at}" for name, most in nodesets(before) for at in range(most))
