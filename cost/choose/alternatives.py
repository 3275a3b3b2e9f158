"""What would do instead: alternatives(inputs) -> changed stacks with $ and hours, best first.

For a stack over its limits, over a quota or without capacity. First comes what keeps every limit,
then the cheapest, then the least changed. Nothing that stacks.check refuses and no nodes without a
price are proposed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

from cost.chat.unit_costs import Inputs, Part, unit_costs
from cost.choose.candidates import Candidate, candidates
from cost.choose.limits import Limit, limits
from cost.prices.book import PriceBook, layered
from cost.report.layout import Table, money, signed_usd, usd_text
from cost.resources.estimate import Estimate, estimate, run_rates
from cost.run_record import Outcome
from cost.runs.forecast import Forecast, UnknownRun, forecasts
from stacks.catalog import PLATFORMS
from stacks.check import check
from stacks.errors import Level, UserError, nearest
from stacks.spec import StackSpec
from stacks.spec.nodes import WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Hardware that cannot be had now; None stands for every preset or region."""

    platform: str
    preset: str | None = None
    region: str | None = None

    def holds(self, spec: StackSpec) -> bool:
        """Whether a node group of the stack needs it."""
        nodes = spec.nodes
        groups = (nodes.system, nodes.controller, nodes.login, nodes.accounting, *nodes.workers)
        return self.region in (None, spec.nebius.region) and any(
            group.platform == self.platform and self.preset in (None, group.preset)
            for group in groups
            if group is not None
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
    inputs: Inputs, shortages: Sequence[Shortage] = (), limit: int | None = None
) -> tuple[Alternative, ...]:
    """At most `limit` changed stacks, best first; empty when nothing else is known to do."""
    found: list[Alternative] = []
    for candidate in _affordable(inputs, shortages):
        if _refused(candidate.spec):
            continue
        found.append(_alternative(inputs, candidate))
    found.sort(key=_rank)
    return tuple(found[:limit])


def cheapest_within_limits(inputs: Inputs) -> Alternative | None:
    """The cheapest changed stack that keeps every limit; None when there is none.

    A limit that cannot be told for the declared stack need not be told for the changed one.
    """
    untold = {limit.key for limit in limits(inputs) if limit.is_kept is None}
    for candidate in _affordable(inputs, ()):
        if _refused(candidate.spec):
            continue
        alternative = _alternative(inputs, candidate)
        if not alternative.broken and {limit.key for limit in alternative.untold} <= untold:
            return alternative
    return None


def _affordable(inputs: Inputs, shortages: Sequence[Shortage]) -> Iterator[Candidate]:
    """Candidates with a price and with capacity, cheapest first, one for each kind of change.

    A dearer one is of use only where the declared stack cannot be had.
    """
    is_out_of_reach = _refused(inputs.spec) or any(item.holds(inputs.spec) for item in shortages)
    priced: list[tuple[Decimal, int, int, Candidate]] = []
    for index, candidate in enumerate(candidates(inputs.spec, proven=_proven(inputs))):
        if any(shortage.holds(candidate.spec) for shortage in shortages):
            continue
        total = estimate(candidate.spec, _book(inputs, candidate))
        usd = total.monthly_high_usd
        is_cheaper = usd < inputs.estimate.monthly_high_usd
        if any(line.nodeset for line in total.unpriced) or not (is_cheaper or is_out_of_reach):
            continue
        priced.append((usd, len(candidate.changes), index, candidate))
    seen: set[tuple[object, ...]] = set()
    for *_, candidate in sorted(priced, key=lambda item: item[:3]):
        kind = _kind(candidate)
        if kind not in seen:
            seen.add(kind)
            yield candidate


def _book(inputs: Inputs, candidate: Candidate) -> PriceBook:
    """The prices of the candidate's region."""
    if candidate.spec.nebius.region == inputs.spec.nebius.region:
        return inputs.book
    return layered(candidate.spec, book=inputs.book)


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


def _proven(inputs: Inputs) -> frozenset[tuple[str, str]]:
    """Platforms and presets on which every recipe of the stack's GPU jobs has passed."""
    wanted = {job.recipe for job in inputs.spec.jobs if job.gpus_per_node}
    passed: dict[tuple[str, str], set[str]] = {}
    for record in inputs.records:
        hardware = record.hardware
        if record.outcome is Outcome.PASS and hardware and hardware.platform and hardware.preset:
            passed.setdefault((hardware.platform, hardware.preset), set()).add(record.recipe)
    return frozenset(place for place, recipes in passed.items() if wanted and wanted <= recipes)


def _alternative(inputs: Inputs, candidate: Candidate) -> Alternative:
    book = _book(inputs, candidate)
    total = estimate(candidate.spec, book)
    changed = replace(
        inputs,
        spec=candidate.spec,
        book=book,
        estimate=total,
        unit_costs=unit_costs(candidate.spec, total, inputs.records),
    )
    return Alternative(
        candidate=candidate,
        estimate=total,
        runs=forecasts(run_rates(candidate.spec, total, book), inputs.records),
        limits=limits(changed),
    )


def _rank(alternative: Alternative) -> tuple[int, int, Decimal, Decimal, int]:
    total = alternative.estimate
    return (
        len(alternative.broken),
        len(alternative.untold),
        total.monthly_high_usd,
        total.monthly_low_usd,
        len(alternative.candidate.changes),
    )


