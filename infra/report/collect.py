"""Gathers what the report shows: the declared stack, its bill and what its jobs measured.

Owns reading `<state>/runs/<stack>/`. A file there that cannot be read is named on the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from cost.bill import Bill
from cost.bill import bill as make_bill
from cost.lineage import Lineage, lineage
from cost.run_record import RunRecord, load_run_records
from cost.unit_costs import UnitCosts, unit_costs
from infra.jobs.records import losses, read_object
from infra.prices.book import price_book
from infra.report.training import GpuUse, gpu_use
from stacks.spec import StackSpec

_MODELS = ("base_model", "finetuned_model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything on the page; no text is markup yet."""

    spec: StackSpec
    bill: Bill
    """With what was measured; of a stack with errors, without its parts."""
    assumed: UnitCosts
    """Unit costs without any measurement."""
    records: tuple[RunRecord, ...]
    """Oldest first."""
    lineage: Lineage
    """The runs that the figures are of; the others are listed apart."""
    details: Mapping[str, Mapping[str, Any]]
    """Raw record by path of its file: versions, code hash, reason."""
    training: RunRecord | None
    """Of the lineage, as the evaluation is."""
    losses: tuple[tuple[int, float], ...]
    """(step, loss) of `training`, steps from 1."""
    gpus: GpuUse | None
    """What the GPUs of `training` did; None without it."""
    evaluation_run: RunRecord | None
    evaluation: Mapping[str, Any] | None
    """Its result in the shape of seed 000: base_model, finetuned_model, comparison."""
    problems: tuple[str, ...]


def collect(spec: StackSpec, state: Path) -> Report:
    """The report's content for one stack."""
    records, problems = load_run_records(state / "runs" / spec.name)
    records = tuple(sorted(records, key=lambda each: (each.finished_at, each.job_id)))
    bill = make_bill(spec, price_book(spec, state), records)
    line = lineage(spec.name, records)
    training, evaluation_run = line.training, line.evaluation
    return Report(
        spec=spec,
        bill=bill,
        assumed=unit_costs(spec, bill.estimate, ()),
        records=records,
        lineage=line,
        details={each.path: read_object(Path(each.path)) for each in records},
        training=training,
        losses=losses(Path(training.path).parent) if training else (),
        gpus=gpu_use(Path(training.path).parent) if training else None,
        evaluation_run=evaluation_run,
        evaluation=evaluation_of(Path(evaluation_run.path).parent) if evaluation_run else None,
        problems=problems,
    )


def total_seconds(records: tuple[RunRecord, ...]) -> Decimal:
    """Seconds that the jobs ran, summed."""
    return sum((each.duration_s for each in records), Decimal(0))


def last_finished(report: Report) -> datetime | None:
    """When the newest record ended; None without records."""
    return max((each.finished_at for each in report.records), default=None)


def evaluation_of(folder: Path) -> Mapping[str, Any] | None:
    """The result file of an evaluation, known by its shape."""
    for path in sorted(folder.glob("*.json")):
        value = read_object(path)
        if all(isinstance(value.get(name), Mapping) for name in _MODELS):
            return value
    return None
