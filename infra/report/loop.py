"""The loop closed: quality gained, speed, cost per chat before and after, and break-even.

All from run records; a part that did not run says NOT RUN and how to run it. Owns what is compared
and the plain values; dollars are cost/finetune.py's, statistics the evaluation's, words
loop_table.py's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

from cost.api_prices import ApiPriceBook
from cost.break_even import api_costs
from cost.chat import ChatCost
from cost.chat_report import plain_chat, plain_operating
from cost.chat_table import NO_POINT
from cost.finetune import BASE, Finetune, Payback, asked_tuned, finetune
from cost.run_record import RunRecord
from cost.speeds import why_it_prices_nothing
from cost.unit_costs import NotKnown, RunCost, submit_command
from infra.report.collect import Report
from infra.report.quality import evaluation_rows, verdict

SCHEMA_VERSION: Final = 1
NOT_RUN: Final = "NOT RUN"
SPEEDS: Final = (
    ("prefill_tokens_per_s", "Reads, one prompt"),
    ("output_tokens_per_s", "Writes, one stream"),
    ("batch_prefill_tokens_per_s", "Reads, batch"),
    ("batch_output_tokens_per_s", "Writes, batch"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """What one finetune brought, as far as it was measured."""

    report: Report
    quality: tuple[Mapping[str, Any], ...]
    """Rows of quality.py."""
    load: RunRecord | None
    """The newest load test of the tuned model that passed; of any model where there is none."""
    finetune: Finetune
    missing: tuple[str, ...]
    """A line for each part that did not run."""


def close_loop(report: Report) -> Loop:
    """The loop of the report's stack."""
    spec, bill = report.spec, report.bill
    apis, _ = api_costs(spec.chat, ApiPriceBook.load())
    found = finetune(spec, bill.estimate, bill.unit_costs, report.records, apis)
    loads = report.lineage.loads
    rows = evaluation_rows(report.evaluation)
    loop = Loop(
        report=report,
        quality=tuple(row for row in rows if "per_s" not in row["key"]),
        load=([each for each in loads if asked_tuned(each)] or [*loads] or [None])[-1],
        finetune=found,
        missing=(),
    )
    return replace(loop, missing=tuple(_missing(loop)))


def plain_loop(loop: Loop) -> dict[str, object]:
    """The loop as JSON values: money as text, None where nothing was measured."""
    report, found = loop.report, loop.finetune
    return {
        "schema_version": SCHEMA_VERSION,
        "stack": report.spec.name,
        "heading": report.bill.estimate.heading,
        "quality": [
            {
                "metric": row["key"],
                "base": row["before"],
                "tuned": row["after"],
                "unit": row["unit"],
                "low": row["low"],
                "high": row["high"],
                "p_value": row["p_value"],
                "verdict": verdict(row),
            }
            for row in loop.quality
        ]
        or None,
        "lineage": {
            "data": _job_id(report.lineage.data),
            "training": _job_id(report.training),
            "evaluation": _job_id(report.evaluation_run),
            "load": _job_id(loop.load),
            "tuned_dir": report.lineage.tuned_dir,
        },
        "speed": _plain_speed(report.evaluation_run),
        "operating_point": None if found.served is None else plain_operating(found.served),
        "chats": [{"state": state, **plain_chat(row)} for state, row in states(loop)],
        "length_ratio": None if found.length_ratio is None else f"{found.length_ratio:.6f}",
        "training": _plain_run(found.training),
        "evaluation": _plain_run(found.evaluation),
        "investment_usd": _usd(found.investment_usd),
        "break_even": [_plain_payback(each) for each in found.paybacks],
        "missing": list(loop.missing),
    }


def _missing(loop: Loop) -> Iterator[str]:
    report, found, stack = loop.report, loop.finetune, loop.report.spec.name
    if isinstance(found.training, NotKnown):
        yield f"Training: {NOT_RUN}: {found.training.reason}; run: {found.training.command}"
    if not loop.quality:
        command = submit_command(report.spec, "workloads.evaluate")
        yield (
            f"Quality and speed: {NOT_RUN}: no evaluation of this stack has passed; run: "
            f"{command}, then soperator pull"
        )
    elif isinstance(found.evaluation, NotKnown):
        yield f"Cost before and after: {found.evaluation}"
    if loop.load is None:
        yield (
            f"Load: {NOT_RUN}: no load test of this stack has passed; run: soperator load --stack "
            f"{stack}, then soperator pull"
        )
    elif loop.load.curve is None:
        yield f"Load: job {loop.load.job_id} left no load.json beside its record; pull it again"
    elif (why := why_it_prices_nothing(report.spec, loop.load)) is not None:
        yield f"Load: job {loop.load.job_id} prices no chat: {why}"
    elif not asked_tuned(loop.load):
        asked = loop.load.curve.model
        yield (
            f"Served: {NOT_RUN}: job {loop.load.job_id} asked "
            f"{asked or 'a model that load.json does not name'}, not the tuned model; run: "
            f"soperator load --stack {stack} --set load.target.model=NAME, NAME one of the "
            "server's (by itself: the last that it lists)"
        )
    for each in report.bill.unit_costs.no_operating_points:
        yield f"{NO_POINT}: {each}"
    if not found.paybacks:
        yield f"Break-even of the finetune: {NOT_RUN}: it needs an evaluation or a load test"
    elif found.investment_usd is None:
        yield "Break-even of the finetune: NOT KNOWN: training or evaluation has no known price"


def states(loop: Loop) -> Iterator[tuple[str, ChatCost]]:
    """What a chat costs before and after, in the order in which it becomes known."""
    assumed, found = loop.report.assumed.chats, loop.finetune
    if not isinstance(assumed, NotKnown):
        yield "before, assumed", assumed[0]
    for state, row in (
        ("before, base model", found.base),
        ("after, its own length", found.tuned_own_length),
        ("after, served under load", found.served),
    ):
        if row is not None:
            yield state, row


def _plain_speed(run: RunRecord | None) -> dict[str, object] | None:
    if run is None:
        return None
    return {
        f"{prefix}{name}": float(run.metrics[f"{prefix}{name}"])
        for prefix in (BASE, "")
        for name, _ in SPEEDS
        if f"{prefix}{name}" in run.metrics
    }


def _plain_run(run: RunCost | NotKnown) -> dict[str, object] | None:
    if isinstance(run, NotKnown):
        return None
    return {
        "job": run.job,
        "job_id": run.job_id,
        "date": run.date.isoformat(),
        "duration_s": int(run.duration_s),
        "nodes_usd": _usd(run.nodes_usd),
    }


def _plain_payback(each: Payback) -> dict[str, object]:
    return {
        "against": each.against,
        "other_usd": _usd(each.other_usd),
        "ours_usd": _usd(each.ours_usd),
        "saving_usd": _usd(each.saving_usd),
        "chats": None if each.chats is None else f"{each.chats:.1f}",
        "days": None if each.days is None else f"{each.days:.3f}",
    }


def _job_id(run: RunRecord | None) -> str | None:
    return None if run is None else run.job_id


def _usd(usd: Decimal | None) -> str | None:
    return None if usd is None else f"{usd:.9f}"
