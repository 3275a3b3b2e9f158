"""Lays the closed loop out: loop_text(loop, format), and loop_html(loop) for the page.

Owns the words. What is compared with what is loop.py's; nothing is computed here but roundings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import ROUND_CEILING
from typing import Any

from cost.chat import ChatCost
from cost.chat_table import answer_text
from cost.finetune import BASE, Finetune, Payback
from cost.layout import UNKNOWN, Document, Format, Table, lay_out, small_usd_text
from cost.load_chart import load_charts, load_table
from cost.run_record import RunRecord
from cost.unit_costs import RunCost
from infra.report.loop import SPEEDS, Loop, states
from infra.report.quality import SIGNIFICANT_P, verdict
from infra.report.words import duration, figure, number, p_text, signed, span_of_days


def loop_text(loop: Loop, format: Format) -> str:
    """The loop as text or markdown, ending in a newline."""
    heading = loop.report.bill.estimate.heading
    tables = (*_quality_tables(loop), *_tables(loop))
    return lay_out(Document(heading=heading, tables=tables, notes=tuple(_notes(loop))), format)


def loop_html(loop: Loop) -> str:
    """The loop as a fragment of the page; quality has its own section there."""
    found = Document(heading=None, tables=_tables(loop), notes=tuple(_notes(loop)))
    return lay_out(found, Format.HTML)


def loop_charts(loop: Loop) -> tuple[str, ...]:
    """The load test as inline SVG; none without one."""
    curve = None if loop.load is None else loop.load.curve
    return () if curve is None else load_charts(curve)


def _quality_tables(loop: Loop) -> tuple[Table, ...]:
    run = loop.report.evaluation_run
    if not loop.quality or run is None:
        return ()
    return (
        Table(
            title=f"Quality on the same held-out rows (job {run.job_id})",
            headings=(
                "Metric",
                "Verdict",
                "Base",
                "Tuned",
                "Change",
                "95 % of the difference",
                "p",
            ),
            rows=tuple(_quality_row(row) for row in loop.quality),
            num_text_columns=2,
            bad_rows=frozenset(
                index for index, row in enumerate(loop.quality) if verdict(row) == "worse"
            ),
        ),
    )


def _quality_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    unit, low, high, p_value = row["unit"], row["low"], row["high"], row["p_value"]
    return (
        row["name"],
        verdict(row),
        figure(row["before"], unit),
        figure(row["after"], unit),
        row["change"],
        "-" if low is None else f"{signed(low, unit)} to {signed(high, unit)}",
        "-" if p_value is None else p_text(p_value),
    )


def _tables(loop: Loop) -> tuple[Table, ...]:
    tables = [*_speed_tables(loop.report.evaluation_run)]
    known = list(states(loop))
    if known:
        tables.append(_cost_table(known))
    if loop.finetune.paybacks:
        tables.append(_payback_table(loop.finetune))
    if loop.load is not None and loop.load.curve is not None:
        title = f"Load test (job {loop.load.job_id}), SLO: {loop.load.curve.slo}"
        tables.append(load_table(loop.load.curve, title))
    return tuple(tables)


def _speed_tables(run: RunRecord | None) -> Iterator[Table]:
    if run is None:
        return
    rows = [
        (label, number(before), number(after))
        for name, label in SPEEDS
        if (before := run.metrics.get(f"{BASE}{name}")) and (after := run.metrics.get(name))
    ]
    if rows:
        size = run.metrics.get("batch_size")
        batch = "" if size is None else f", batch of {number(size)}"
        yield Table(
            title=f"Speed in tokens a second (job {run.job_id}{batch}), each measured once",
            headings=("Speed", "Base", "Tuned"),
            rows=tuple(rows),
            num_text_columns=1,
        )


def _has_speeds(run: RunRecord | None) -> bool:
    return any(True for _ in _speed_tables(run))


def _cost_table(states: list[tuple[str, ChatCost]]) -> Table:
    return Table(
        title="Cost per chat before and after",
        headings=("State", "Where from", "Writes/s", "Reads/s", "Cluster", "Serving", "Answer"),
        rows=tuple(
            (
                state,
                row.speed.scenario,
                number(row.speed.output_tokens_per_s),
                UNKNOWN
                if row.speed.prefill_tokens_per_s is None
                else number(row.speed.prefill_tokens_per_s),
                small_usd_text(row.cluster_low_usd),
                UNKNOWN if row.serving_usd is None else small_usd_text(row.serving_usd),
                answer_text(row),
            )
            for state, row in states
        ),
        num_text_columns=2,
        bad_rows=frozenset(
            index for index, (_, row) in enumerate(states) if row.meets_slo is False
        ),
    )


def _payback_table(found: Finetune) -> Table:
    usd = found.investment_usd
    cost = "of unknown cost" if usd is None else f"of {small_usd_text(usd)}"
    return Table(
        title=f"Break-even of the finetune {cost} (own nodes of training and evaluation)",
        headings=("Against", "USD There", "USD Here", "Saving", "Chats", "After"),
        rows=tuple(_payback_row(each) for each in found.paybacks),
        num_text_columns=1,
    )


def _payback_row(each: Payback) -> tuple[str, ...]:
    never = UNKNOWN if each.saving_usd > 0 else "never"
    saving = each.saving_usd
    return (
        each.against,
        small_usd_text(each.other_usd),
        small_usd_text(each.ours_usd),
        f"{'-' if saving < 0 else ''}{small_usd_text(abs(saving))}",
        never if each.chats is None else f"{each.chats.to_integral_value(ROUND_CEILING):,}",
        never if each.days is None else span_of_days(each.days),
    )


def _notes(loop: Loop) -> Iterator[str]:
    yield from (f"{each}." for each in loop.missing)
    found = loop.finetune
    if loop.quality:
        yield (
            "Intervals and p are the evaluation's paired resampling of the same rows; not told "
            f"apart: p of {SIGNIFICANT_P} or more. Name the metric that decides before you look."
        )
    for what, run in (("Training", found.training), ("Evaluation", found.evaluation)):
        if isinstance(run, RunCost):
            nodes = "1 node" if run.num_nodes == 1 else f"{run.num_nodes} nodes"
            usd = "an unknown price" if run.nodes_usd is None else small_usd_text(run.nodes_usd)
            yield (
                f"{what}: job {run.job_id} ({run.job}) of {run.date.isoformat()}, "
                f"{duration(run.duration_s)} on {nodes}: {usd}."
            )
    if _has_speeds(loop.report.evaluation_run):
        yield (
            "Speeds of base and tuned are one measurement each and have no interval: their "
            "difference is not told apart from noise, and no cost is made of it."
        )
    if found.length_ratio is not None:
        yield (
            f"The tuned model's answers have {number(found.length_ratio * 100)} % of the base "
            "model's characters; a chat's output tokens are taken to have as much."
        )
    if found.paybacks:
        yield (
            "Break-even: dollars of training and evaluation over the saving a chat, serving nodes "
            "alone; days at the declared demand, or with the serving nodes full."
        )
