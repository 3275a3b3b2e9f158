"""Whether the cloud has what is declared: GPU nodes now, quotas, platforms, versions and drivers.

Advice on capacity is no promise: what it lacks warns and never refuses; a declared capacity block
that does not fit is certain. mk8s accepts a node group over its quota and the nodes never come, so
that is asked before; a second `up` must not count its own nodes against the quota again. The live
platform says which quota its GPUs count in. Here too what every question uses: its findings, the
cloud within a time limit.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final

from cost.report.layout import aligned
from infra.providers.nebius import adoption
from infra.providers.nebius.api import Api
from infra.providers.nebius.quota_use import used_by
from infra.providers.nebius.resource_type import GIB, enum_name, size_bytes
from infra.providers.nebius.schema import Schema, enum_word
from infra.providers.nebius.sdk import shared_sdk
from infra.providers.soperator.teardown import CLAIM_LABEL
from infra.render.names import NODESET_NAME_LABEL
from infra.render.nodes import node_group_spec, roles
from stacks.catalog import PLATFORMS, Preset
from stacks.machines import machines
from stacks.rules.quotas import gpu_quota, quota_use
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing, WorkerSpec


class Outcome(StrEnum):
    """NOT CHECKED is no answer: the API was away, slow, or does not tell."""

    PASS = "PASS"  # noqa: S105
    WARN = "WARN"
    """Of `soperator doctor` alone."""
    FAIL = "FAIL"
    NOT_CHECKED = "NOT CHECKED"


@dataclass(frozen=True, slots=True)
class Finding:
    """One answer."""

    outcome: Outcome
    seen: str
    """What is there; of no answer, why there is none."""
    fix: str | None = None
    """What to do about it."""
    certain: bool = False
    """Whether an `up` is sure to fail: the program refuses before it declares anything."""
    check: str = ""
    """What was asked, such as `quotas`; empty: `ask` fills in the question's name."""

    def __str__(self) -> str:
        return f"{self.check}: {self.seen}" + (f"; {self.fix}" if self.fix else "")


passed: Final = partial(Finding, Outcome.PASS)
warned: Final = partial(Finding, Outcome.WARN)
failed: Final = partial(Finding, Outcome.FAIL)
not_checked: Final = partial(Finding, Outcome.NOT_CHECKED)


class Cloud:
    """The API that the environment names, for the length of one pre-flight check."""

    def __init__(self, *, within_s: float, project: str = "") -> None:
        """`project`: the Pulumi project whose labels count as ours."""
        self._project = project
        self.schema = Schema.shared()
        self.given_up = threading.Event()
        """Set when the time is over: nothing is asked again."""
        self._api = Api(self.schema, self.given_up, call_s=within_s, back_off_s=(0.2,))
        self._lists: dict[tuple[str, str], list[Any]] = {}
        self._lock = threading.Lock()
        self._locks: dict[tuple[str, str], threading.Lock] = defaultdict(threading.Lock)

    @property
    def target(self) -> str | None:
        """The emulator's address, or None for the real cloud."""
        return self._api.target

    def owns(self, spec: StackSpec, resource: Any) -> bool:
        """Whether the resource carries the labels of the stack."""
        return adoption.is_of(dict(resource.metadata.labels), spec.name, self._project)

    def get(self, service: str, method: str = "Get", **fields: Any) -> Any:
        """The answer of one call, such as `iam.v1.ProfileService` Get."""
        with self._lock:
            shared_sdk()
        found = self.schema.services[f"nebius.{service}"]
        return self._api.ask(found, method, **fields)

    def list(self, service: str, parent_id: str) -> list[Any]:
        """Every resource of a service under one parent; asked once."""
        key = (service, parent_id)
        with self._lock:
            shared_sdk()  # made once, by whichever question comes first
            lock = self._locks[key]
        with lock:
            if key not in self._lists:
                found = self.schema.services[f"nebius.{service}"]
                self._lists[key] = [*self._api.pages(found, parent_id=parent_id)]
            return self._lists[key]


