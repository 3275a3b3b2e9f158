"""Lays alternatives out: alternatives_part(...) -> table, the keys to change, plain values.

Owns their words. Computes nothing but differences and roundings.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Final

from cost.alternatives import Alternative
from cost.estimate import Estimate
from cost.forecast import Forecast, UnknownRun
from cost.layout import UNKNOWN, Table, usd_text
from cost.limits import Limit, limits
from cost.part import Inputs, Part
from cost.summary import money
from stacks.node_spec import WorkerSpec

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
        num_text_columns=1,
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
    return f"{changes} ({usd_text(usd)} a month, {_signed(usd - before.monthly_high_usd)})"


def _row(index: int, item: Alternative, before: Estimate) -> tuple[str, ...]:
    usd = item.estimate.monthly_high_usd
    return (
        f"{index}: {_short(item)}",
        usd_text(usd),
        _signed(usd - before.monthly_high_usd),
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
    usd = UNKNOWN if run.nodes_usd is None else usd_text(run.nodes_usd)
    return f"{run.hours:.2f} h, {usd}"


def _signed(usd: Decimal) -> str:
    return f"{'-' if usd < 0 else '+'}{usd_text(abs(usd))}"


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
    usd = None if run.nodes_usd is None else money(run.nodes_usd)
    return {"job": run.job, "hours": f"{run.hours:.4f}", "usd": usd, "reason": None}
