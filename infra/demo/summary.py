"""The text that ends the demo: time and outcome of each stage, quality, serving, cost of one chat.

Every figure is that of a job of this demo; what is read from a record is in outcomes.py. Pure.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

from cost.load_curve import LoadPoint
from infra.demo.outcomes import ChatStep, Outcomes
from infra.report.page import cents, duration, number, usd

Stage = tuple[str, float, str]
"""Name, seconds, remark."""
Row = Sequence[str]

_WIDTH = 100
_SAMPLE_LINES = 3


def text(outcomes: Outcomes, stages: Sequence[Stage], page: Path, *, kept: bool) -> str:
    """The summary, ready to print; `kept`: the cluster stays, so more can be run on it."""
    parts = [
        _stages(outcomes, stages),
        _quality(outcomes),
        _sample(outcomes),
        _served(outcomes),
        _chat(outcomes),
        _next(outcomes, page, kept=kept),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _stages(outcomes: Outcomes, stages: Sequence[Stage]) -> list[str]:
    rows = [
        (name, duration(seconds), "; ".join(filter(None, (remark, outcomes.of_job(name)))))
        for name, seconds, remark in stages
    ]
    total = duration(sum(seconds for _, seconds, _ in stages))
    return [
        "",
        f"Stack {outcomes.report.spec.name}",
        *_aligned([*rows, ("all stages", total, "")], right=(1,)),
    ]


def _quality(outcomes: Outcomes) -> list[str]:
    rows = outcomes.quality()
    if not rows:
        return []
    heading = ("", "base", "fine-tuned", "difference, 95 % interval", "p")
    return [
        f"Quality on {outcomes.num_rows()} held-out rows",
        *_aligned([heading, *rows], right=(1, 2)),
    ]


def _sample(outcomes: Outcomes) -> list[str]:
    """One held-out question and both answers, each cut to a few lines."""
    sample = outcomes.sample()
    if sample is None:
        return []
    lines = ["One held-out question"]
    for name, said in zip(("asked", "base", "fine-tuned", "reference"), sample, strict=True):
        whole = textwrap.wrap(" ".join(said.split()), _WIDTH - 16) or ["(nothing)"]
        if len(whole) > _SAMPLE_LINES:
            whole = [*whole[: _SAMPLE_LINES - 1], f"{whole[_SAMPLE_LINES - 1][: _WIDTH - 20]} ..."]
        lines.append(f"  {name:<12}{whole[0]}")
        lines += [f"{'':<14}{line}" for line in whole[1:]]
    return lines


def _served(outcomes: Outcomes) -> list[str]:
    curve = outcomes.curve()
    if curve is None:
        return []
    best = curve.operating_point
    heading = ("load", "requests", "tokens/s", "TTFT p50", "p99", "TPOT p50", "p99", "SLO")
    rows = [_point(each, is_best=each == best) for each in curve.points]
    promise = f"  SLO: {curve.slo}." if curve.slo.is_declared else "  No SLO is declared."
    chosen = (
        " * operating point: the highest tokens/s that keeps it."
        if best is not None
        else " No point keeps it, so none is priced."
    )
    few = " A p99 of few requests is their slowest." if _few(curve.points) else ""
    return [
        f"Served: {outcomes.served_model()} under load, times in ms",
        *_aligned([heading, *rows], right=(1, 2, 3, 4, 5, 6)),
        promise + chosen + few,
    ]


def _few(points: Sequence[LoadPoint]) -> bool:
    return any(each.num_requests < 100 for each in points)


def _point(each: LoadPoint, *, is_best: bool) -> Row:
    load = (
        f"{each.concurrency} stream{'' if each.concurrency == 1 else 's'}"
        if each.concurrency is not None
        else f"{number(each.rate_per_s or Decimal(0))} requests/s"
    )
    kept = {True: "kept", False: "broken", None: "-"}[each.keeps_slo]
    times = (each.p50_ttft_ms, each.p99_ttft_ms, each.p50_tpot_ms, each.p99_tpot_ms)
    return (
        load,
        str(each.num_requests),
        number(each.output_tokens_per_s),
        *("-" if value is None else f"{value:,.0f}" for value in times),
        kept + (" *" if is_best else ""),
    )


def _chat(outcomes: Outcomes) -> list[str]:
    chat, steps = outcomes.report.spec.chat, outcomes.chat_steps()
    if not steps:
        return ["Cost of one chat: not known, no speed was measured"]
    heading = ("", "cluster", "one node", "change", "writes tok/s", "reads tok/s", "where from")
    first = steps[0].cost.cluster_low_usd
    rows = [_chat_row(each, first) for each in steps]
    lines = [
        f"Cost of one chat: {chat.context_tokens:,} tokens read, {chat.output_tokens:,} written",
        *_aligned([heading, *rows], right=(1, 2, 3, 4, 5)),
    ]
    lengths = outcomes.load_lengths()
    if lengths is not None:
        lines.append(
            f"  The load test's prompts have {number(lengths[0])} tokens and its answers "
            f"{number(lengths[1])}: its speeds are taken to the chat's lengths."
        )
    if len(steps) > 1:
        last = steps[-1].cost.cluster_low_usd
        lines.append(
            f"  {steps[0].name} {cents(first)} -> {steps[-1].name} {cents(last)}: "
            f"{_change(first, last)}"
        )
    return [*lines, *(f"  {line}" for line in outcomes.not_priced())]


def _chat_row(step: ChatStep, first: Decimal) -> Row:
    cost, speed = step.cost, step.cost.speed
    prefill = speed.prefill_tokens_per_s
    return (
        step.name,
        cents(cost.cluster_low_usd),
        "unknown" if cost.serving_usd is None else cents(cost.serving_usd),
        "" if cost.cluster_low_usd == first else _change(first, cost.cluster_low_usd),
        number(speed.output_tokens_per_s),
        "not counted" if prefill is None else number(prefill),
        step.source,
    )


def _change(before: Decimal, after: Decimal) -> str:
    return f"{100 * (after - before) / before:+.0f} %"


def _next(outcomes: Outcomes, page: Path, *, kept: bool) -> list[str]:
    spec = outcomes.report.spec
    bill = outcomes.report.bill.estimate
    low, high = usd(bill.monthly_low_usd), usd(bill.monthly_high_usd)
    heading = f"Bill: {low} to {high} a month. {spec.bill_heading or ''}".rstrip()
    after = [("soperator chat-cost", "the table above with break-even against hosted models")]
    if kept:
        adapter = outcomes.adapter()
        serve = f"soperator submit serve --set serve.adapter={adapter}"
        after = [
            (serve, "the tuned model, until it is cancelled"),
            *after,
            ("make demo DESTROY=1", "takes everything down; what is measured stays"),
        ]
    after.append(("make preview STACK=h100-prod", "16 H100, planned and priced without an account"))
    return [heading, f"Report: {page}", "Next:", *_aligned(after)]


def _aligned(rows: Sequence[Row], *, right: Sequence[int] = ()) -> list[str]:
    """The rows as lines of columns; `right` are the columns of numbers."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        (
            "  "
            + "  ".join(
                cell.rjust(width) if column in right else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
        ).rstrip()
        for row in rows
    ]
