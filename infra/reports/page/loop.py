"""The sentences that open the page, and the loop closed: quality gained, speed, cost, break-even.

All from run records, also as text; a part that did not run says NOT RUN and how to run it. One
metric decides whether the tuned model is better, named here and not after a look at the figures;
what has no interval is no gain. Dollars are cost/chat/break_even.py's, statistics the evaluation's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final

from cost.bill.bill import plain_chat, plain_operating
from cost.chat.break_even import BASE, Finetune, Payback, api_costs, asked_tuned, finetune
from cost.chat.charts import load_charts, load_table
from cost.chat.speeds import Basis, ChatCost, mean_interval, why_it_prices_nothing
from cost.chat.unit_costs import (
    NO_POINT,
    NotKnown,
    RunCost,
    answer_text,
    lengths_text,
    submit_command,
)
from cost.prices.book import ApiPriceBook
from cost.report.layout import (
    UNKNOWN,
    Format,
    Report,
    Table,
    picked,
    render_report,
    small_usd_text,
    span,
)
from cost.resources.estimate import Total
from cost.run_record import RunRecord
from infra.reports.page import training
from infra.reports.page.quality import SIGNIFICANT_P, bounds, evaluation_rows, verdict

DECIDING: Final = ("function_name_accuracy", "perplexity")
"""The first that an evaluation has says whether the tuned model is better."""
REHEARSAL: Final = "CPU rehearsal"
_NOT_MEASURED: Final = "NOT MEASURED"
_LEADS: Final = {"better": "Yes, better.", "worse": "No, worse."}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One question of a reader with its sentence."""

    question: str
    lead: str
    """The answer in a few words."""
    sentence: str
    more: str = ""
    """What it rests on; empty where the sentence says it."""
    kind: str = ""
    """`good`, `bad`, or nothing."""


def answers(report: training.Report, rows: Sequence[Mapping[str, Any]]) -> tuple[Answer, ...]:
    """Quality first, of the rows of quality.py; then a chat, then the cluster."""
    return _better(report, rows), _chat(report), _cluster(report)


def is_rehearsal(record: RunRecord) -> bool:
    """Whether processors stood in for the GPUs that the run declares."""
    hardware = record.hardware
    return hardware is not None and hardware.device == "cpu" and hardware.num_gpus_declared > 0


def _better(report: training.Report, rows: Sequence[Mapping[str, Any]]) -> Answer:
    question = "Is the tuned model better?"
    by_key = {row["key"]: row for row in rows}
    row = next((by_key[key] for key in DECIDING if key in by_key), None)
    command = submit_command(report.spec, "workloads.evaluate")
    command += f", then soperator pull ID -s {report.spec.name}"
    if row is None:
        why = f"no evaluation of this stack has passed; run: {command}."
        return Answer(question=question, lead=f"{_NOT_MEASURED}:", sentence=why)
    unit, count = row["unit"], row["num_rows"]
    before, after = (training.figure(row[name], unit) for name in ("before", "after"))
    rows_text = "the held-out rows" if count is None else f"{training.number(count)} held-out rows"
    sentence = f"{row['name'].removesuffix(' on held-out rows')} on {rows_text}: {before} base, "
    sentence += f"{after} tuned"
    found = verdict(row)
    if row["low"] is None:
        sentence += f"; without an interval this shows no gain; run: {command}."
    elif (shown := bounds(row)) is None:
        sentence += "; the same difference in every resample, so no interval can be told."
    else:
        change = f"{training.signed(row['after'] - row['before'], unit)}{' points' if unit else ''}"
        sentence += f"; difference {change}, {row['interval']} {shown}"
        if row["low"] <= 0 <= row["high"]:
            sentence += ", which includes zero."
        elif found == "not told apart":
            p = training.p_text(row["p_value"], row["resamples"])
            sentence += f", but p {p} is not below {SIGNIFICANT_P}."
        else:
            sentence += "."
    return Answer(
        question=question,
        lead=_LEADS.get(found, "Not shown to be better."),
        sentence=sentence,
        more=_others(rows, row),
        kind={"better": "good", "worse": "bad"}.get(found, ""),
    )


