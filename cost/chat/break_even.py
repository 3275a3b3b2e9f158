"""Chats a day from which self-hosting is cheaper than an API: break_even(units, api_book).

A cluster costs the same however few chats it answers, an API costs by the chat. They meet at
dollars a day over dollars a chat, unless the room of the serving nodes ends before: then never.

Also what a finetune cost and what it saves a chat: finetune(units, apis).
Before is the base model, after the tuned one, both as one evaluation measured them. A difference of
speed between them has no interval, so nothing is made of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import groupby, product
from typing import Final

from cost.chat.speeds import (
    HOURS_PER_DAY,
    MILLION,
    Basis,
    ChatCost,
    HourlyCost,
    Speed,
    View,
    counting,
    model_name,
    positive,
    prompt_tokens,
    serving_workers,
    speeds,
)
from cost.chat.unit_costs import (
    MISSES,
    BillPart,
    NotKnown,
    RunCost,
    UnitCosts,
    percent,
    run_cost,
    submit_command,
)
from cost.prices.book import ApiPrice, ApiPriceBook, UnknownPrice
from cost.report.layout import GAP, UNKNOWN, Table, picked, rounded, small_usd_text, span
from cost.resources.estimate import Estimate, known_sum
from cost.run_record import Lineage, RunRecord, lineage
from cost.traced import named
from stacks.errors import Level, Problem
from stacks.spec import StackSpec
from stacks.spec.cost import ChatSpec
from stacks.spec.nodes import Billing


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCost:
    """What the reference chat costs at an API."""

    model: str
    """As the stack names it."""
    usd: Decimal
    """US dollars a chat."""
    price: ApiPrice


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """One scenario, view and kind of billing against one model of an API."""

    chat: ChatCost
    """The scenario: its `chats_per_day` are the room of the serving nodes."""
    view: View
    billing: Billing
    """How the serving nodeset is billed in this row."""
    api: ApiCost
    usd_per_day_low: Decimal
    """US dollars a day of self-hosting at min_nodes, however many chats are answered."""
    usd_per_day_high: Decimal

    @property
    def chats_per_day_low(self) -> Decimal | None:
        """Chats a day at which both cost the same, at min_nodes; None against a free API."""
        return self._meeting(self.usd_per_day_low)

    @property
    def chats_per_day_high(self) -> Decimal | None:
        """The same at max_nodes."""
        return self._meeting(self.usd_per_day_high)

    @property
    def is_reached(self) -> bool:
        """Whether the serving nodes have room for the chats at which self-hosting starts to win."""
        return self.fits(self.chats_per_day_low)

    @property
    def utilisation(self) -> Decimal | None:
        """Share of the room that must be used for self-hosting to win; over 1 is never."""
        chats = self.chats_per_day_low
        return None if chats is None else chats / self.chat.chats_per_day

    @property
    def serving_nodes_needed(self) -> int | None:
        """Serving nodes with room for the break-even of a cluster that costs no more for them."""
        chats = self.chats_per_day_low
        return None if chats is None else _whole(chats / self.chat.chats_per_day_of_node)

    def fits(self, chats_per_day: Decimal | None) -> bool:
        """Whether the serving nodes have room for the chats."""
        return chats_per_day is not None and chats_per_day <= self.chat.chats_per_day

    def self_hosted_usd(self, chats_per_day: Decimal) -> Decimal:
        """US dollars a chat of self-hosting at so many chats a day, at min_nodes."""
        return self.usd_per_day_low / chats_per_day

    def _meeting(self, usd_per_day: Decimal) -> Decimal | None:
        return usd_per_day / self.api.usd if self.api.usd else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEvens:
    """Every comparison of a stack, by scenario, then API model, then billing, then view."""

    rows: tuple[BreakEven, ...]
    apis: tuple[ApiCost, ...]
    unpriced: tuple[str, ...]
    """Why a declared model has no row."""
    paid_serving_nodes: int | None
    """Nodes of the serving nodeset that the cluster pays for anyway; None when none is named."""


def break_even(units: UnitCosts, api_book: ApiPriceBook) -> BreakEvens:
    """The stack's chats against the models that it names, in every billing that has a price."""
    spec = units.spec
    apis, unpriced = api_costs(spec.chat, api_book)
    workers = serving_workers(spec)
    declared = next((worker.billing for worker in workers), Billing.ON_DEMAND)
    billings = {declared: units.hourly, **hourly_by_billing(units.estimate, units.hourly)}
    return BreakEvens(
        rows=tuple(
            BreakEven(
                chat=chat,
                view=view,
                billing=billing,
                api=api,
                usd_per_day_low=low * HOURS_PER_DAY,
                usd_per_day_high=high * HOURS_PER_DAY,
            )
            for chat in units.known_chats
            for api in apis
            for billing, hourly in billings.items()
            for view, low, high in hourly.views
        ),
        apis=apis,
        unpriced=unpriced,
        paid_serving_nodes=None
        if spec.chat.serving_nodeset is None
        else max((spec.chat.serving_nodes, *(spec.nodes.counts(each)[0] for each in workers))),
    )