NOT_KNOWN: Final = "NOT KNOWN"
_NOTHING: Final = (
    "No other preset, count, billing or region of one nodeset is cheaper and valid. GPUs with less "
    "memory are proposed once a run record of every GPU job shows that it fits."
)


def alternatives_part(inputs: Inputs, found: Sequence[Alternative]) -> Part:
    """A row for each alternative, best first, and under it the keys that it changes."""
    before = inputs.estimate
    table = Table(
        title=f"Instead of {inputs.spec.name} at {usd_text(before.monthly_high_usd)} a month "
        "(at max_nodes; USD without tax)",
        headings=("Change", "Monthly", "Difference", "Run", "Limits"),
        rows=tuple(_row(index, item, before) for index, item in enumerate(found, 1)),
        bad_rows=frozenset(index for index, item in enumerate(found) if item.broken),
    )
    return Part(
        name="alternatives",
        tables=(table,) if found else (),
        notes=tuple(_notes(inputs, found)),
        plain={"alternatives": [_plain(item, before) for item in found]},
    )


def summary_text(alternative: Alternative, before: Estimate) -> str:
    """The keys to change and what it comes to, in one line."""
    changes = ", ".join(str(change) for change in alternative.candidate.changes)
    usd = alternative.estimate.monthly_high_usd
    return f"{changes} ({usd_text(usd)} a month, {signed_usd(usd - before.monthly_high_usd)})"


def _row(index: int, item: Alternative, before: Estimate) -> tuple[str, ...]:
    usd = item.estimate.monthly_high_usd
    return (
        f"{index}: {_short(item)}",
        usd_text(usd),
        signed_usd(usd - before.monthly_high_usd),
        _run_text(item.runs[0]) if item.runs else "-",
        _limits_text(item),
    )


def _short(item: Alternative) -> str:
    """What is new first, so that a narrow column cuts what stays the same."""
    worker, spec = item.candidate.worker, item.candidate.spec
    if worker is None:
        return ", ".join(f"{change.key} {change.after}" for change in item.candidate.changes)
    changed = {change.key.rpartition(".")[2] for change in item.candidate.changes}
    parts = [
        spec.nebius.region if "region" in changed else "",
        worker.billing if "billing" in changed else "",
        f"{worker.name} {_count(worker)} x {worker.preset}",
        worker.platform if "platform" in changed else "",
    ]
    return ", ".join(part for part in parts if part)


def _limits_text(item: Alternative) -> str:
    if item.broken:
        return f"{len(item.broken)} broken"
    return "not known" if item.untold else "kept" if item.limits else "none set"


def _count(worker: WorkerSpec) -> str:
    low, high = worker.min_nodes, worker.max_nodes
    return str(high) if low == high else f"{low}..{high}"


def _notes(inputs: Inputs, found: Sequence[Alternative]) -> list[str]:
    if not found:
        return [_NOTHING]
    told = {limit.key for limit in limits(inputs) if limit.is_kept is not None}
    notes: list[str] = []
    for index, item in enumerate(found, 1):
        changes = "; ".join(str(change) for change in item.candidate.changes)
        notes.append(f"{index}: {changes}.")
        notes += [f"{index}: {note}." for note in item.candidate.notes]
        notes += [
            f"{index}: {_limit_text(limit)}."
            for limit in (*item.broken, *item.untold)
            if limit.key in told
        ]
    unknown = {run.job: run for item in found for run in item.runs if isinstance(run, UnknownRun)}
    notes += [
        f"Run {job}: {run} (where the table says {NOT_KNOWN})." for job, run in unknown.items()
    ]
    book = inputs.book.name
    notes.append(f"Prices: book {book}. Proposed is only what `pulumi preview` would not refuse.")
    return notes


def _limit_text(limit: Limit) -> str:
    state = "not kept" if limit.is_kept is False else "cannot be told"
    why = f" ({limit.why})" if limit.why else ""
    return f"{limit.key} {state}: {limit.got}{why}, allowed is {limit.allowed}"


def _run_text(run: Forecast | UnknownRun) -> str:
    if isinstance(run, UnknownRun):
        return NOT_KNOWN
    usd = usd_text(run.nodes_usd)
    return f"{run.hours:.2f} h, {usd}"


def _plain(item: Alternative, before: Estimate) -> dict[str, object]:
    total = item.estimate
    return {
        "changes": [
            {"key": change.key, "before": change.before, "after": change.after}
            for change in item.candidate.changes
        ],
        "monthly_low_usd": money(total.monthly_low_usd),
        "monthly_high_usd": money(total.monthly_high_usd),
        "difference_usd": money(total.monthly_high_usd - before.monthly_high_usd),
        "runs": [_plain_run(run) for run in item.runs],
        "broken": [limit.key for limit in item.broken],
        "untold": [limit.key for limit in item.untold],
        "notes": list(item.candidate.notes),
    }


def _plain_run(run: Forecast | UnknownRun) -> dict[str, object]:
    if isinstance(run, UnknownRun):
        return {"job": run.job, "hours": None, "usd": None, "reason": str(run)}
    usd = money(run.nodes_usd)
    return {"job": run.job, "hours": f"{run.hours:.4f}", "usd": usd, "reason": None}
