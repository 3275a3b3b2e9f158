"""A load on one server and what it holds there: measured by a load test, or estimated.

Owns which measured curve counts for a question, and which of its loads is the best that keeps the
promise. The estimate is advise_estimate.py's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from typing import Final

from cost.advise_ask import Ask
from cost.load_curve import LoadPoint
from cost.rounding import short
from cost.run_record import Kind, Outcome, RunRecord
from cost.size.catalog import base_name

LENGTH_TOLERANCE: Final = Decimal("0.1")
"""Requests of a curve may be this much longer or shorter than those asked for."""
_OK_SHARE: Final = Decimal("0.99")
"""Of all requests, those that must be answered for a 99th percentile to mean anything."""


class Basis(StrEnum):
    """Where a load's figures come from."""

    MEASURED = "measured"
    ESTIMATE = "estimate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """So many streams on one server."""

    streams: int
    answers_per_s: Decimal
    output_tokens_per_s: Decimal
    ttft_p99_s: Decimal | None
    tpot_p99_ms: Decimal | None

    @property
    def answer_s(self) -> Decimal:
        """Seconds of one answer with all streams busy: Little's law."""
        return self.streams / self.answers_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The curve of one load test on a node of a preset."""

    platform: str
    preset: str
    engine: str
    job_id: str
    stack: str | None
    date: date
    points: tuple[LoadPoint, ...]
    input_tokens: Decimal
    answer_tokens: Decimal

    @property
    def source(self) -> str:
        """The job that measured it."""
        return f"job {self.job_id} of stack {self.stack or '?'}, {self.engine}, {self.date}"

    def why_aside(self, ask: Ask) -> str | None:
        """Why the curve says nothing about the question's chats; None where it does."""
        pairs = ((self.input_tokens, ask.input_tokens), (self.answer_tokens, ask.answer_tokens))
        if all(abs(got - wanted) <= wanted * LENGTH_TOLERANCE for got, wanted in pairs):
            return None
        return (
            f"{self.platform}/{self.preset}: the curve of {self.source} is of "
            f"{short(self.input_tokens)} + {short(self.answer_tokens)} tokens a request, asked are "
            f"{ask.input_tokens:,} + {short(ask.answer_tokens)}"
        )

    @property
    def loads(self) -> tuple[Load, ...]:
        """Its loads that were answered, by streams."""
        return tuple(
            Load(
                streams=each.concurrency,
                answers_per_s=each.requests_per_s,
                output_tokens_per_s=each.output_tokens_per_s,
                ttft_p99_s=None if each.p99_ttft_ms is None else each.p99_ttft_ms / 1000,
                tpot_p99_ms=each.p99_tpot_ms,
            )
            for each in self.points
            if each.concurrency is not None
            and each.requests_per_s > 0
            and each.num_ok >= each.num_requests * _OK_SHARE
        )


def measured_curves(model: str, records: Iterable[RunRecord]) -> tuple[Measured, ...]:
    """The newest curve of the model by platform, preset and engine; tuned ones are their base."""
    newest: dict[tuple[str, str, str], Measured] = {}
    for record in sorted(records, key=lambda each: (each.finished_at, each.job_id)):
        found = _measured(model, record)
        if found is not None:
            newest[found.platform, found.preset, found.engine] = found
    return tuple(newest.values())


def best_load(ask: Ask, loads: Sequence[Load]) -> Load | None:
    """The load with the most answers a second that keeps the promise; None: none does."""
    kept = [each for each in loads if not ask.promise.broken(each.ttft_p99_s, each.tpot_p99_ms)]
    return max(kept, key=lambda each: (each.answers_per_s, -each.streams), default=None)


def _measured(model: str, record: RunRecord) -> Measured | None:
    hardware, curve = record.hardware, record.curve
    if (
        record.kind != Kind.LOAD
        or record.outcome is not Outcome.PASS
        or record.model is None
        or record.engine is None
        or curve is None
        or hardware is None
        or hardware.platform is None
        or hardware.preset is None
        or base_name(record.model).lower() != base_name(model).lower()
    ):
        return None
    answered = [each for each in curve.sweep if each.num_ok and each.mean_prompt_tokens]
    if not answered:
        return None
    first = answered[0]
    assert first.mean_prompt_tokens is not None
    return Measured(
        platform=hardware.platform,
        preset=hardware.preset,
        engine=record.engine,
        job_id=record.job_id,
        stack=record.stack,
        date=record.finished_at.date(),
        points=curve.sweep,
        input_tokens=first.mean_prompt_tokens,
        answer_tokens=first.mean_output_tokens,
    )