def hourly_by_billing(rates: Estimate, hourly: HourlyCost) -> Mapping[Billing, HourlyCost]:
    """The hourly cost with the serving nodes billed in every other way that has a price."""
    found: dict[Billing, HourlyCost] = {}
    spec = rates.spec
    named_workers = () if spec.chat.serving_nodeset is None else serving_workers(spec)
    for worker, billing in product(named_workers, Billing):
        now, other = (rates.billed_as(worker, each) for each in (worker.billing, billing))
        if isinstance(now, str) or isinstance(other, str):
            continue
        change, serving, alone = other - now, spec.chat.serving_nodes, hourly.serving_usd
        if not change:  # a kind without a price of its own says nothing new
            continue
        low, high = spec.nodes.counts(worker)
        found[billing] = HourlyCost(
            cluster_low_usd=hourly.cluster_low_usd + change * max(low, serving),
            cluster_high_usd=hourly.cluster_high_usd + change * max(high, serving),
            serving_usd=None if alone is None else alone + change * serving,
        )
    return found


def api_usd_per_chat(chat: ChatSpec, price: ApiPrice) -> Decimal:
    """US dollars of the chat at the API, with its price for cached input where it has one."""
    prompt = prompt_tokens(chat)
    cached = prompt * chat.cached_share
    cached_usd = price.usd_per_1m_cached_input
    usd = (
        (prompt - cached) * price.usd_per_1m_input
        + cached * (price.usd_per_1m_input if cached_usd is None else cached_usd)
        + chat.output_tokens * price.usd_per_1m_output
    )
    return usd / MILLION


def api_costs(
    chat: ChatSpec, api_book: ApiPriceBook
) -> tuple[tuple[ApiCost, ...], tuple[str, ...]]:
    """What the chat costs at the models that it names, and why a model has no price."""
    prices = [(model, api_book.find(model)) for model in chat.api_models]
    costs = tuple(
        ApiCost(
            model=model,
            usd=named(api_usd_per_chat(chat, price), "USD a chat of the API", model),
            price=price,
        )
        for model, price in prices
        if not isinstance(price, UnknownPrice)
    )
    return costs, tuple(price.reason for _, price in prices if isinstance(price, UnknownPrice))


def model_problems(spec: StackSpec) -> tuple[Problem, ...]:
    """A warning for every declared API model that nothing can be compared with."""
    if not spec.chat.api_models:  # no preview reads the prices for nothing
        return ()
    book = ApiPriceBook.load()
    return tuple(
        Problem(
            level=Level.WARNING,
            path=f"{spec.name}.chat.api_models[{index}]",
            message=f"{price.reason}; correct it, or add its price to cost/prices/api/",
        )
        for index, model in enumerate(spec.chat.api_models)
        if isinstance(price := book.find(model), UnknownPrice)
    )


NEVER: Final = "never"
_NAME: Final = "break_even"
UTILISATIONS: Final = (Decimal("0.1"), Decimal("0.25"), Decimal("0.5"), Decimal("0.75"), Decimal(1))