KINDS: Final = {
    "cluster": "mk8s.v1.ClusterService", "filesystem": "compute.v1.FilesystemService",
    "GPU cluster": "compute.v1.GpuClusterService", "address": "vpc.v1.AllocationService",
    "network": "vpc.v1.NetworkService", "subnet": "vpc.v1.SubnetService",
    "machine": "compute.v1.InstanceService", "disk": "compute.v1.DiskService",
    "bucket": "storage.v1.BucketService", "service account": "iam.v1.ServiceAccountService",
    "group": "iam.v1.GroupService", "registry": "registry.v1.RegistryService"
}  # fmt: skip
"""What a stack makes under its project -> the service that lists it."""


_ADVICE: Final = "capacity.v1.ResourceAdviceService"
_BLOCKS: Final = "capacity.v1.CapacityBlockGroupService"
_FRESH: Final = "DATA_STATE_FRESH"
_LEVEL: Final = "AVAILABILITY_LEVEL_"
_KINDS: Final = {Billing.ON_DEMAND: "on_demand", Billing.PREEMPTIBLE: "preemptible"}


def ask_capacity(cloud: Cloud, spec: StackSpec) -> Iterator[Finding]:
    """One finding for each nodeset with GPUs."""
    workers = [one for one in spec.nodes.workers if one.gpus]
    if not workers:
        yield passed("no nodeset has GPUs")
    for worker in workers:
        if worker.billing is Billing.RESERVED:
            found = _blocks(cloud, spec, worker)
        else:
            found = iter([_advice(cloud, spec, worker)])
        for one in found:
            yield replace(one, check=f"capacity of {worker.name}")


def _advice(cloud: Cloud, spec: StackSpec, worker: WorkerSpec) -> Finding:
    known = [
        one
        for one in cloud.list(_ADVICE, spec.nebius.tenant_id)
        if _fits(one, spec.nebius.region, worker)
    ]
    if not known:
        where = worker.infiniband_fabric or spec.nebius.region
        return not_checked(f"no advice for {worker.platform} {worker.preset} in {where}")
    advice = getattr(known[0].status, _KINDS[worker.billing])
    if (state := enum_word(advice, "data_state")) != _FRESH:
        return not_checked(f"the advice is not fresh ({state})")
    level = enum_word(advice, "availability_level").removeprefix(_LEVEL)
    wanted = spec.nodes.counts(worker)[0] - _own_nodes(cloud, spec, worker)
    seen = f"{max(0, wanted)} more nodes wanted, {advice.available} to be had now, level {level}"
    if wanted <= advice.available:
        return passed(seen)
    fix = "try later, another fabric or region, or start with fewer nodes (created_nodes: 0)"
    return failed(seen, fix)


def _fits(advice: Any, region: str, worker: WorkerSpec) -> bool:
    own, instance = advice.spec, advice.spec.compute_instance
    return (
        own.region == region
        and own.fabric == (worker.infiniband_fabric or own.fabric)
        and instance.platform == worker.platform
        and instance.preset.name == worker.preset
    )


def _own_nodes(cloud: Cloud, spec: StackSpec, worker: WorkerSpec) -> int:
    """Nodes of the same platform and preset that the stack has already."""
    return sum(
        _num_nodes(group)
        for group in _own_node_groups(cloud, spec)
        if group.spec.template.resources.platform == worker.platform
        and group.spec.template.resources.preset == worker.preset
    )


def _blocks(cloud: Cloud, spec: StackSpec, worker: WorkerSpec) -> Iterator[Finding]:
    groups = {one.metadata.id: one for one in cloud.list(_BLOCKS, spec.nebius.tenant_id)}
    ids = worker.reservation.ids if worker.reservation is not None else ()
    if not ids:
        fitting = [id_ for id_, one in groups.items() if not _misfit(one, spec, worker)]
        if fitting:
            yield passed(f"capacity blocks that fit: {', '.join(fitting)}")
        else:
            yield failed(f"no capacity block of {worker.platform} fits", "reserve one first")
    for id_ in ids:
        reason = "does not exist" if id_ not in groups else _misfit(groups[id_], spec, worker)
        if reason:
            fix = "see: nebius capacity capacity-block-group list; then change reservation.ids"
            yield failed(f"capacity block {id_} {reason}", fix, certain=True)
        else:
            limit = groups[id_].status.current_limit
            yield passed(f"capacity block {id_} is active with a limit of {limit}")


