"""What ends the demo: what its stages did, one answer of each model, and the report's answers.

Every figure is that of a job of this demo, in the words of `soperator report` and `cost chat`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cost.chat.unit_costs import ChatCost, chat_table
from cost.report.layout import Format, aligned, render_report, small_usd_text
from cost.run_record import Kind, RunRecord
from infra.reports.page import training
from infra.reports.page.loop import answers_report, close_loop
from infra.reports.page.quality import samples
from infra.setup.demo.runner import roles
from stacks.spec import StackSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """What the jobs of one demo measured."""

    report: training.Report
    """Of these jobs alone."""
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
    report = training.collect(spec, state, folders.values())
    return Outcomes(report=report, runs={record.kind: record for record in report.records})


Stage = tuple[str, float, str]
"""Name, seconds, remark."""
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
        _sample(outcomes),
        _answers(outcomes),
        cheaper(outcomes.report.bill.known_chats),
        _next(outcomes, page, kept=kept),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


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


def _sample(outcomes: Outcomes) -> list[str]:
    """One held-out question and both answers, each cut to a few lines."""
    found = samples(outcomes.report.evaluation)
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


def _answers(outcomes: Outcomes) -> list[str]:
    """What a chat costs, whether the tuned model is better, and what did not run."""
    loop = close_loop(outcomes.report)
    found, table = answers_report(loop), chat_table(outcomes.report.bill)
    notes = (*found.notes, *(f"{each}." for each in loop.missing))
    tables = () if table is None else (table,)
    return render_report(replace(found, tables=tables, notes=notes), Format.TABLE).splitlines()


def cheaper(chats: Sequence[ChatCost]) -> list[str]:
    """What serving many at once makes of the cost of one chat; nothing until both are measured."""
    measured = [each for each in chats if each.speed.date is not None]
    alone = next((each for each in measured if each.speed.batch_size == 1), None)
    served = next((each for each in measured if each.speed.operating is not None), None)
    if alone is None or served is None or served is alone:
        return []
    before, after = alone.cluster_low_usd, served.cluster_low_usd
    if not before:
        return []  # a price book may make everything free
    then = f"{small_usd_text(after)} served to {served.speed.batch_size} streams"
    change = f"{100 * (after - before) / before:+.0f} %"
    return [f"One chat: {small_usd_text(before)} one at a time -> {then}, {change}"]


def _next(outcomes: Outcomes, page: Path, *, kept: bool) -> list[str]:
    after = [
        ("what it rests on", "soperator report --format table"),
        ("cost per chat in full", "soperator cost chat"),
    ]
    if kept:
        server = roles(outcomes.report.spec).server.name
        record = outcomes.runs.get(Kind.TRAIN)
        artifacts = {} if record is None else record.artifacts
        adapter = artifacts.get("adapter_dir", "{place:chkpt}/latest")
        serve = f"soperator submit {server} --set serve.adapter={adapter}"
        after = [("serve it again", serve), *after, ("end it all", "make demo DESTROY=1")]
    after.append(("a real shape, no account", "make preview STACK=h100-prod"))
    return [f"Report: {page}", "Next:", *_aligned(after)]


def _aligned(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    return [f"  {line}" for line in aligned(rows, right=right)]