def _others(rows: Sequence[Mapping[str, Any]], decides: Mapping[str, Any]) -> str:
    """What the other tested metrics say, as counts; those that got worse by name."""
    others = [row for row in rows if row is not decides and row["p_value"] is not None]
    worse = [row["name"] for row in others if verdict(row) == "worse"]
    better = sum(verdict(row) == "better" for row in others)
    named = f" ({', '.join(worse)})" if worse else ""
    if not others:
        return ""
    return (
        f"Of {len(others)} other tested metrics {better} better, {len(worse)} worse{named}; "
        "no speed is among them: each was measured once."
    )


def _chat(report: training.Report) -> Answer:
    question = "What does a chat cost?"
    units, chat = report.bill, report.spec.chat
    rows = units.known_chats
    if not rows:
        why = str(units.chats).removeprefix("NOT KNOWN: ")
        return Answer(question=question, lead=f"{_NOT_MEASURED}:", sentence=f"{why}.")
    row = next((each for each in rows if each.speed.basis is Basis.MEASURED), rows[0])
    lead = span(small_usd_text(row.cluster_low_usd), small_usd_text(row.cluster_high_usd), " to ")
    serving = row.serving_usd
    alone = "" if serving is None else f" ({small_usd_text(serving)} for its serving nodes)"
    speed = row.speed
    measure = submit_command(report.spec, "workloads.evaluate")
    how = f"assumed: {speed.source}; {_NOT_MEASURED}, run: {measure}"
    if speed.basis is Basis.MEASURED:
        last = "last on " if speed.repeats else ""
        day = "" if speed.date is None else f", {last}{speed.date.isoformat()}"
        line = report.lineage
        runs = [each for each in (line.training, line.evaluation, *line.loads) if each is not None]
        cpu = ", on CPUs in place of the declared GPUs" if any(map(is_rehearsal, runs)) else ""
        times = f"{len(speed.repeats)} times" if speed.repeats else "once"
        how = f"measured {times}{day}{cpu}{lengths_text(row, chat)}: {_interval(row)}"
    prompt = "" if row.counts_prefill else "; reading is not counted"
    missed = f"; an answer takes {answer_text(row)}" if row.meets_slo is False else ""
    basis = "Measured" if speed.basis is Basis.MEASURED else "Estimated"
    return Answer(
        question=question,
        lead=f"{basis}: {units.estimate.total.least}{lead}.",
        sentence=f"A chat reads {chat.context_tokens:,} tokens and writes {chat.output_tokens:,}; "
        f"from the smallest to the largest cluster{alone}. Its speed is {how}{prompt}{missed}.",
    )


def _interval(row: ChatCost) -> str:
    """What the measurements of the row's speed say of its cost's certainty."""
    found = mean_interval([replace(row, speed=each).cluster_low_usd for each in row.speed.repeats])
    if found is None:
        return "no confidence interval"
    size = "" if row.cluster_low_usd == row.cluster_high_usd else ", smallest cluster"
    low, high = map(small_usd_text, found)
    return f"95 % interval of their mean {span(low, high, ' to ')}{size}"


def month(total: Total) -> str:
    """What a stack costs a month, from its smallest to its largest size."""
    low, high = training.usd(total.low_usd), training.usd(total.high_usd)
    return f"{total.least}{span(low, high, ' to ')} a month"


def _cluster(report: training.Report) -> Answer:
    bill = report.bill.estimate
    low, high = bill.total.hourly_low_usd, bill.total.hourly_high_usd
    hour, of_month = span(small_usd_text(low), small_usd_text(high), " to "), month(bill.total)
    unpriced = ", ".join(line.name for line in bill.unpriced)
    priced = f"not priced: {unpriced}" if unpriced else "every line has a price"
    date = "" if bill.price_date is None else f" of {bill.price_date.isoformat()}"
    size = "smallest to largest size" if " to " in of_month else "of one size"
    return Answer(
        question="What does the cluster cost?",
        lead=f"{of_month[0].upper()}{of_month[1:]}.",
        sentence=f"{hour} an hour, {size}, without tax, at prices{date} ({bill.book.name}); "
        f"{priced}.",
        more=bill.spec.bill_heading or "",
    )


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

    report: training.Report
    answers: tuple[Answer, ...]
    """The sentences that open the page."""
    quality: tuple[Mapping[str, Any], ...]
    """Rows of quality.py."""
    load: RunRecord | None
    """The newest load test of the tuned model that passed; of any model where there is none."""
    finetune: Finetune
    missing: tuple[str, ...]
    """A line for each part that did not run."""


