"""What ends the demo: what came of each stage, the text of `soperator report`, what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cost.bill.bill import Bill
from cost.report.layout import Format, aligned, span
from cost.run_record import Kind, RunRecord
from infra.jobs.records import read_object
from infra.reports.page import training
from infra.reports.page.loop import close_loop, loop_text
from infra.setup.demo.runner import roles

_TOLD: dict[str, str] = {
    Kind.PREPARE_DATA: "{num_train_examples} rows to train on, {num_test_examples} held out",
    Kind.TRAIN: "loss {first_loss} -> {last_loss} in {num_train_steps} steps, "
    "{train_tokens_per_s} tokens/s",
    Kind.SERVE: "up after {cold_start_s} s; {num_answers} answers, {num_output_tokens} tokens",
    Kind.LOAD: "{operating_output_tokens_per_s} tokens/s to {operating_concurrency} streams "
    "within the SLO",
}

Stage = tuple[str, float, str]
"""Name, seconds, remark."""


def text(
    report: training.Report,
    folders: Mapping[str, Path],
    stages: Sequence[Stage],
    total_s: float,
    page: Path,
    *,
    kept: bool,
) -> str:
    """The summary, ready to print; `kept`: the cluster stays, so more can be run on it.

    `folders`: what each job of this demo left, by its name. `total_s` is of this run alone: stages
    overlap, and some are of an earlier run.
    """
    own = set(folders.values())
    runs = {each.job: each for each in report.records if Path(each.path).parent in own}
    rows = [
        (name, training.duration(seconds), "; ".join(filter(None, (remark, _told(runs.get(name))))))
        for name, seconds, remark in stages
    ]
    rows.append(("this run", training.duration(total_s), ""))
    parts = [
        ["", f"Stack {report.spec.name}: what was done, and what came of it"],
        _indented(rows, right=(1,)),
        ["", loop_text(close_loop(report), Format.TABLE)],
        [f"Report: {page}", "Next:"],
        _indented(_next(report, runs, kept=kept)),
    ]
    return "\n".join(line for part in parts for line in part)


def month(bill: Bill) -> str:
    """What the declared stack costs a month."""
    low, high = bill.estimate.monthly_low_usd, bill.estimate.monthly_high_usd
    at_least = "at least " if bill.estimate.is_lower_bound else ""
    return f"{at_least}{span(training.usd(low), training.usd(high), ' to ')} a month"


def _told(record: RunRecord | None) -> str:
    """What came of a job, in a few words; nothing where no record says."""
    if record is None:
        return ""
    try:
        shown = {name: training.number(value) for name, value in record.metrics.items()}
        return _TOLD.get(record.kind, "").format_map(shown)
    except KeyError:
        return ""


def _next(
    report: training.Report, runs: Mapping[str, RunRecord], *, kept: bool
) -> list[Sequence[str]]:
    """What a user may want next, with the command."""
    found: list[Sequence[str]] = [("cost per chat in full", "soperator cost chat")]
    if kept:
        jobs = roles(report.spec)
        record = runs.get(jobs.tune.name)
        artifacts = read_object(Path(record.path)).get("artifacts", {}) if record else {}
        adapter = artifacts.get("adapter_dir", "{place:chkpt}/latest")
        serve = f"soperator submit {jobs.server.name} --set serve.adapter={adapter}"
        found = [("serve it again", serve), *found, ("end it all", "make demo DESTROY=1")]
    return [*found, ("a real shape, no account", "make preview STACK=h100-prod")]


def _indented(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    return [f"  {line}" for line in aligned(rows, right=right)]
