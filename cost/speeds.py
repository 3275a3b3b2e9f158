"""Generation speeds of a stack's chat: speeds(spec, records), assumed or measured.

An assumption names its source; a run record replaces it where it measured the same preset, model,
engine and batch size. Owns which record counts. Does not own money (chat.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from typing import Final

from cost.run_record import Kind, Outcome, RunRecord
from stacks.cost_spec import AssumedSpeedSpec
from stacks.node_spec import WorkerSpec
from stacks.spec import StackSpec

_OUTPUT: Final = "output_tokens_per_s"
_PREFILL: Final = "prefill_tokens_per_s"
_BATCH_OUTPUT: Final = "batch_output_tokens_per_s"
_BATCH_PREFILL: Final = "batch_prefill_tokens_per_s"
_BATCH_SIZE: Final = "batch_size"
_MEASURES: Final = (Kind.EVALUATE, Kind.LOAD)
"""Jobs whose records hold speeds: of generation alone, and of a server under load."""


class Basis(StrEnum):
    """Where a speed comes from."""

    ASSUMED = "assumed"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast one serving node writes and reads, all its streams together."""

    scenario: str
    output_tokens_per_s: Decimal
    basis: Basis
    source: str
    date: date | None
    """Day of the measurement; None for an assumption."""
    batch_size: int = 1
    """Conversations generated at once."""
    prefill_tokens_per_s: Decimal | None = None
    """Prompt tokens read a second; None: reading the prompt is not counted."""
    prefill_basis: Basis | None = None
    """Where the prefill speed comes from; None without one."""

    @property
    def stream_tokens_per_s(self) -> Decimal:
        """Output tokens a second that one conversation sees."""
        return self.output_tokens_per_s / self.batch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """One measurement of a run record."""

    record: RunRecord
    output_tokens_per_s: Decimal
    prefill_tokens_per_s: Decimal | None


def speeds(spec: StackSpec, records: Sequence[RunRecord]) -> tuple[Speed, ...]:
    """Declared rows in their order, replaced where measured; then what else was measured."""
    measured = _newest(spec, records)
    found: list[Speed] = []
    for row in spec.chat.speeds:
        of_row = None if row.engine is None else measured.pop((row.engine, row.batch_size), None)
        found.append(_assumed(row) if of_row is None else _replaced(row, of_row))
    for (engine, batch_size), measurement in measured.items():
        found.append(_speed(f"{engine}, batch {batch_size}", batch_size, measurement))
    return tuple(found)


def serving_workers(spec: StackSpec) -> tuple[WorkerSpec, ...]:
    """The nodeset that serves chats, or every nodeset when none is named."""
    serving = spec.chat.serving_nodeset
    return tuple(
        worker for worker in spec.nodes.workers if serving is None or worker.name == serving
    )


def _newest(spec: StackSpec, records: Sequence[RunRecord]) -> dict[tuple[str, int], _Measured]:
    """Newest measurement by engine and batch size, of records that count for this stack."""
    newest: dict[tuple[str, int], _Measured] = {}
    for record in sorted(records, key=lambda item: (item.finished_at, item.job_id)):
        if record.engine is None or not _counts(spec, record):
            continue
        metrics = record.metrics
        single, batched = _positive(metrics, _OUTPUT), _positive(metrics, _BATCH_OUTPUT)
        prefill, batch_size = _positive(metrics, _PREFILL), _positive(metrics, _BATCH_SIZE)
        if single is not None:
            newest[record.engine, 1] = _Measured(
                record=record, output_tokens_per_s=single, prefill_tokens_per_s=prefill
            )
        if batched is not None and batch_size is not None and batch_size > 1:
            # Reading is bound by arithmetic, which one prompt fills: its speed stands in for a
            # batch's where the record has no other.
            newest[record.engine, int(batch_size)] = _Measured(
                record=record,
                output_tokens_per_s=batched,
                prefill_tokens_per_s=_positive(metrics, _BATCH_PREFILL) or prefill,
            )
    return newest


def _counts(spec: StackSpec, record: RunRecord) -> bool:
    """Whether the record measures this stack's chat: same model on the same preset."""
    hardware = record.hardware
    return (
        record.outcome is Outcome.PASS
        and record.kind in _MEASURES
        and hardware is not None
        and record.model is not None
        and _model_name(record.model) == _model_name(spec.chat.model)
        and any(
            (worker.platform, worker.preset) == (hardware.platform, hardware.preset)
            for worker in serving_workers(spec)
        )
    )


def _positive(metrics: Mapping[str, Decimal], name: str) -> Decimal | None:
    value = metrics.get(name)
    return value if value is not None and value > 0 else None


def _assumed(row: AssumedSpeedSpec) -> Speed:
    return Speed(
        scenario=row.scenario,
        output_tokens_per_s=row.output_tokens_per_s,
        basis=Basis.ASSUMED,
        source=row.source,
        date=None,
        batch_size=row.batch_size,
        prefill_tokens_per_s=row.prefill_tokens_per_s,
        prefill_basis=None if row.prefill_tokens_per_s is None else Basis.ASSUMED,
    )


def _replaced(row: AssumedSpeedSpec, measured: _Measured) -> Speed:
    """The measurement under the row's name; it keeps a declared prefill that was not measured."""
    return _speed(row.scenario, row.batch_size, measured, row.prefill_tokens_per_s)


def _speed(
    scenario: str, batch_size: int, measured: _Measured, assumed_prefill: Decimal | None = None
) -> Speed:
    record, prefill = measured.record, measured.prefill_tokens_per_s
    device = "unknown device" if record.hardware is None else record.hardware.device
    basis = Basis.ASSUMED if assumed_prefill is not None else None
    return Speed(
        scenario=scenario,
        output_tokens_per_s=measured.output_tokens_per_s,
        basis=Basis.MEASURED,
        source=f"job {record.job_id} of stack {record.stack or '?'} on {device}",
        date=record.finished_at.date(),
        batch_size=batch_size,
        prefill_tokens_per_s=assumed_prefill if prefill is None else prefill,
        prefill_basis=basis if prefill is None else Basis.MEASURED,
    )


def _model_name(model: str) -> str:
    """`Qwen/Qwen3-14B` and `Qwen3-14B` are one model."""
    return model.rsplit("/", 1)[-1].lower()