def _misfit(group: Any, spec: StackSpec, worker: WorkerSpec) -> str:
    """Why the nodes cannot come out of a capacity block; empty where they can."""
    status = group.status
    affinity = status.resource_affinity.compute_v1
    state = enum_word(status, "state")
    if state != "STATE_ACTIVE":
        return f"is not active ({state})"
    if status.region != spec.nebius.region:
        return f"is in {status.region}"
    if affinity.platform != worker.platform:
        return f"is for {affinity.platform}"
    if worker.infiniband_fabric and affinity.fabric not in ("", worker.infiniband_fabric):
        return f"is on {affinity.fabric}"
    least = spec.nodes.counts(worker)[0]
    # Whether the limit counts GPUs or machines: fewer than machines is too few either way.
    if status.current_limit < least:
        return f"holds {status.current_limit}, and {least} nodes are declared"
    return ""


_LIST: Final = "quotas.v1.QuotaAllowanceService"
_FIX: Final = (
    "ask for more in the console under Administration, Limits (docs.nebius.com/overview/limits), "
    "or see: soperator cost --stack {stack} --alternatives"
)


def ask_quotas(cloud: Cloud, spec: StackSpec) -> Iterator[Finding]:
    """A finding with the table of what is missing, or one that says how much was compared."""
    allowances = _allowances(cloud, spec)
    names = _live_names(cloud, spec)
    own = _renamed(_own_use(cloud, spec), names)
    least = _renamed(quota_use(spec, at_max=False), names)
    certain = _shortfalls(least, own, allowances)
    later = _shortfalls(_renamed(quota_use(spec, at_max=True), names), own, allowances)
    fix = _FIX.format(stack=spec.name)
    if certain:
        yield failed(f"too small for this stack:\n{_table(certain)}", fix, certain=True)
        return
    wanted = [name for name, amount in least.items() if amount]
    unknown = ", ".join(sorted(name for name in wanted if name not in allowances))
    compared = sum(name in allowances for name in wanted)
    if not compared:
        yield not_checked(f"the API tells no limit of {unknown}")
    else:
        told = f"{compared} of {len(wanted)} quotas compared, all hold"
        yield passed(told + (f"; no limit is told of {unknown}" if unknown else ""))
    if later:
        yield failed(f"at max_nodes the last nodes would never come:\n{_table(later)}", fix)


def _table(shortfalls: list[tuple[str, ...]]) -> str:
    """The quotas that are too small, a row each."""
    rows = [("QUOTA", "NEEDS", "OWN", "USED", "LIMIT", "MISSING"), *shortfalls]
    return "\n".join(f"  {line}" for line in aligned(rows, right=range(1, len(rows[0]))))


def _own(cloud: Cloud, spec: StackSpec, kind: str) -> Iterator[Any]:
    """Our resources of one kind."""
    for resource in cloud.list(KINDS[kind], spec.nebius.project_id):
        if cloud.owns(spec, resource):
            yield resource


def _own_node_groups(cloud: Cloud, spec: StackSpec) -> Iterator[Any]:
    """Node groups of our cluster."""
    for cluster in _own(cloud, spec, "cluster"):
        yield from cloud.list("mk8s.v1.NodeGroupService", cluster.metadata.id)


def _own_use(cloud: Cloud, spec: StackSpec) -> Mapping[str, int]:
    """Quota name -> GiB, GPUs, vCPUs or a count that our resources use now."""
    kinds = ("filesystem", "disk", "machine", "GPU cluster", "address", "cluster")
    own = [one for kind in kinds for one in _own(cloud, spec, kind)]
    groups = list(_own_node_groups(cloud, spec))
    used: Counter[str] = Counter()
    for one in [*own, *groups]:
        used += used_by(cloud.schema, one, _num_nodes)
    gib = {name: round(amount / GIB) for name, amount in used.items() if ".size." in name}
    return Counter({**used, **gib}) + _claimed_use(cloud, spec, groups)


