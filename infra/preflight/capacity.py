"""Whether Nebius has the GPU nodes now: its own advice, and the capacity blocks of reserved nodes.

Advice is no promise: what it lacks warns and never refuses. A declared capacity block that does
not fit is certain.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from infra.preflight.cloud import Cloud
from infra.preflight.finding import Finding, failed, not_checked, passed
from infra.preflight.inventory import Owner, num_nodes, own_node_groups
from stacks.catalog import find_preset
from stacks.node_spec import Billing, WorkerSpec
from stacks.spec import StackSpec

CHECK: Final = "capacity"
_ADVICE: Final = "capacity.v1.ResourceAdviceService"
_BLOCKS: Final = "capacity.v1.CapacityBlockGroupService"
_FRESH: Final = "DATA_STATE_FRESH"
_LEVEL: Final = "AVAILABILITY_LEVEL_"
_KINDS: Final = {Billing.ON_DEMAND: "on_demand", Billing.PREEMPTIBLE: "preemptible"}


def ask_capacity(cloud: Cloud, spec: StackSpec, owner: Owner) -> list[Finding]:
    """One finding for each nodeset with GPUs."""
    workers = [one for one in spec.nodes.workers if _gpus(one)]
    if not workers:
        return [passed(CHECK, "no nodeset has GPUs")]
    findings = []
    for worker in workers:
        check = f"{CHECK} of {worker.name}"
        if worker.billing is Billing.RESERVED:
            findings += list(_blocks(cloud, spec, worker, check))
        else:
            findings.append(_advice(cloud, spec, owner, worker, check))
    return findings


def _gpus(worker: WorkerSpec) -> int:
    preset = find_preset(worker.platform, worker.preset)
    return 0 if preset is None else preset.gpus


def _advice(cloud: Cloud, spec: StackSpec, owner: Owner, worker: WorkerSpec, check: str) -> Finding:
    known = [
        one
        for one in cloud.list(_ADVICE, spec.nebius.tenant_id)
        if _fits(one, spec.nebius.region, worker)
    ]
    if not known:
        where = worker.infiniband_fabric or spec.nebius.region
        return not_checked(check, f"no advice for {worker.platform} {worker.preset} in {where}")
    advice = getattr(known[0].status, _KINDS[worker.billing])
    if _enum(advice, "data_state") != _FRESH:
        return not_checked(check, f"the advice is not fresh ({_enum(advice, 'data_state')})")
    level = _enum(advice, "availability_level").removeprefix(_LEVEL)
    wanted = spec.nodes.counts(worker)[0] - _own_nodes(cloud, spec, owner, worker)
    seen = f"{max(0, wanted)} more nodes wanted, {advice.available} to be had now, level {level}"
    if wanted <= advice.available:
        return passed(check, seen)
    fix = "try later, another fabric or region, or start with fewer nodes (created_nodes: 0)"
    return failed(check, seen, fix)


def _fits(advice: Any, region: str, worker: WorkerSpec) -> bool:
    own, instance = advice.spec, advice.spec.compute_instance
    return (
        own.region == region
        and own.fabric == (worker.infiniband_fabric or own.fabric)
        and instance.platform == worker.platform
        and instance.preset.name == worker.preset
    )


def _own_nodes(cloud: Cloud, spec: StackSpec, owner: Owner, worker: WorkerSpec) -> int:
    """Nodes of the same platform and preset that the stack has already."""
    return sum(
        num_nodes(group)
        for group in own_node_groups(cloud, spec, owner)
        if group.spec.template.resources.platform == worker.platform
        and group.spec.template.resources.preset == worker.preset
    )


def _blocks(cloud: Cloud, spec: StackSpec, worker: WorkerSpec, check: str) -> Iterator[Finding]:
    groups = {one.metadata.id: one for one in cloud.list(_BLOCKS, spec.nebius.tenant_id)}
    ids = worker.reservation.ids if worker.reservation is not None else ()
    if not ids:
        fitting = [id_ for id_, one in groups.items() if not _misfit(one, spec, worker)]
        if fitting:
            yield passed(check, f"capacity blocks that fit: {', '.join(fitting)}")
        else:
            yield failed(check, f"no capacity block of {worker.platform} fits", "reserve one first")
        return
    for id_ in ids:
        reason = "does not exist" if id_ not in groups else _misfit(groups[id_], spec, worker)
        if reason:
            fix = "see: nebius capacity capacity-block-group list; then change reservation.ids"
            yield failed(check, f"capacity block {id_} {reason}", fix, certain=True)
        else:
            limit = groups[id_].status.current_limit
            yield passed(check, f"capacity block {id_} is active with a limit of {limit}")


def _misfit(group: Any, spec: StackSpec, worker: WorkerSpec) -> str:
    """Why the nodes cannot come out of a capacity block; empty where they can."""
    status = group.status
    affinity = status.resource_affinity.compute_v1
    state = _enum(status, "state")
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


def _enum(message: Any, field: str) -> str:
    values = message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number
    return values[getattr(message, field)].name
