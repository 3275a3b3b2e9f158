"""What would do instead: alternatives(inputs) -> changed stacks with $ and hours, best first.

For a stack over its limits, over a quota or without capacity. Owns the ranking: first what keeps
every limit, then the cheapest, then the least changed. Nothing that stacks.check refuses and no
nodes without a price are proposed. What may be changed is candidates.py's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from cost.candidates import Candidate, candidates
from cost.estimate import Estimate, estimate
from cost.forecast import Forecast, UnknownRun, forecasts
from cost.limits import Limit, limits
from cost.part import Inputs
from cost.price_book import PriceBook
from cost.price_layers import layered
from cost.run_rates import run_rates
from cost.run_record import Outcome
from cost.unit_costs import unit_costs
from stacks.catalog import PLATFORMS
from stacks.check import Level, check
from stacks.decode import nearest
from stacks.errors import UserError
from stacks.spec import StackSpec


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