def close_loop(report: training.Report) -> Loop:
    """The loop of the report's stack."""
    apis, _ = api_costs(report.spec.chat, ApiPriceBook.load())
    found = finetune(report.bill, apis)
    loads = report.lineage.loads
    rows = evaluation_rows(report.evaluation)
    loop = Loop(
        report=report,
        answers=answers(report, rows),
        quality=tuple(row for row in rows if "per_s" not in row["key"]),
        load=([each for each in loads if asked_tuned(each)] or [*loads] or [None])[-1],
        finetune=found,
        missing=(),
    )
    return replace(loop, missing=tuple(_missing(loop)))


_LINEAGE: Final = """
data=report.lineage.data.job_id training=report.lineage.training.job_id
evaluation=report.lineage.evaluation.job_id load=load.job_id report.lineage.tuned_dir
"""


def plain_loop(loop: Loop) -> dict[str, object]:
    """The loop as JSON values: money as text, None where nothing was measured."""
    report, found = loop.report, loop.finetune
    return {
        "schema_version": SCHEMA_VERSION,
        "stack": report.spec.name,
        "heading": report.bill.spec.bill_heading,
        "answers": [asdict(each) for each in loop.answers],
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
        "lineage": picked(loop, _LINEAGE),
        "speed": _plain_speed(report.lineage.evaluation),
        "operating_point": None if found.served is None else plain_operating(found.served),
        "chats": [{"state": state, **plain_chat(row)} for state, row in states(loop)],
        "length_ratio": None if found.length_ratio is None else f"{found.length_ratio:.6f}",
        "training": _plain_run(found.training),
        "evaluation": _plain_run(found.evaluation),
        "investment_usd": _usd(found.investment_usd),
        "break_even": [
            {
                **picked(each, "against other_usd ours_usd saving_usd", _usd),
                "chats": None if each.chats is None else f"{each.chats:.1f}",
                "days": None if each.days is None else f"{each.days:.3f}",
            }
            for each in found.paybacks
        ],
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
            f"{command}, then soperator pull ID -s {stack}"
        )
    elif isinstance(found.evaluation, NotKnown):
        yield f"Cost before and after: {found.evaluation}"
    if loop.load is None:
        yield (
            f"Load: {NOT_RUN}: no load test of this stack has passed; run: soperator runs load "
            f"--stack {stack}, then soperator pull ID -s {stack}"
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
            f"soperator runs load --stack {stack} --set load.target.model=NAME, NAME one of the "
            "server's (by itself: the last that it lists)"
        )
    for each in report.bill.no_operating_points:
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
    found = picked(run, "job job_id date duration_s nodes_usd", _usd)
    return {**found, "duration_s": int(run.duration_s)}


def _usd(usd: Decimal | None) -> str | None:
    return None if usd is None else f"{usd:.9f}"


def answers_report(loop: Loop) -> Report:
    """The page's three answers."""
    said = (f"{each.question} {each.lead} {each.sentence} {each.more}" for each in loop.answers)
    heading = loop.report.bill.spec.bill_heading
    return Report(heading=heading, notes=tuple(map(str.rstrip, said)))


def loop_text(loop: Loop, format: Format) -> str:
    """The answers and the loop, as text or markdown, ending in a newline."""
    tables = (*_quality_tables(loop), *_tables(loop))
    found = Report(tables=tables, notes=tuple(_notes(loop)))
    return f"{render_report(answers_report(loop), format)}\n{render_report(found, format)}"


def loop_html(loop: Loop) -> str:
    """The loop as a fragment of the page; quality has its own section there."""
    found = Report(tables=_tables(loop), notes=tuple(_notes(loop)))
    return render_report(found, Format.HTML)


def loop_charts(loop: Loop) -> tuple[str, ...]:
    """The load test as inline SVG; none without one."""
    curve = None if loop.load is None else loop.load.curve
    return () if curve is None else load_charts(curve)