def _claimed_use(cloud: Cloud, spec: StackSpec, groups: list[Any]) -> Counter[str]:
    """Node-local and image disks of our workers: as many as are declared and there.

    The driver labels a disk with the namespace of its claim and with no cluster, and the disks of
    another cluster of the project can be among them: what we declare is the most that is ours.
    """
    declared: Counter[tuple[str, str]] = Counter()
    for worker in spec.nodes.workers:
        nodes = sum(
            _num_nodes(group)
            for group in groups
            if group.spec.template.metadata.labels.get(NODESET_NAME_LABEL) == worker.name
        )
        for disk in (*worker.local_disks, *filter(None, (worker.image_disk,))):
            declared[disk.type, "compute.disk.count"] += nodes
            declared[disk.type, f"compute.disk.size.{disk.type}"] += nodes * disk.size_gib
    if not declared:
        return Counter()
    there: Counter[tuple[str, str]] = Counter()
    for disk in cloud.list(KINDS["disk"], spec.nebius.project_id):
        if disk.metadata.labels.get(CLAIM_LABEL) == spec.cluster.namespace:
            kind = enum_name(disk.spec, "type")
            there[kind, "compute.disk.count"] += 1
            there[kind, f"compute.disk.size.{kind}"] += round(size_bytes(disk.spec) / GIB)
    used: Counter[str] = Counter()
    for (_, quota), amount in (declared & there).items():
        used[quota] += amount
    return used


def _num_nodes(group: Any) -> int:
    """Nodes that a node group has or is about to have."""
    return int(group.status.target_node_count)