def break_even_part(units: UnitCosts) -> tuple[BillPart, ...]:
    """The comparison with the models that the stack names, and the charts of its chats."""
    models = units.spec.chat.api_models
    if isinstance(units.chats, NotKnown):
        return ()
    if not models:
        return (BillPart(name=_NAME, draw_figures=lambda: _charts(units, ())),)
    found = break_even(units, ApiPriceBook.load())
    return (
        BillPart(
            name=_NAME,
            tables=break_even_tables(found, units),
            notes=tuple(break_even_notes(found, units)),
            draw_figures=lambda: _charts(units, found.apis),
            data=lambda: plain_break_even(found),
        ),
    )


def _charts(units: UnitCosts, apis: Sequence[ApiCost]) -> tuple[str, ...]:
    # Only an HTML page draws: a preview has 100 ms for all cost work.
    from cost.chat.charts import chat_charts

    return chat_charts(units, apis)


def break_even_tables(found: BreakEvens, units: UnitCosts) -> tuple[Table, ...]:
    """Chats a day from which self-hosting is cheaper, then the cost of a chat by utilisation."""
    if not (units.known_chats and found.rows):
        return ()
    bound = ", at least" if units.estimate.total.is_lower_bound else ""
    return (_meetings(found, bound), _bands(found, units.known_chats, bound))


def break_even_notes(found: BreakEvens, units: UnitCosts) -> list[str]:
    """What the tables rest on and why a model or a row is missing."""
    notes = [f"Break-even: {reason}." for reason in found.unpriced]
    if any(not row.is_reached for row in found.rows):
        notes.append(
            f"{NEVER}: the room of the serving nodes (Chats/Day) ends first; even full, a chat "
            "costs more than the API asks."
        )
        notes += _more_nodes(found, units.estimate.total.least)
    if found.rows:
        notes.append(
            "An API's model is another model: the tables compare dollars for the same number of "
            "tokens, not answers."
        )
    notes += [
        f"{api.model}: {small_usd_text(api.usd)} a chat, "
        f"{'undated price, read on' if api.price.is_undated else 'price of'} {api.price.date}: "
        f"{api.price.source}."
        for api in found.apis
    ]
    return notes


def plain_break_even(found: BreakEvens) -> dict[str, object]:
    """The comparisons as plain values: money as text, None where there is none."""
    paths = (
        "chat.speed.scenario api_model=api.model api_usd_per_chat=api.usd billing view "
        "chats_per_day_low chats_per_day_high room_per_day=chat.chats_per_day is_reached "
        "chat.meets_slo"
    )
    return {
        "rows": [
            {
                **picked(row, paths, lambda usd: small_usd_text(usd).removeprefix("$")),
                "chats_per_day_low": _whole(row.chats_per_day_low),
                "chats_per_day_high": _whole(row.chats_per_day_high),
                "room_per_day": int(row.chat.chats_per_day),
            }
            for row in found.rows
        ],
        **picked(found, "unpriced"),
    }


def _meetings(found: BreakEvens, bound: str) -> Table:
    rows: list[tuple[str, ...]] = []
    for (scenario, meets_slo), of_scenario in groupby(
        found.rows, key=lambda row: (row.chat.speed.scenario, row.chat.meets_slo)
    ):
        name = f"{scenario}, {MISSES}" if meets_slo is False else scenario
        rows.append((name, "", "", "", "", "", ""))
        keyed = groupby(of_scenario, key=lambda row: (row.api, row.billing))
        for (api, billing), group in keyed:
            views = {row.view: row for row in group}
            rows.append(
                (
                    f"{GAP}{api.model}",
                    str(billing),
                    small_usd_text(api.usd),
                    *_meeting(views.get(View.CLUSTER)),
                    *_meeting(views.get(View.SERVING)),
                )
            )
    return Table(
        title=f"Break-even{bound}: self-hosting is cheaper from so many chats a day",
        headings=("Against", "Nodes", "API/Chat", "Cluster From", "Load", "Serving From", "Load"),
        rows=tuple(rows),
        num_text_columns=2,
    )