def _quality_tables(loop: Loop) -> Iterator[Table]:
    run = loop.report.lineage.evaluation
    if loop.quality and run is not None:
        interval = loop.quality[0]["interval"].capitalize()
        yield Table(
            title=f"Quality on the same held-out rows (job {run.job_id})",
            headings=("Metric", "Verdict", "Base", "Tuned", "Change", interval, "p"),
            rows=tuple(_quality_row(row) for row in loop.quality),
            num_text_columns=2,
            bad_rows=frozenset(
                index for index, row in enumerate(loop.quality) if verdict(row) == "worse"
            ),
        )


def _quality_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    unit, p_value = row["unit"], row["p_value"]
    return (
        row["name"],
        verdict(row),
        training.figure(row["before"], unit),
        training.figure(row["after"], unit),
        row["change"],
        bounds(row) or "-",
        "-" if p_value is None else training.p_text(p_value, row["resamples"]),
    )


def _tables(loop: Loop) -> tuple[Table, ...]:
    tables = [*_speed_tables(loop.report.lineage.evaluation)]
    known = list(states(loop))
    if known:
        tables.append(_cost_table(known))
    if loop.finetune.paybacks:
        usd = loop.finetune.investment_usd
        cost = "of unknown cost" if usd is None else f"of {small_usd_text(usd)}"
        tables.append(
            Table(
                title=f"Break-even of the finetune {cost} (own nodes of training and evaluation)",
                headings=("Against", "USD There", "USD Here", "Saving", "Chats", "After"),
                rows=tuple(_payback_row(each) for each in loop.finetune.paybacks),
            )
        )
    if loop.load is not None and loop.load.curve is not None:
        title = f"Load test (job {loop.load.job_id}), SLO: {loop.load.curve.slo}"
        tables.append(load_table(loop.load.curve, title))
    return tuple(tables)


def _speed_tables(run: RunRecord | None) -> Iterator[Table]:
    if run is None:
        return
    rows = [
        (label, training.number(before), training.number(after))
        for name, label in SPEEDS
        if (before := run.metrics.get(f"{BASE}{name}")) and (after := run.metrics.get(name))
    ]
    if rows:
        size = run.metrics.get("batch_size")
        batch = "" if size is None else f", batch of {training.number(size)}"
        yield Table(
            title=f"Speed in tokens a second (job {run.job_id}{batch}), each measured once",
            headings=("Speed", "Base", "Tuned"),
            rows=tuple(rows),
        )


def _cost_table(states: list[tuple[str, ChatCost]]) -> Table:
    return Table(
        title="Cost per chat before and after",
        headings=("State", "Where from", "Writes/s", "Reads/s", "Cluster", "Serving", "Answer"),
        rows=tuple(
            (
                state,
                row.speed.scenario,
                training.number(row.speed.output_tokens_per_s),
                UNKNOWN
                if row.speed.prefill_tokens_per_s is None
                else training.number(row.speed.prefill_tokens_per_s),
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


def _payback_row(each: Payback) -> tuple[str, ...]:
    never = UNKNOWN if each.saving_usd > 0 else "never"
    saving = each.saving_usd
    return (
        each.against,
        small_usd_text(each.other_usd),
        small_usd_text(each.ours_usd),
        f"{'-' if saving < 0 else ''}{small_usd_text(abs(saving))}",
        never if each.chats is None else f"{each.chats.to_integral_value(ROUND_CEILING):,}",
        never if each.days is None else training.span_of_days(each.days),
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
                f"{training.duration(run.duration_s)} on {nodes}: {usd}."
            )
    if any(_speed_tables(loop.report.lineage.evaluation)):
        yield (
            "Speeds of base and tuned are one measurement each and have no interval: their "
            "difference is not told apart from noise, and no cost is made of it."
        )
    if found.length_ratio is not None:
        yield (
            f"The tuned model's answers have {training.number(found.length_ratio * 100)} % of the "
            "base model's characters; a chat's output tokens are taken to have as much."
        )
    if found.paybacks:
        yield (
            "Break-even: dollars of training and evaluation over the saving a chat, serving nodes "
            "alone; days at the declared demand, or with the serving nodes full."
        )
