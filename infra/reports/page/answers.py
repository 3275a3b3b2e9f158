"""The sentences that open the page: is the tuned model better, what a chat and the cluster cost.

Owns their words. One metric decides, named here and not after a look at the figures; what has no
interval is no gain, and what was not measured names the command that measures it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cost.chat.speeds import Basis, ChatCost, chat_cost, mean_interval
from cost.chat.unit_costs import answer_text, lengths_text, submit_command
from cost.report.layout import small_usd_text, span
from cost.run_record import RunRecord
from infra.reports.page.quality import SIGNIFICANT_P, bounds, verdict
from infra.reports.page.training import Report, figure, number, p_text, signed, usd

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


def answers(report: Report, rows: Sequence[Mapping[str, Any]]) -> tuple[Answer, ...]:
    """Quality first, of the rows of quality.py; then a chat, then the cluster."""
    return _better(report, rows), _chat(report), _cluster(report)


def is_rehearsal(record: RunRecord) -> bool:
    """Whether processors stood in for the GPUs that the run declares."""
    hardware = record.hardware
    return hardware is not None and hardware.device == "cpu" and hardware.num_gpus_declared > 0


def _better(report: Report, rows: Sequence[Mapping[str, Any]]) -> Answer:
    question = "Is the tuned model better?"
    by_key = {row["key"]: row for row in rows}
    row = next((by_key[key] for key in DECIDING if key in by_key), None)
    command = submit_command(report.spec, "workloads.evaluate")
    command += f", then soperator pull ID -s {report.spec.name}"
    if row is None:
        why = f"no evaluation of this stack has passed; run: {command}."
        return Answer(question=question, lead=f"{_NOT_MEASURED}:", sentence=why)
    unit, count = row["unit"], row["num_rows"]
    before, after = (figure(row[name], unit) for name in ("before", "after"))
    rows_text = "the held-out rows" if count is None else f"{number(count)} held-out rows"
    sentence = f"{row['name'].removesuffix(' on held-out rows')} on {rows_text}: {before} base, "
    sentence += f"{after} tuned"
    found = verdict(row)
    if row["low"] is None:
        sentence += f"; without an interval this shows no gain; run: {command}."
    elif (shown := bounds(row)) is None:
        sentence += "; the same difference in every resample, so no interval can be told."
    else:
        change = f"{signed(row['after'] - row['before'], unit)}{' points' if unit else ''}"
        sentence += f"; difference {change}, {row['interval']} {shown}"
        if row["low"] <= 0 <= row["high"]:
            sentence += ", which includes zero."
        elif found == "not told apart":
            p = p_text(row["p_value"], row["resamples"])
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


def _chat(report: Report) -> Answer:
    question = "What does a chat cost?"
    units, chat = report.bill.unit_costs, report.spec.chat
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
        how = f"measured {times}{day}{cpu}{lengths_text(row, chat)}: {_interval(report, row)}"
    prompt = "" if row.counts_prefill else "; reading is not counted"
    missed = f"; an answer takes {answer_text(row)}" if row.meets_slo is False else ""
    bound = "at least " if units.is_lower_bound else ""
    basis = "Measured" if speed.basis is Basis.MEASURED else "Estimated"
    return Answer(
        question=question,
        lead=f"{basis}: {bound}{lead}.",
        sentence=f"A chat reads {chat.context_tokens:,} tokens and writes {chat.output_tokens:,}; "
        f"from the smallest to the largest cluster{alone}. Its speed is {how}{prompt}{missed}.",
    )


def _interval(report: Report, row: ChatCost) -> str:
    """What the measurements of the row's speed say of its cost's certainty."""
    units, chat = report.bill.unit_costs, report.spec.chat
    found = mean_interval(
        [chat_cost(chat, each, units.hourly).cluster_low_usd for each in row.speed.repeats]
    )
    if found is None:
        return "no confidence interval"
    size = "" if row.cluster_low_usd == row.cluster_high_usd else ", smallest cluster"
    low, high = map(small_usd_text, found)
    return f"95 % interval of their mean {span(low, high, ' to ')}{size}"


def _cluster(report: Report) -> Answer:
    bill = report.bill.estimate
    month = span(usd(bill.monthly_low_usd), usd(bill.monthly_high_usd), " to ")
    hour = span(small_usd_text(bill.hourly_low_usd), small_usd_text(bill.hourly_high_usd), " to ")
    unpriced = ", ".join(line.name for line in bill.unpriced)
    priced = f"not priced: {unpriced}" if unpriced else "every line has a price"
    date = "" if bill.price_date is None else f" of {bill.price_date.isoformat()}"
    size = "smallest to largest size" if " to " in month else "of one size"
    return Answer(
        question="What does the cluster cost?",
        lead=f"{'At least ' if bill.is_lower_bound else ''}{month} a month.",
        sentence=f"{hour} an hour, {size}, without tax, at prices{date} ({bill.book.name}); "
        f"{priced}.",
        more=bill.spec.bill_heading or "",
    )
