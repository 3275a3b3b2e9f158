"""What would do instead: alternatives(units) -> changed stacks with $ and hours, best first.

For a stack over its limits, over a quota or without capacity. First comes what keeps every limit,
then the cheapest, then the least changed. Preset, count, billing and region of one nodeset may
change, its jobs reshaped to the same number of GPUs; and nodes that nothing uses. Nothing that
stacks.check refuses and no nodes without a price are proposed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from typing import Final

from cost.chat.unit_costs import UnitCosts
from cost.choose.limits import Limit, limits
from cost.prices.book import layered
from cost.report.layout import Report, Table, money, picked, signed_usd, span, usd_text
from cost.resources.estimate import Estimate, estimate
from cost.run_record import Outcome
from cost.runs.forecast import Forecast, UnknownRun, forecasts
from stacks.catalog import FABRICS, PLATFORMS, REGIONS, Preset
from stacks.check import check
from stacks.errors import Level, UserError, nearest
from stacks.machines import machines, workers_of
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing, NodeGroupSpec, WorkerSpec
from stacks.spec.slurm import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One config key of a stack with its value before and after."""

    key: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.key}: {self.before} -> {self.after}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A changed stack."""

    spec: StackSpec
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    """What the change costs beside money."""
    worker: WorkerSpec | None
    """The changed nodeset; None when no nodeset changes."""


def candidates(
    spec: StackSpec, *, proven: frozenset[tuple[str, str]] = frozenset()
) -> Iterator[Candidate]:
    """Changed stacks; `proven` are platforms and presets that the stack's jobs have passed on.

    What may not fit is left out unless it is proven: GPUs with less memory than the declared ones,
    nodes with less memory than their GPUs, and fewer GPUs on a node than a job asks for there.
    """
    yield from _without_spare_nodes(spec)
    for region in (spec.nebius.region, *(name for name in REGIONS if name != spec.nebius.region)):
        for worker in spec.nodes.workers:
            for shape in _shapes(spec, worker, region, proven):
                if shape != worker or region != spec.nebius.region:
                    yield _with_worker(spec, worker, shape, region)


def _without_spare_nodes(spec: StackSpec) -> Iterator[Candidate]:
    """Without the nodes that stacks.check calls unused."""
    nodes, changes = spec.nodes, list[Change]()
    for problem in check(spec):
        spare = problem.spare
        group: NodeGroupSpec | None = None if spare is None else getattr(nodes, spare.what, None)
        if spare is None or group is None:
            continue
        count = group.max_nodes - spare.count
        slim = replace(group, min_nodes=min(group.min_nodes, count), max_nodes=count)
        nodes = replace(nodes, **{spare.what: slim})
        changes += _changed(f"nodes.{spare.what}.nodes", group.max_nodes, count)
    if changes:
        yield Candidate(
            spec=replace(spec, nodes=nodes), changes=tuple(changes), notes=(), worker=None
        )


def _shapes(
    spec: StackSpec, worker: WorkerSpec, region: str, proven: frozenset[tuple[str, str]]
) -> Iterator[WorkerSpec]:
    """The nodeset in every preset that its jobs fit on, as far as is known."""
    old = worker.hardware
    if old is None:
        return
    declared_gb = PLATFORMS[worker.platform].gpu_memory_gb or 0
    together = max((job.gpus_per_node for job in spec.jobs), default=0)
    for platform in PLATFORMS.values():
        if region not in platform.regions:
            continue
        for preset in platform.presets.values():
            gpu_gb = platform.gpu_memory_gb or 0
            fits = gpu_gb >= declared_gb and preset.memory_gib >= preset.gpus * gpu_gb
            if bool(preset.gpus) != bool(old.gpus) or preset.gpus < min(together, old.gpus):
                continue
            if not fits and (platform.name, preset.name) not in proven:
                continue
            for billing in dict.fromkeys((worker.billing, Billing.ON_DEMAND, Billing.PREEMPTIBLE)):
                shape = replace(worker, platform=platform.name, preset=preset.name, billing=billing)
                yield from _counts(spec, _with_node(spec, worker, shape, region), old, preset)


def _with_node(spec: StackSpec, worker: WorkerSpec, shape: WorkerSpec, region: str) -> WorkerSpec:
    """The shape with a fabric and shared memory that its preset and region have."""
    preset = PLATFORMS[shape.platform].presets[shape.preset]
    memory_gib = 0 if spec.storage.memory is None else spec.storage.memory.size_gib
    if memory_gib + worker.shared_memory_gib > preset.memory_gib:
        shape = replace(shape, shared_memory_gib=max(1, (preset.memory_gib - memory_gib) // 2))
    if worker.infiniband_fabric is None:
        return shape
    if (shape.platform, region) == (worker.platform, spec.nebius.region):
        fabric = worker.infiniband_fabric
    else:
        here = (item.name for item in FABRICS.values() if item.region == region)
        fabric = next((name for name in here if FABRICS[name].platform == shape.platform), None)
    return replace(shape, infiniband_fabric=fabric if preset.allows_gpu_cluster else None)


def _counts(
    spec: StackSpec, shape: WorkerSpec, old: Preset, preset: Preset
) -> Iterator[WorkerSpec]:
    """The shape with the GPUs that are declared, and with the nodes that jobs and chats need."""

    def same(num_nodes: int) -> int:
        return -(-num_nodes * old.gpus // preset.gpus) if preset.gpus else num_nodes

    keep = replace(shape, min_nodes=same(shape.min_nodes), max_nodes=same(shape.max_nodes))
    yield keep
    alone = [job for job in spec.jobs if _is_alone(spec, job, shape.name)]
    needed = max((_reshaped(job, old, preset).nodes for job in alone), default=1)
    if spec.chat.serving_nodeset == shape.name:
        needed += spec.chat.serving_nodes
    if needed < keep.max_nodes:
        yield replace(shape, min_nodes=min(needed, keep.min_nodes), max_nodes=needed)


def _names(spec: StackSpec, job: JobSpec) -> list[str]:
    """Nodesets of the job's partition."""
    return [item.name for item in workers_of(spec, job.partition)]