def _meeting(row: BreakEven | None) -> tuple[str, str]:
    """Chats a day and the utilisation that they are, or that there are none."""
    if row is None:
        return UNKNOWN, UNKNOWN
    if not row.is_reached or row.utilisation is None:
        return NEVER, "-"
    low, high = (
        f"{_whole(chats):,}" if row.fits(chats) else NEVER
        for chats in (row.chats_per_day_low, row.chats_per_day_high)
    )
    return span(low, high), percent(row.utilisation)


def _bands(found: BreakEvens, chats: tuple[ChatCost, ...], bound: str) -> Table:
    """Dollars a chat at parts of the room, as billed now, beside what the APIs ask."""
    rows: list[tuple[str, ...]] = []
    now = found.rows[0].billing
    for chat in chats:
        of_chat = {row.view: row for row in found.rows if row.chat is chat and row.billing is now}
        for view, row in of_chat.items():
            usd = [row.self_hosted_usd(share * chat.chats_per_day) for share in UTILISATIONS]
            rows.append((chat.speed.scenario, str(view), *map(small_usd_text, usd)))
    rows += [
        (api.model, "API", *[small_usd_text(api.usd)] * len(UTILISATIONS)) for api in found.apis
    ]
    return Table(
        title=f"Cost per chat{bound} by utilisation of the serving nodes",
        headings=("Scenario", "Who Pays", *(percent(share) for share in UTILISATIONS)),
        rows=tuple(rows),
        num_text_columns=2,
    )


def _more_nodes(found: BreakEvens, bound: str) -> list[str]:
    """Where the cluster would win if more of the nodes that it pays for served chats."""
    most = found.paid_serving_nodes
    if most is None:
        return []
    return [
        f"{row.chat.speed.scenario} against {row.api.model}, {row.billing}: the whole cluster wins "
        f"from {bound}{_whole(row.chats_per_day_low):,} chats a day when "
        f"{row.serving_nodes_needed} of its {most} nodes serve (chat.serving_nodes)."
        for row in found.rows
        if row.view is View.CLUSTER
        and not row.is_reached
        and row.serving_nodes_needed is not None
        and row.serving_nodes_needed <= most
    ]


def _whole(chats: Decimal | None) -> int | None:
    """The first whole number of chats at which self-hosting costs no more."""
    return None if chats is None else math.ceil(chats)


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
    apis: tuple[ApiCost, ...]
    """Other ways to answer a chat."""

    @property
    def investment_usd(self) -> Decimal | None:
        """US dollars of the nodes of training and evaluation; None where one is not known."""
        runs = (self.training, self.evaluation)
        return known_sum(None if isinstance(run, NotKnown) else run.nodes_usd for run in runs)

    @property
    def now(self) -> ChatCost | None:
        """What a chat costs now: served under load where that was measured, else as evaluated."""
        return self.served or self.tuned_own_length or self.base

    @property
    def paybacks(self) -> tuple[Payback, ...]:
        """Against the base model, then against each API."""
        others = [(api.model, api.usd, self.now) for api in self.apis]
        if self.base is not None:
            against = "base model, tuned answers at their own length"
            others = [(against, usd_of(self.base), self.tuned_own_length), *others]
        return tuple(
            Payback(
                against=against,
                other_usd=other_usd,
                ours_usd=usd_of(ours),
                investment_usd=self.investment_usd,
                chats_per_day=min(ours.chats_per_day, ours.demand_per_day or ours.chats_per_day),
            )
            for against, other_usd, ours in others
            if ours is not None
        )


def finetune(units: UnitCosts, apis: Sequence[ApiCost] = ()) -> Finetune:
    """The finetune that was evaluated last, from its own runs alone."""
    spec, line = units.spec, lineage(units.spec.name, units.records)
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
    return Finetune(
        training=units.run,
        evaluation=NotKnown(
            reason="no evaluation of this stack's chat model with both models has passed",
            command=submit_command(spec, "workloads.evaluate"),
        )
        if evaluated is None
        else run_cost(units.estimate, evaluated),
        base=base,
        tuned_own_length=own,
        length_ratio=ratio,
        served=_served(spec, units, line),
        apis=tuple(apis),
    )


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
    return ChatCost(chat, speed, units.hourly)


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
                return ChatCost(spec.chat, speed, units.hourly)
    return None
