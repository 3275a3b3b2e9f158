"""What the jobs of one demo measured, read from what was pulled: outcomes(spec, state, folders).

Only the jobs of this demo count: another run of the same state folder changes no figure here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from cost.load_curve import LoadCurve
from cost.run_record import Kind, RunRecord
from cost.unit_costs import ChatCost, NotKnown, UnitCosts, unit_costs
from infra.jobs.records import read_object
from infra.report.collect import Report, collect, evaluation_of
from infra.report.quality import evaluation_rows, samples
from infra.report.words import figure, number, p_text, signed
from stacks.spec import StackSpec

_SHOWN = ("perplexity", "function_name_accuracy", "argument_accuracy", "rougeL")
"""What decides whether a tuned model calls functions better, and that it lost no language."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatStep:
    """What a chat costs at one state of knowledge."""

    name: str
    cost: ChatCost
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """The records of one demo and the report that they are part of."""

    report: Report
    runs: Mapping[str, RunRecord]
    """By kind."""

    def of_job(self, name: str) -> str:
        """What came of the job, in one line; nothing where no record says."""
        record = next((each for each in self.runs.values() if each.job == name), None)
        if record is None:
            return ""
        told = _TOLD.get(record.kind)
        try:
            return "" if told is None else told.format_map(_Shown(record.metrics))
        except KeyError:
            return ""

    def num_rows(self) -> str:
        """Rows that both models answered; perplexity reads more of them."""
        base = (self._evaluation() or {}).get("base_model", {})
        return str(base.get("num_rows", "?"))

    def quality(self) -> list[tuple[str, str, str, str, str]]:
        """Metric, base, fine-tuned, difference with its interval, p-value."""
        found = self._evaluation()
        if found is None:
            return []
        by_key = {row["key"]: row for row in evaluation_rows(found)}
        return [_quality_row(by_key[key]) for key in _SHOWN if key in by_key]

    def sample(self) -> tuple[str, str, str, str] | None:
        """A held-out question, the answers of base and fine-tuned model, the reference."""
        found = samples(self._evaluation())
        if not found:
            return None
        first = found[0]
        return _question(first["input"]), first["base"], first["tuned"], first["reference"]

    def curve(self) -> LoadCurve | None:
        """The points of the load test."""
        record = self.runs.get(Kind.LOAD)
        return None if record is None else record.curve

    def served_model(self) -> str:
        """Name of the model that was asked."""
        record = self.runs[Kind.LOAD]
        asked = None if record.curve is None else record.curve.model
        return str(asked or record.model)

    def load_lengths(self) -> tuple[Decimal, Decimal] | None:
        """Mean tokens of the load test's prompts and answers; None where it does not say."""
        metrics = self.runs[Kind.LOAD].metrics if Kind.LOAD in self.runs else {}
        read, written = metrics.get("mean_prompt_tokens"), metrics.get("mean_output_tokens")
        return None if read is None or written is None else (read, written)

    def chat_steps(self) -> list[ChatStep]:
        """What a chat costs as assumed, as evaluated one at a time and in batches, as served."""
        assumed = _chats(self.report.assumed)[:1]
        steps = [ChatStep(name="assumed", cost=each, source=each.speed.source) for each in assumed]
        for row in self._measured(Kind.EVALUATE):
            size = row.speed.batch_size
            name = "one at a time" if size == 1 else f"{size} at a time"
            steps.append(ChatStep(name=name, cost=row, source=self._job(Kind.EVALUATE)))
        for row in self._measured(Kind.LOAD):
            if row.speed.operating is not None:
                name = f"served, {row.speed.batch_size} streams"
                steps.append(ChatStep(name=name, cost=row, source=self._job(Kind.LOAD)))
        return steps

    def not_priced(self) -> list[str]:
        """Why the load test has no price, where it has none."""
        if Kind.LOAD not in self.runs:
            return []
        return [str(each) for each in self._units(Kind.LOAD).no_operating_points]

    def adapter(self) -> str:
        """Where the cluster keeps the tuned adapter."""
        record = self.runs.get(Kind.TRAIN)
        artifacts = read_object(Path(record.path)).get("artifacts", {}) if record else {}
        return str(artifacts.get("adapter_dir", "{place:chkpt}/latest"))

    def _evaluation(self) -> Mapping[str, Any] | None:
        record = self.runs.get(Kind.EVALUATE)
        return None if record is None else evaluation_of(Path(record.path).parent)

    def _measured(self, kind: Kind) -> list[ChatCost]:
        """Rows that this one record gives, fewest at once first."""
        if kind not in self.runs:
            return []
        rows = _chats(self._units(kind))
        of_record = [row for row in rows if row.speed.date is not None]
        return sorted(of_record, key=lambda row: row.speed.batch_size)

    def _units(self, kind: Kind) -> UnitCosts:
        report = self.report
        return unit_costs(report.spec, report.bill.estimate, (self.runs[kind],))

    def _job(self, kind: Kind) -> str:
        record = self.runs[kind]
        return f"measured by {record.job}, job {record.job_id}"


class _Shown(dict[str, str]):
    """Metrics as text."""

    def __init__(self, metrics: Mapping[str, Decimal]) -> None:
        super().__init__({name: number(value) for name, value in metrics.items()})


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
    report = collect(spec, state)
    wanted = set(folders.values())
    runs = {record.kind: record for record in report.records if Path(record.path).parent in wanted}
    return Outcomes(report=report, runs=runs)


def _chats(units: UnitCosts) -> tuple[ChatCost, ...]:
    return () if isinstance(units.chats, NotKnown) else units.chats


def _quality_row(row: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    unit = row["unit"]
    before, after = (figure(row[name], unit) for name in ("before", "after"))
    if row["p_value"] is None:
        return row["name"], before, after, row["change"], ""
    difference = f"{signed(row['after'] - row['before'], unit)}{' points' if unit else ''}"
    shown = f"{difference} ({signed(row['low'], unit)} to {signed(row['high'], unit)})"
    return row["name"], before, after, shown, p_text(row["p_value"])


def _question(prompt: str) -> str:
    """The last thing that the user said of a prompt that holds a whole conversation."""
    return prompt.rstrip().splitlines()[-1] if prompt.strip() else prompt