def _is_alone(spec: StackSpec, job: JobSpec, nodeset: str) -> bool:
    """Whether the job can run on this nodeset only."""
    return _names(spec, job) == [nodeset]


def _reshaped(job: JobSpec, old: Preset, preset: Preset) -> JobSpec:
    """The job with as many GPUs in all, on nodes of the preset, and CPUs that they have."""
    if job.gpus_per_node and preset.gpus and preset.gpus != old.gpus:
        total = job.nodes * job.gpus_per_node
        per_node = next(gpus for gpus in range(preset.gpus, 0, -1) if total % gpus == 0)
        least = job.least_nodes
        if least is not None:
            least = math.ceil(least * job.gpus_per_node / per_node)
        job = replace(job, nodes=total // per_node, gpus_per_node=per_node, least_nodes=least)
    if job.cpus_per_task is None:
        return job
    return replace(
        job, cpus_per_task=min(job.cpus_per_task, preset.vcpus // max(1, job.gpus_per_node))
    )


def _with_worker(spec: StackSpec, worker: WorkerSpec, shape: WorkerSpec, region: str) -> Candidate:
    """The stack with the nodeset in its new shape and place, and its jobs to match."""
    old = PLATFORMS[worker.platform].presets[worker.preset]
    preset = PLATFORMS[shape.platform].presets[shape.preset]
    jobs = tuple(
        _reshaped(job, old, preset) if _is_alone(spec, job, worker.name) else job
        for job in spec.jobs
    )
    workers = tuple(shape if item is worker else item for item in spec.nodes.workers)
    changed = replace(
        spec,
        nebius=replace(spec.nebius, region=region),
        nodes=replace(spec.nodes, workers=workers),
        jobs=jobs,
    )
    if (worker.platform, worker.preset) != (shape.platform, shape.preset):
        # Speeds that were declared for other nodes than it has now say nothing.
        kept = {job.name for job in spec.jobs if worker.name not in _names(spec, job)}
        runs = tuple(
            run if run.job in kept else replace(run, train_tokens_per_s=None, source=None)
            for run in spec.runs
        )
        serves = spec.chat.serving_nodeset in (None, worker.name)
        chat = replace(spec.chat, speeds=()) if serves else spec.chat
        changed = replace(changed, runs=runs, chat=chat)
    changes = [
        *_changed("nebius.region", spec.nebius.region, region),
        *_worker_changes(worker, shape),
        *(
            change
            for was, now in zip(spec.jobs, jobs, strict=True)
            for key in ("nodes", "least_nodes", "gpus_per_node", "cpus_per_task")
            for change in _changed(f"jobs[{was.name}].{key}", getattr(was, key), getattr(now, key))
        ),
    ]
    return Candidate(
        spec=changed,
        changes=tuple(changes),
        notes=tuple(_cautions(spec, worker, shape, region)),
        worker=shape,
    )


def _worker_changes(worker: WorkerSpec, shape: WorkerSpec) -> Iterator[Change]:
    is_fixed = (shape.min_nodes, worker.min_nodes) == (shape.max_nodes, worker.max_nodes)
    ends = ("max_nodes",) if is_fixed else ("min_nodes", "max_nodes")
    for name in ("platform", "preset", *ends, "billing", "infiniband_fabric", "shared_memory_gib"):
        key = "nodes" if is_fixed and name == "max_nodes" else name
        path = f"nodes.workers[{worker.name}].{key}"
        yield from _changed(path, getattr(worker, name), getattr(shape, name))


def _changed(key: str, before: object, after: object) -> Iterator[Change]:
    if before != after:
        yield Change(key=key, before=str(before), after=str(after))


def _cautions(spec: StackSpec, worker: WorkerSpec, shape: WorkerSpec, region: str) -> Iterator[str]:
    if region != spec.nebius.region:
        yield f"everything is made anew in {region}: the data must be copied there"
    if shape.billing is Billing.PREEMPTIBLE and worker.billing is not Billing.PREEMPTIBLE:
        yield "nodes can be taken away: jobs must save and resume"
    if worker.infiniband_fabric is not None and shape.infiniband_fabric is None:
        yield "nodes talk over Ethernet, not InfiniBand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Hardware that cannot be had now; None stands for every preset or region."""

    platform: str
    preset: str | None = None
    region: str | None = None

    def holds(self, spec: StackSpec) -> bool:
        """Whether the stack needs it, in its cluster or beside it."""
        return self.region in (None, spec.nebius.region) and any(
            machine.platform == self.platform and self.preset in (None, machine.preset)
            for _, machine in machines(spec)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One changed stack, priced."""

    candidate: Candidate
    estimate: Estimate
    runs: tuple[Forecast | UnknownRun, ...]
    """Declared runs on the changed stack."""
    limits: tuple[Limit, ...]

    @property
    def broken(self) -> tuple[Limit, ...]:
        """Limits that the changed stack does not keep."""
        return tuple(limit for limit in self.limits if limit.is_kept is False)

    @property
    def untold(self) -> tuple[Limit, ...]:
        """Limits that the changed stack may keep or not."""
        return tuple(limit for limit in self.limits if limit.is_kept is None)


def parse_shortage(text: str) -> Shortage:
    """`PLATFORM[/PRESET][@REGION]` as a shortage."""
    hardware, _, region = text.partition("@")
    platform, _, preset = hardware.partition("/")
    known = PLATFORMS.get(platform)
    if known is None:
        hint = nearest(platform, tuple(PLATFORMS))
        raise UserError(f"--without {text}: '{platform}' is not a platform{hint}")
    if preset and preset not in known.presets:
        hint = nearest(preset, tuple(known.presets))
        raise UserError(f"--without {text}: '{preset}' is not a preset of {platform}{hint}")
    if region and region not in known.regions:
        hint = nearest(region, known.regions)
        raise UserError(f"--without {text}: {platform} is not offered in '{region}'{hint}")
    return Shortage(platform=platform, preset=preset or None, region=region or None)


def alternatives(
    units: UnitCosts, shortages: Sequence[Shortage] = (), limit: int | None = None
) -> tuple[Alternative, ...]:
    """At most `limit` changed stacks, best first; empty when nothing else is known to do."""
    return tuple(sorted(_allowed(units, shortages), key=_rank)[:limit])


def cheapest_within_limits(units: UnitCosts) -> Alternative | None:
    """The cheapest changed stack that keeps every limit; None when there is none.

    A limit that cannot be told for the declared stack need not be told for the changed one.
    """
    untold = {limit.key for limit in limits(units) if limit.is_kept is None}
    for alternative in _allowed(units, ()):
        if not alternative.broken and {limit.key for limit in alternative.untold} <= untold:
            return alternative
    return None


def _allowed(units: UnitCosts, shortages: Sequence[Shortage]) -> Iterator[Alternative]:
    """What can be paid for and no rule refuses, cheapest first."""
    for candidate, total in _affordable(units, shortages):
        if not _refused(candidate.spec):
            changed = UnitCosts(estimate=total, records=units.records)
            yield Alternative(
                candidate=candidate,
                estimate=total,
                runs=forecasts(total, units.records),
                limits=limits(changed),
            )


def _affordable(
    units: UnitCosts, shortages: Sequence[Shortage]
) -> Iterator[tuple[Candidate, Estimate]]:
    """Candidates with a price and with capacity, cheapest first, one for each kind of change.

    A dearer one is of use only where the declared stack cannot be had.
    """
    book = units.estimate.book
    is_out_of_reach = _refused(units.spec) or any(item.holds(units.spec) for item in shortages)
    priced: list[tuple[Candidate, Estimate]] = []
    for candidate in candidates(units.spec, proven=_proven(units)):
        if any(shortage.holds(candidate.spec) for shortage in shortages):
            continue
        is_here = candidate.spec.nebius.region == units.spec.nebius.region
        found = estimate(candidate.spec, book if is_here else layered(candidate.spec, book=book))
        is_cheaper = found.total.high_usd < units.estimate.total.high_usd
        if any(line.nodeset for line in found.unpriced) or not (is_cheaper or is_out_of_reach):
            continue
        priced.append((candidate, found))
    priced.sort(key=lambda each: (each[1].total.high_usd, len(each[0].changes)))
    seen: set[tuple[object, ...]] = set()
    for each in priced:
        kind = _kind(each[0])
        if kind not in seen:
            seen.add(kind)
            yield each


def _refused(spec: StackSpec) -> bool:
    return any(problem.level is Level.ERROR for problem in check(spec))


def _kind(candidate: Candidate) -> tuple[object, ...]:
    """What makes candidates one of a kind, of which only the cheapest is of use.

    A dearer preset with as many GPUs adds nothing, nor does a move to a region that is not cheaper.
    """
    worker = candidate.worker
    if worker is None:
        return ("spare nodes",)
    gpus = PLATFORMS[worker.platform].presets[worker.preset].gpus
    return (worker.name, worker.platform, gpus, worker.max_nodes, worker.billing)


def _proven(units: UnitCosts) -> frozenset[tuple[str, str]]:
    """Platforms and presets on which every recipe of the stack's GPU jobs has passed."""
    wanted = {job.recipe for job in units.spec.jobs if job.gpus_per_node}
    passed: dict[tuple[str, str], set[str]] = {}
    for record in units.records:
        hardware = record.hardware
        if record.outcome is Outcome.PASS and hardware and hardware.platform and hardware.preset:
            passed.setdefault((hardware.platform, hardware.preset), set()).add(record.recipe)
    return frozenset(place for place, recipes in passed.items() if wanted and wanted <= recipes)


def _rank(alternative: Alternative) -> tuple[int, int, Decimal, Decimal, int]:
    total = alternative.estimate.total
    return (
        len(alternative.broken),
        len(alternative.untold),
        total.high_usd,
        total.low_usd,
        len(alternative.candidate.changes),
    )


NOT_KNOWN: Final = "NOT KNOWN"
_NOTHING: Final = (
    "No other preset, count, billing or region of one nodeset is cheaper and valid. GPUs with less "
    "memory are proposed once a run record of every GPU job shows that it fits."
)


def alternatives_report(units: UnitCosts, found: Sequence[Alternative]) -> Report:
    """A row for each alternative, best first, and under it the keys that it changes."""
    before = units.estimate
    table = Table(
        title=f"Instead of {units.spec.name} at {usd_text(before.total.high_usd)} a month "
        "(at max_nodes; USD without tax)",
        headings=("Change", "Monthly", "Difference", "Run", "Limits"),
        rows=tuple(_row(index, item, before) for index, item in enumerate(found, 1)),
        bad_rows=frozenset(index for index, item in enumerate(found) if item.broken),
    )
    return Report(
        tables=(table,) if found else (),
        notes=tuple(_notes(units, found)),
        data=lambda: {
            "schema_version": 1,
            "stack": units.spec.name,
            "alternatives": [_plain(item, before) for item in found],
        },
        title=f"Instead of {units.spec.name}",
    )


def summary_text(alternative: Alternative, before: Estimate) -> str:
    """The keys to change and what it comes to, in one line."""
    changes = ", ".join(str(change) for change in alternative.candidate.changes)
    usd = alternative.estimate.total.high_usd
    return f"{changes} ({usd_text(usd)} a month, {signed_usd(usd - before.total.high_usd)})"


def _row(index: int, item: Alternative, before: Estimate) -> tuple[str, ...]:
    usd, run = item.estimate.total.high_usd, "-"
    if item.runs:
        first = item.runs[0]
        is_known = isinstance(first, Forecast)
        run = f"{first.hours:.2f} h, {usd_text(first.nodes_usd)}" if is_known else NOT_KNOWN
    limits_text = "not known" if item.untold else "kept"
    limits_text = f"{len(item.broken)} broken" if item.broken else limits_text
    return (
        f"{index}: {_short(item)}",
        usd_text(usd),
        signed_usd(usd - before.total.high_usd),
        run,
        limits_text if item.limits else "none set",
    )


def _short(item: Alternative) -> str:
    """What is new first, so that a narrow column cuts what stays the same."""
    worker, spec = item.candidate.worker, item.candidate.spec
    if worker is None:
        return ", ".join(f"{change.key} {change.after}" for change in item.candidate.changes)
    changed = {change.key.rpartition(".")[2] for change in item.candidate.changes}
    count = span(str(worker.min_nodes), str(worker.max_nodes))
    parts = [
        spec.nebius.region if "region" in changed else "",
        worker.billing if "billing" in changed else "",
        f"{worker.name} {count} x {worker.preset}",
        worker.platform if "platform" in changed else "",
    ]
    return ", ".join(part for part in parts if part)


def _notes(units: UnitCosts, found: Sequence[Alternative]) -> list[str]:
    if not found:
        return [_NOTHING]
    told = {limit.key for limit in limits(units) if limit.is_kept is not None}
    notes: list[str] = []
    for index, item in enumerate(found, 1):
        changes = "; ".join(str(change) for change in item.candidate.changes)
        notes.append(f"{index}: {changes}.")
        notes += [f"{index}: {note}." for note in item.candidate.notes]
        for limit in (*item.broken, *item.untold):
            if limit.key in told:
                state = "not kept" if limit.is_kept is False else "cannot be told"
                got = f"{limit.got} ({limit.why})" if limit.why else limit.got
                notes.append(f"{index}: {limit.key} {state}: {got}, allowed is {limit.allowed}.")
    unknown = {run.job: run for item in found for run in item.runs if isinstance(run, UnknownRun)}
    notes += [
        f"Run {job}: {run} (where the table says {NOT_KNOWN})." for job, run in unknown.items()
    ]
    book = units.estimate.book.name
    notes.append(f"Prices: book {book}. Proposed is only what `pulumi preview` would not refuse.")
    return notes


def _plain(item: Alternative, before: Estimate) -> dict[str, object]:
    total = item.estimate.total
    return {
        "changes": [asdict(change) for change in item.candidate.changes],
        **picked(total, "monthly_low_usd=low_usd monthly_high_usd=high_usd", money),
        "difference_usd": money(total.high_usd - before.total.high_usd),
        "runs": [_plain_run(run) for run in item.runs],
        "broken": [limit.key for limit in item.broken],
        "untold": [limit.key for limit in item.untold],
        "notes": item.candidate.notes,
    }


def _plain_run(run: Forecast | UnknownRun) -> dict[str, object]:
    if isinstance(run, UnknownRun):
        return {"job": run.job, "hours": None, "usd": None, "reason": str(run)}
    hours = f"{run.hours:.4f}"
    return {"job": run.job, "hours": hours, "usd": money(run.nodes_usd), "reason": None}