def _allowances(cloud: Cloud, spec: StackSpec) -> dict[str, tuple[int, int]]:
    """Quota name -> (used, limit) of the stack's region; those without a limit are left out."""
    found = {}
    for allowance in cloud.list(_LIST, spec.nebius.project_id):
        own, status = allowance.spec, allowance.status
        if own.region not in ("", spec.nebius.region) or not own.HasField("limit"):
            continue
        name = allowance.metadata.name
        scale = GIB if ".size." in name else 1
        found[name] = (-(-status.usage // scale), own.limit // scale)
    return found


def _live_names(cloud: Cloud, spec: StackSpec) -> Mapping[str, str]:
    """Our name of a GPU quota -> the name that the live platform gives."""
    live: dict[str, str] = {}
    for platform in cloud.list("compute.v1.PlatformService", spec.nebius.project_id):
        name: Any = platform.metadata.name
        known = PLATFORMS.get(name)
        if known is not None and known.gres_type and platform.spec.gpu_count_quota_type:
            live[gpu_quota(name)] = platform.spec.gpu_count_quota_type
    return live


def _renamed(amounts: Mapping[str, int], names: Mapping[str, str]) -> Mapping[str, int]:
    found: Counter[str] = Counter()
    for name, amount in amounts.items():
        found[names.get(name, name)] += amount
    return found


def _shortfalls(
    needs: Mapping[str, int], own: Mapping[str, int], allowances: Mapping[str, tuple[int, int]]
) -> list[tuple[str, ...]]:
    """Each quota that is too small: its name, all that the stack needs, what of it this stack has
    already, what the project uses in all, the limit, and how much that is too small."""
    found: list[tuple[str, ...]] = []
    for quota, amount in needs.items():
        if quota not in allowances:
            continue
        used, limit = allowances[quota]
        # What the stack holds can be missing from a usage that is counted late.
        had = min(own.get(quota, 0), used)
        missing = used - had + amount - limit
        if amount > had and missing > 0:
            unit = " GiB" if ".size." in quota else ""
            amounts = (amount, had, used, limit, missing)
            found.append((quota, *(f"{each}{unit}" for each in amounts)))
    return found


_DRIFT: Final = "catalog"


def ask_platforms(cloud: Cloud, spec: StackSpec) -> Iterator[Finding]:
    """Whether every platform and preset exists where the project is."""
    live = {
        one.metadata.name: {preset.name: preset for preset in one.spec.presets}
        for one in cloud.list("compute.v1.PlatformService", spec.nebius.project_id)
    }
    if not live:
        yield not_checked("the API lists none")
        return
    is_offered = True
    for path, machine in machines(spec):
        presets = live.get(machine.platform)
        if presets is None:
            has, lacks = sorted(live), f"the project has no platform {machine.platform!r}"
        elif machine.preset not in presets:
            has, lacks = presets, f"{machine.platform} has no preset {machine.preset!r}"
        else:
            continue
        is_offered = False
        yield failed(f"{path}: {lacks}", f"choose of: {', '.join(has)}", certain=True)
    if is_offered:
        yield passed("every declared platform and preset is offered")
    yield _drift(spec, live)


def _drift(spec: StackSpec, live: Mapping[str, Mapping[str, Any]]) -> Finding:
    """What the stack uses and the API describes in other words than our catalog."""
    used = {(machine.platform, machine.preset) for _, machine in machines(spec)}
    offered = [each for each in sorted(used) if each[1] in live.get(each[0], {})]
    lines = []
    for platform, preset in offered:
        known = PLATFORMS.get(platform)
        mine = known.presets.get(preset) if known is not None else None
        told = (
            ["not in the catalog"] if mine is None else _differences(mine, live[platform][preset])
        )
        lines += [f"{platform} {preset}: {line}" for line in told]
    if lines:
        fix = "correct stacks/catalog.py: memory and CPUs of Slurm's nodes are computed from it"
        return failed("; ".join(lines), fix, check=_DRIFT)
    if not offered:
        return not_checked("the API lists none of what is used", check=_DRIFT)
    new = sorted(live.keys() - PLATFORMS.keys())
    more = f"; the API also has {', '.join(new)}" if new else ""
    some = f"{len(offered)} of {len(used)} presets that are used"
    what = "all that is used" if len(offered) == len(used) else some
    return passed(f"agrees with the API on {what}{more}", check=_DRIFT)


def _differences(mine: Preset, theirs: Any) -> Iterator[str]:
    own = theirs.resources
    pairs = (
        ("vCPUs", mine.vcpus, own.vcpu_count),
        ("GiB of memory", mine.memory_gib, own.memory_gibibytes),
        ("GPUs", mine.gpus, own.gpu_count),
        ("GPU cluster", mine.allows_gpu_cluster, theirs.allow_gpu_clustering),
    )
    for what, ours, live in pairs:
        if ours != live:
            yield f"{what}: {ours} in the catalog, {live} in the API"


def ask_versions(cloud: Cloud, spec: StackSpec) -> Iterator[Finding]:
    """Whether the control plane can have the declared Kubernetes version."""
    wanted = spec.cluster.kubernetes_version
    known = {
        one.version: one
        for one in cloud.get("mk8s.v1.ClusterService", "ListControlPlaneVersions").items
    }
    fix = f"set cluster.kubernetes_version to one of: {', '.join(sorted(known))}"
    if not known:
        yield not_checked("the API lists none")
    elif wanted not in known:
        yield failed(f"{wanted} is not offered", fix, certain=True)
    elif known[wanted].deprecated or known[wanted].restricted:
        word = "deprecated" if known[wanted].deprecated else "restricted"
        yield failed(f"{wanted} is {word}", fix)
    else:
        yield passed(f"{wanted} is offered")


def ask_drivers(cloud: Cloud, spec: StackSpec) -> Iterator[Finding]:
    """Whether an image has the declared drivers for each GPU platform and Kubernetes version."""
    wanted: set[tuple[str, str, str]] = set()
    for role in roles(spec):
        # No id changes an image.
        ids: Mapping[str, str] = defaultdict(str)
        template = node_group_spec(spec, role, subnet_id="", filesystem_ids=ids)["template"]
        if drivers := template.get("gpu_settings", {}).get("drivers_preset"):
            wanted.add((template["os"], drivers, role.group.platform))
    if not wanted:
        yield passed("no node image brings GPU drivers")
        return
    version = spec.cluster.kubernetes_version
    matrix = cloud.get(
        "mk8s.v1.NodeGroupService", "GetCompatibilityMatrix", cluster_kubernetes_version=version
    )
    offered = {
        (item.os, item.drivers_preset, platform)
        for each in matrix.versions
        for item in each.items
        for platform in item.compatible_platforms
    }
    if not any(each.items for each in matrix.versions):
        yield not_checked(f"the API lists no image for Kubernetes {version}")
        return
    for os, drivers, platform in sorted(wanted):
        if (os, drivers, platform) not in offered:
            has = sorted(f"{d} on {o}" for o, d, p in offered if p == platform)
            seen = f"no image of Kubernetes {version} has {drivers} on {os} for {platform}"
            fix = f"choose of: {', '.join(has) or 'none: another platform or version'}"
            yield failed(seen, fix, certain=True)
    if wanted <= offered:
        names = ", ".join(sorted({drivers for _, drivers, _ in wanted}))
        yield passed(f"{names} is offered for Kubernetes {version}")
