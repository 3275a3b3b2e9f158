"""What a finetune cost and what it saves a chat: finetune(spec, estimate, units, records, apis).

Before is the base model, after the tuned one, both as one evaluation measured them. A difference of
speed between them has no interval, so nothing is made of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

from cost.chat.break_even import ApiCost
from cost.chat.speeds import (
    Basis,
    ChatCost,
    Speed,
    chat_cost,
    counting,
    model_name,
    positive,
    speeds,
)
from cost.chat.unit_costs import NotKnown, RunCost, UnitCosts, run_cost, submit_command
from cost.report.layout import rounded
from cost.resources.estimate import Estimate, known_sum
from cost.run_record import Lineage, RunRecord, lineage
from stacks.spec import StackSpec
from stacks.spec.cost import ChatSpec

BASE: Final = "base_"
"""What stands before a metric of the base model in the record of an evaluation."""
TUNED: Final = ""
"""The same of the tuned model."""
_LENGTH: Final = "message_length_avg"
_OUTPUT: Final = "output_tokens_per_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Payback:
    """The finetune against one other way to answer a chat."""

    against: str
    other_usd: Decimal
    """US dollars a chat of the other way."""
    ours_usd: Decimal
    """US dollars a chat of the tuned model."""
    investment_usd: Decimal | None
    """US dollars of training and evaluation; None where a price is not known."""
    chats_per_day: Decimal
    """Chats a day that the days are counted with."""

    @property
    def saving_usd(self) -> Decimal:
        """US dollars a chat less; below 0 the tuned model costs more."""
        return self.other_usd - self.ours_usd

    @property
    def chats(self) -> Decimal | None:
        """Chats after which the finetune has paid for itself; None: never, or not known."""
        if self.investment_usd is None or self.saving_usd <= 0:
            return None
        return self.investment_usd / self.saving_usd

    @property
    def days(self) -> Decimal | None:
        """Days of that many chats."""
        return None if self.chats is None else self.chats / self.chats_per_day


@dataclass(frozen=True, slots=True, kw_only=True)
class Finetune:
    """One finetune in dollars."""

    training: RunCost | NotKnown
    evaluation: RunCost | NotKnown
    base: ChatCost | None
    """The base model's chat at the largest batch of both models; None where it was not measured."""
    tuned_own_length: ChatCost | None
    """The tuned model's at the same speed, with answers as much shorter or longer as they were in
    the evaluation: merged it has the base's shape, and each speed was measured once."""
    length_ratio: Decimal | None
    """Mean characters of the tuned model's answers over the base model's."""
    served: ChatCost | None
    """The tuned model at the operating point of the newest load test that asked it."""
    paybacks: tuple[Payback, ...]

    @property
    def investment_usd(self) -> Decimal | None:
        """US dollars of the nodes of training and evaluation; None where one is not known."""
        runs = (self.training, self.evaluation)
        return known_sum(None if isinstance(run, NotKnown) else run.nodes_usd for run in runs)

    @property
    def now(self) -> ChatCost | None:
        """What a chat costs now: served under load where that was measured, else as evaluated."""
        return self.served or self.tuned_own_length or self.base


def finetune(
    spec: StackSpec,
    estimate: Estimate,
    units: UnitCosts,
    records: Sequence[RunRecord],
    apis: Sequence[ApiCost] = (),
) -> Finetune:
    """The finetune that was evaluated last, from its own runs alone."""
    line = lineage(spec.name, records)
    evaluated = line.evaluation
    # It counts where it measured both models and is of this stack's chat.
    if evaluated is not None and (
        f"{BASE}{_OUTPUT}" not in evaluated.metrics or not counting(spec, (evaluated,))
    ):
        evaluated = None
    base = own = ratio = None
    if evaluated is not None:
        base = _cost(spec.chat, units, evaluated)
        metrics = evaluated.metrics
        before, after = metrics.get(f"{BASE}{_LENGTH}"), metrics.get(_LENGTH)
        if before and after:
            ratio = after / before
            tokens = max(spec.chat.turns, int(rounded(spec.chat.output_tokens * ratio, Decimal(1))))
            own = _cost(replace(spec.chat, output_tokens=tokens), units, evaluated)
    found = Finetune(
        training=units.run,
        evaluation=NotKnown(
            reason="no evaluation of this stack's chat model with both models has passed",
            command=submit_command(spec, "workloads.evaluate"),
        )
        if evaluated is None
        else run_cost(spec, estimate, evaluated),
        base=base,
        tuned_own_length=own,
        length_ratio=ratio,
        served=_served(spec, units, line),
        paybacks=(),
    )
    return replace(found, paybacks=tuple(_paybacks(found, apis)))


def asked_tuned(record: RunRecord) -> bool:
    """Whether the load test asked a model by another name than that of the base.

    A server has base and tuned model at once and names them apart (docs/serving.md).
    """
    asked = None if record.curve is None else record.curve.model
    if asked is None or record.model is None:
        return False
    return model_name(asked) != model_name(record.model)


def usd_of(row: ChatCost) -> Decimal:
    """US dollars a chat of the serving nodes; of the whole cluster where none is named."""
    return row.cluster_low_usd if row.serving_usd is None else row.serving_usd


def _paybacks(found: Finetune, apis: Sequence[ApiCost]) -> Iterator[Payback]:
    if found.base is not None and found.tuned_own_length is not None:
        against = "base model, tuned answers at their own length"
        yield _payback(found, against, usd_of(found.base), found.tuned_own_length)
    if found.now is not None:
        for api in apis:
            yield _payback(found, api.model, api.usd, found.now)


def _payback(found: Finetune, against: str, other_usd: Decimal, ours: ChatCost) -> Payback:
    demand = ours.chats_per_day
    if ours.demand_per_day is not None:
        demand = min(demand, ours.demand_per_day)
    return Payback(
        against=against,
        other_usd=other_usd,
        ours_usd=usd_of(ours),
        investment_usd=found.investment_usd,
        chats_per_day=demand,
    )


def _cost(chat: ChatSpec, units: UnitCosts, record: RunRecord) -> ChatCost | None:
    """The chat at the base model's speed, at the largest batch that was measured of both models."""
    metrics = record.metrics
    has_batch = all(positive(metrics, f"{each}batch_{_OUTPUT}") for each in (BASE, TUNED))
    name, batch_size = ("batch_", int(metrics.get("batch_size", 1))) if has_batch else ("", 1)
    output = positive(metrics, f"{BASE}{name}{_OUTPUT}")
    if output is None:
        return None
    prefill = positive(metrics, f"{BASE}{name}prefill_tokens_per_s")
    speed = Speed(
        scenario=f"base model, batch {batch_size}",
        output_tokens_per_s=output,
        basis=Basis.MEASURED,
        source=f"evaluation, job {record.job_id}",
        date=record.finished_at.date(),
        batch_size=batch_size,
        prefill_tokens_per_s=prefill,
        prefill_basis=None if prefill is None else Basis.MEASURED,
    )
    return chat_cost(chat, speed, units.hourly)


def _served(spec: StackSpec, units: UnitCosts, line: Lineage) -> ChatCost | None:
    """The tuned model's operating point of the newest load test; one of each engine counts."""
    newest: dict[str | None, RunRecord] = {}
    for record in counting(spec, line.loads):
        if asked_tuned(record):
            newest.pop(record.engine, None)
            newest[record.engine] = record
    for record in reversed(newest.values()):
        for speed in speeds(spec, (record,)):
            if speed.operating is not None:
                return chat_cost(spec.chat, speed, units.hourly)
    return None
