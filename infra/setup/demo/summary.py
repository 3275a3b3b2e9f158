"""What ends the demo: outcomes of its stages from their records, and the text that tells them.

Every figure is that of a job of this demo: time and outcome of each stage, quality, serving, cost
of one chat.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from cost.bill.bill import Bill
from cost.chat.unit_costs import lengths_text, unit_costs
from cost.report.layout import aligned, small_usd_text, span
from cost.run_record import Kind, LoadPoint, RunRecord
from infra.reports.page import training
from infra.reports.page.quality import bounds, evaluation_rows, samples
from infra.setup.demo.runner import roles
from stacks.spec import StackSpec

_SHOWN = ("perplexity", "function_name_accuracy", "argument_accuracy", "rougeL")
"""What decides whether a tuned model calls functions better, and that it lost no language."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """The records of one demo and the report that they are part of."""

    report: training.Report
    runs: Mapping[str, RunRecord]
    """By kind."""

    def of_job(self, name: str) -> str:
        """What came of the job, in one line; nothing where no record says."""
        record = next((each for each in self.runs.values() if each.job == name), None)
        if record is None:
            return ""
        told = _TOLD.get(record.kind)
        try:
            shown = {name: training.number(value) for name, value in record.metrics.items()}
            return "" if told is None else told.format_map(shown)
        except KeyError:
            return ""

    def evaluation(self) -> Mapping[str, Any] | None:
        """What the evaluation left."""
        record = self.runs.get(Kind.EVALUATE)
        return None if record is None else training.evaluation_of(Path(record.path).parent)


_TOLD: dict[str, str] = {
    Kind.PREPARE_DATA: "{num_train_examples} rows to train on, {num_test_examples} held out",
    Kind.TRAIN: "loss {first_loss} -> {last_loss} in {num_train_steps} steps, "
    "{train_tokens_per_s} tokens/s",
    Kind.SERVE: "up after {cold_start_s} s; {num_answers} answers, {num_output_tokens} tokens",
    Kind.LOAD: "{operating_output_tokens_per_s} tokens/s to {operating_concurrency} streams "
    "within the SLO",
}


def outcomes(spec: StackSpec, state: Path, folders: Mapping[str, Path]) -> Outcomes:
    """What the jobs in these folders measured; `folders` are by job name."""
    report = training.collect(spec, state)
    wanted = set(folders.values())
    runs = {record.kind: record for record in report.records if Path(record.path).parent in wanted}
    return Outcomes(report=report, runs=runs)


def _quality_row(row: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    """Metric, base, fine-tuned, difference with its interval, p-value."""
    unit = row["unit"]
    before, after = (training.figure(row[name], unit) for name in ("before", "after"))
    if row["p_value"] is None:
        return row["name"], before, after, row["change"], ""
    difference = f"{training.signed(row['after'] - row['before'], unit)}{' points' if unit else ''}"
    shown = f"{difference} ({interval})" if (interval := bounds(row)) else difference
    return row["name"], before, after, shown, training.p_text(row["p_value"], row["resamples"])


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
    low, high = bill.estimate.monthly_low_usd, bill.estimate.monthly_high_usd
    at_least = "at least " if bill.estimate.is_lower_bound else ""
    return f"{at_least}{span(training.usd(low), training.usd(high), ' to ')} a month"


def _stages(outcomes: Outcomes, stages: Sequence[Stage], total_s: float) -> list[str]:
    rows = [
        (name, training.duration(seconds), "; ".join(filter(None, (remark, outcomes.of_job(name)))))
        for name, seconds, remark in stages
    ]
    heading = f"Stack {outcomes.report.spec.name}: what was done, and what came of it"
    return [
        "",
        heading,
        *_aligned([*rows, ("this run", training.duration(total_s), "")], right=(1,)),
    ]


def _quality(outcomes: Outcomes) -> list[str]:
    by_key = {row["key"]: row for row in evaluation_rows(outcomes.evaluation())}
    rows = [_quality_row(by_key[key]) for key in _SHOWN if key in by_key]
    if not rows:
        return []
    heading = ("", "base", "fine-tuned", "difference, 95 % interval", "p")
    # Perplexity reads more of them.
    base = (outcomes.evaluation() or {}).get("base_model", {})
    return [
        f"Quality on held-out rows, of which {base.get('num_rows', '?')} were answered",
        *_aligned([heading, *rows], right=(1, 2)),
    ]


def _sample(outcomes: Outcomes) -> list[str]:
    """One held-out question and both answers, each cut to a few lines."""
    found = samples(outcomes.evaluation())
    if not found:
        return []
    sample, lines = found[0], ["One held-out question"]
    # The last thing that the user said: a prompt holds a whole conversation.
    asked = sample["input"].rstrip().splitlines()[-1:] or [""]
    answers = {"base": sample["base"], "fine-tuned": sample["tuned"]}
    named = {"asked": asked[0], **answers, "reference": sample["reference"]}
    for name, said in named.items():
        text = " ".join(said.split())
        whole = textwrap.wrap(text, _WIDTH - 14, max_lines=_SAMPLE_LINES, placeholder=" ...") or [
            "(nothing)"
        ]
        lines.append(f"  {name:<12}{whole[0]}")
        lines += [f"{'':<14}{line}" for line in whole[1:]]
    return lines


def _served(outcomes: Outcomes) -> list[str]:
    record = outcomes.runs.get(Kind.LOAD)
    if record is None or record.curve is None:
        return []
    curve = record.curve
    best = curve.operating_point
    heading = ("load", "requests", "tokens/s", "TTFT p50", "p99", "TPOT p50", "p99", "SLO")
    rows = [_point(each, is_best=each == best) for each in curve.curve]
    notes = [f"SLO: {curve.slo}." if curve.slo.is_declared else "No SLO is declared."]
    if best is not None:
        notes.append("* the operating point: the most tokens/s that keep it.")
    if any(each.num_requests < 100 for each in curve.curve):
        notes.append("A p99 of so few requests is their slowest.")
    return [
        f"Served: {curve.model or record.model} under load, times in ms",
        *_aligned([heading, *rows], right=(1, 2, 3, 4, 5, 6)),
        *_notes(*notes),
    ]


def _point(each: LoadPoint, *, is_best: bool) -> Row:
    load = (
        f"{each.concurrency} stream{'' if each.concurrency == 1 else 's'}"
        if each.concurrency is not None
        else f"{training.number(each.rate_per_s or Decimal(0))} requests/s"
    )
    kept = {True: "kept", False: "broken", None: "-"}[each.keeps_slo]
    times = (each.ttft.p50_ms, each.ttft.p99_ms, each.tpot.p50_ms, each.tpot.p99_ms)
    return (
        load,
        str(each.num_requests),
        training.number(each.output_tokens_per_s),
        *("-" if value is None else f"{value:,.0f}" for value in times),
        kept + (" *" if is_best else ""),
    )


def _chat(outcomes: Outcomes) -> list[str]:
    """What a chat costs as assumed, as evaluated one at a time and in batches, as served."""
    report, chat = outcomes.report, outcomes.report.spec.chat
    steps = [("assumed", each, each.speed.source) for each in report.assumed.known_chats[:1]]
    not_priced: list[str] = []
    for kind in (Kind.EVALUATE, Kind.LOAD):
        if (record := outcomes.runs.get(kind)) is None:
            continue
        units = unit_costs(report.spec, report.bill.estimate, (record,))
        of_record = [row for row in units.known_chats if row.speed.date is not None]
        for row in sorted(of_record, key=lambda row: row.speed.batch_size):
            name = f"{row.speed.batch_size} at a time"
            if kind is Kind.LOAD:
                if row.speed.operating is None:
                    continue
                name = f"served, {row.speed.batch_size} streams"
            elif row.speed.batch_size == 1:
                name = "one at a time"
            steps.append((name, row, f"measured by {record.job}, job {record.job_id}"))
        if kind is Kind.LOAD:
            not_priced = [str(each) for each in units.no_operating_points]
    if not steps:
        return ["Cost of one chat: not known, as no speed was measured"]
    heading = ("", "$ cluster", "$ node", "change", "writes/s", "reads/s", "from")
    first, last = steps[0][1].cluster_low_usd, steps[-1][1].cluster_low_usd
    rows = [
        (
            name,
            small_usd_text(cost.cluster_low_usd),
            small_usd_text(cost.serving_usd),
            "" if cost.cluster_low_usd == first else _change(first, cost.cluster_low_usd),
            training.number(cost.speed.output_tokens_per_s),
            "no"
            if cost.speed.prefill_tokens_per_s is None
            else training.number(cost.speed.prefill_tokens_per_s),
            source,
        )
        for name, cost, source in steps
    ]
    notes = ["$ cluster: all of it at its smallest. $ node: the node that serves, without disks."]
    notes += [f"Served{text}." for _, cost, _ in steps if (text := lengths_text(cost, chat))]
    lines = [
        f"Cost of one chat: {chat.context_tokens:,} tokens read, {chat.output_tokens:,} written",
        *_aligned([heading, *rows], right=(1, 2, 3, 4, 5)),
        *_notes(*notes, *not_priced),
    ]
    if len(steps) > 1:
        ends = f"{small_usd_text(first)} {steps[0][0]} -> {small_usd_text(last)} {steps[-1][0]}"
        lines.append(f"  One chat: {ends}, {_change(first, last)}")
    return lines


def _notes(*notes: str) -> list[str]:
    """The notes as lines below a table."""
    indent = "  "
    whole = " ".join(notes)
    return textwrap.wrap(whole, _WIDTH, initial_indent=indent, subsequent_indent=indent)


def _change(before: Decimal, after: Decimal) -> str:
    return f"{100 * (after - before) / before:+.0f} %"


def _next(outcomes: Outcomes, page: Path, *, kept: bool) -> list[str]:
    bill = month(outcomes.report.bill)
    heading = f"Bill: {bill}. {outcomes.report.spec.bill_heading or ''}".rstrip()
    after = [("cost per chat in full", "soperator cost chat")]
    if kept:
        server = roles(outcomes.report.spec).server.name
        record = outcomes.runs.get(Kind.TRAIN)
        artifacts = {} if record is None else record.artifacts
        adapter = artifacts.get("adapter_dir", "{place:chkpt}/latest")
        serve = f"soperator submit {server} --set serve.adapter={adapter}"
        after = [("serve it again", serve), *after, ("end it all", "make demo DESTROY=1")]
    after.append(("a real shape, no account", "make preview STACK=h100-prod"))
    return [heading, f"Report: {page}", "Next:", *_aligned(after)]


def _aligned(rows: Sequence[Row], *, right: Sequence[int] = ()) -> list[str]:
    return [f"  {line}" for line in aligned(rows, right=right)]
