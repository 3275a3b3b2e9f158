"""The text that ends the demo: time and outcome of each stage, quality, serving, cost of one chat.

Every figure is that of a job of this demo; what is read from a record is in outcomes.py. Pure.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

from cost.bill import Bill
from cost.load_curve import LoadPoint
from infra.demo.outcomes import ChatStep, Outcomes
from infra.demo.serving import roles
from infra.report.words import cents, duration, number, usd

Stage = tuple[str, float, str]
"""Name, seconds, remark."""
Row = Sequence[str]

_WIDTH = 100
_SAMPLE_LINES = 3


def text(
    outcomes: Outcomes, stages: Sequence[Stage], total_s: float, page: Path, *, kept: bool
) -> str:
    """The summary, ready to print; `kept`: the cluster stays, so more can be run on it.

    `total_s` is of this run alone: stages overlap, and some are of an earlier run.
    """
    parts = [
        _stages(outcomes, stages, total_s),
        _quality(outcomes),
        _sample(outcomes),
        _served(outcomes),
        _chat(outcomes),
        _next(outcomes, page, kept=kept),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def month(bill: Bill) -> str:
    """What the declared stack costs a month."""
    low, high = usd(bill.estimate.monthly_low_usd), usd(bill.estimate.monthly_high_usd)
    at_least = "at least " if bill.estimate.is_lower_bound else ""
    return f"{at_least}{low if low == high else f'{low} to {high}'} a month"


def _stages(outcomes: Outcomes, stages: Sequence[Stage], total_s: float) -> list[str]:
    rows = [
        (name, duration(seconds), "; ".join(filter(None, (remark, outcomes.of_job(name)))))
        for name, seconds, remark in stages
    ]
    heading = f"Stack {outcomes.report.spec.name}: what was done, and what came of it"
    return ["", heading, *_aligned([*rows, ("this run", duration(total_s), "")], right=(1,))]


def _quality(outcomes: Outcomes) -> list[str]:
    rows = outcomes.quality()
    if not rows:
        return []
    heading = ("", "base", "fine-tuned", "difference, 95 % interval", "p")
    return [
        f"Quality on held-out rows, of which {outcomes.num_rows()} were answered",
        *_aligned([heading, *rows], right=(1, 2)),
    ]


def _sample(outcomes: Outcomes) -> list[str]:
    """One held-out question and both answers, each cut to a few lines."""
    sample = outcomes.sample()
    if sample is None:
        return []
    lines = ["One held-out question"]
    for name, said in zip(("asked", "base", "fine-tuned", "reference"), sample, strict=True):
        text = " ".join(said.split())
        whole = textwrap.wrap(text, _WIDTH - 14, max_lines=_SAMPLE_LINES, placeholder=" ...") or [
            "(nothing)"
        ]
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
    notes = [f"SLO: {curve.slo}." if curve.slo.is_declared else "No SLO is declared."]
    if best is not None:
        notes.append("* the operating point: the most tokens/s that keep it.")
    if _few(curve.points):
        notes.append("A p99 of so few requests is their slowest.")
    return [
        f"Served: {outcomes.served_model()} under load, times in ms",
        *_aligned([heading, *rows], right=(1, 2, 3, 4, 5, 6)),
        *_notes(*notes),
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
        return ["Cost of one chat: not known, as no speed was measured"]
    heading = ("", "$ cluster", "$ node", "change", "writes/s", "reads/s", "from")
    first = steps[0].cost.cluster_low_usd
    rows = [_chat_row(each, first) for each in steps]
    lines = [
        f"Cost of one chat: {chat.context_tokens:,} tokens read, {chat.output_tokens:,} written",
        *_aligned([heading, *rows], right=(1, 2, 3, 4, 5)),
    ]
    notes = ["$ cluster: all of it at its smallest. $ node: the node that serves, without disks."]
    lengths = outcomes.load_lengths()
    if lengths is not None:
        notes.append(
            f"The load test's prompts have {number(lengths[0])} tokens, its answers "
            f"{number(lengths[1])}; its speeds are taken to the chat's lengths."
        )
    return [*lines, *_notes(*notes, *outcomes.not_priced()), *_from_to(steps)]


def _from_to(steps: Sequence[ChatStep]) -> list[str]:
    """The first and the last cost in one line; nothing of one alone."""
    if len(steps) < 2:
        return []
    first, last = steps[0], steps[-1]
    before, after = first.cost.cluster_low_usd, last.cost.cluster_low_usd
    change = _change(before, after)
    return [f"  One chat: {cents(before)} {first.name} -> {cents(after)} {last.name}, {change}"]


def _notes(*notes: str) -> list[str]:
    """The notes as lines below a table."""
    indent = "  "
    whole = " ".join(notes)
    return textwrap.wrap(whole, _WIDTH, initial_indent=indent, subsequent_indent=indent)


def _chat_row(step: ChatStep, first: Decimal) -> Row:
    cost, speed = step.cost, step.cost.speed
    prefill = speed.prefill_tokens_per_s
    return (
        step.name,
        cents(cost.cluster_low_usd),
        cents(cost.serving_usd),
        "" if cost.cluster_low_usd == first else _change(first, cost.cluster_low_usd),
        number(speed.output_tokens_per_s),
        "no" if prefill is None else number(prefill),
        step.source,
    )


def _change(before: Decimal, after: Decimal) -> str:
    return f"{100 * (after - before) / before:+.0f} %"


def _next(outcomes: Outcomes, page: Path, *, kept: bool) -> list[str]:
    bill = month(outcomes.report.bill)
    heading = f"Bill: {bill}. {outcomes.report.spec.bill_heading or ''}".rstrip()
    after = [("cost per chat in full", "soperator chat-cost")]
    if kept:
        server = roles(outcomes.report.spec).server.name
        serve = f"soperator submit {server} --set serve.adapter={outcomes.adapter()}"
        after = [("serve it again", serve), *after, ("end it all", "make demo DESTROY=1")]
    after.append(("a real shape, no account", "make preview STACK=h100-prod"))
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
