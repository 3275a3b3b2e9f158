"""Limits that a stack sets on its bill, and whether it keeps them: limits(units) -> one a rule.

Money is held against the most that the stack may cost: at max_nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from cost.chat.unit_costs import BillPart, NotKnown, UnitCosts
from cost.report.layout import Table, number, picked, small_usd_text, usd_text
from cost.resources.lines import Scope
from stacks.errors import Level, Problem
from stacks.spec.cost import PolicyLevel
from stacks.spec.nodes import Billing

if TYPE_CHECKING:
    from cost.choose.alternatives import Alternative


_UNTOLD: Final = "not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One rule of the policy with what the stack comes to; not known until that is told."""

    key: str
    """Config key of the rule, such as `policy.max_usd_per_month`."""
    got: str = _UNTOLD
    """What the stack comes to, in a few words."""
    allowed: str
    is_kept: bool | None = None
    """None when it cannot be told; `why` says the reason."""
    why: str = ""
    """What `got` rests on or misses; empty when there is nothing to say."""
    value: Decimal | None = None
    """What was compared, in the unit of the key; None where the rule compares no number."""
    most: Decimal | None = None
    """The greatest value that keeps the rule."""


def limits(units: UnitCosts) -> tuple[Limit, ...]:
    """Every rule that the stack sets, in the order of its fields."""
    return (
        *_total(units, "max_usd_per_hour"),
        *_total(units, "max_usd_per_month"),
        *_chat(units),
        *_on_demand_gpus(units),
        *_idle_share(units),
    )


def _total(units: UnitCosts, name: str) -> Iterator[Limit]:
    policy, total = units.spec.policy, units.estimate.total
    hourly = name == "max_usd_per_hour"
    most = policy.max_usd_per_hour if hourly else policy.max_usd_per_month
    if most is None:
        return
    usd = total.hourly_high_usd if hourly else total.high_usd
    got, allowed = usd_text(usd), usd_text(most)
    if usd != most and got == allowed:
        # As printed elsewhere they would look the same.
        got, allowed = f"${number(usd)}", f"${number(most)}"
    is_kept, why = _within(units, usd, most)
    yield Limit(
        key=f"policy.{name}",
        got=f"{total.least}{got}",
        allowed=f"{allowed} {'an hour' if hourly else 'a month'}",
        is_kept=is_kept,
        why=why,
        value=usd,
        most=most,
    )


def _within(units: UnitCosts, usd: Decimal, most: Decimal) -> tuple[bool | None, str]:
    """Whether the amount keeps the limit; None, and why, when a declared line has no price.

    What the provider may bill beyond the declared resources does not keep a limit from being told.
    """
    unpriced = units.estimate.unpriced
    if usd > most or not any(line.scope is Scope.MAIN for line in unpriced):
        return usd <= most, ""
    return None, f"not priced: {', '.join(line.name for line in unpriced)}"


def _chat(units: UnitCosts) -> Iterator[Limit]:
    most, rows = units.spec.policy.max_usd_per_chat, units.chats
    if most is None:
        return
    allowed = f"{small_usd_text(most)} a chat"
    limit = Limit(key="policy.max_usd_per_chat", allowed=allowed, most=most)
    if isinstance(rows, NotKnown):
        yield replace(limit, why=str(rows))
        return
    # The row that the output `cost.per_chat_usd` names.
    row = rows[0]
    usd = row.cluster_high_usd
    is_kept, why = _within(units, usd, most)
    why = "; ".join(filter(None, (f"{row.speed.scenario}, whole cluster", why)))
    yield replace(limit, got=small_usd_text(usd), is_kept=is_kept, why=why, value=usd)


def _on_demand_gpus(units: UnitCosts) -> Iterator[Limit]:
    if units.spec.policy.on_demand_gpus:
        return
    names = [
        worker.name
        for worker in units.spec.nodes.workers
        if worker.billing is Billing.ON_DEMAND and worker.gpus
    ]
    yield Limit(
        key="policy.on_demand_gpus",
        got=f"on demand: {', '.join(names)}" if names else "none on demand",
        allowed="preemptible or reserved GPUs",
        is_kept=not names,
    )


def _idle_share(units: UnitCosts) -> Iterator[Limit]:
    most, rows = units.spec.policy.max_idle_share, units.chats
    if most is None:
        return
    allowed = f"{_percent(most)} of serving time idle"
    limit = Limit(key="policy.max_idle_share", allowed=allowed, most=most)
    demand = units.spec.chat.chats_per_day
    if demand is None or isinstance(rows, NotKnown):
        why = str(rows) if demand is not None else "the stack declares no chat.chats_per_day"
        yield replace(limit, why=why)
        return
    share, why = rows[0].idle_share, f"{demand:,} chats a day, {rows[0].speed.scenario}"
    yield replace(limit, got=f"{_percent(share)} idle", is_kept=share <= most, why=why, value=share)


def _percent(share: Decimal) -> str:
    text = f"{100 * share:.2f}"
    return f"{text.rstrip('0').rstrip('.')} %"


def policy_problems(units: UnitCosts) -> tuple[Problem, ...]:
    """A problem for every limit that is broken or cannot be told, with the cheapest way out."""
    found = limits(units)
    if all(limit.is_kept for limit in found):
        return ()
    instead = None
    if units.spec.attached is None and any(limit.is_kept is False for limit in found):
        # Only a refused stack pays for the import: a preview has 100 ms for all cost work.
        from cost.choose.alternatives import cheapest_within_limits

        instead = cheapest_within_limits(units)
    return tuple(_problem(units, limit, instead) for limit in found if limit.is_kept is not True)


def policy_part(units: UnitCosts) -> Iterable[BillPart]:
    """The limits as a table and as plain values; no part where the stack sets none."""
    found = limits(units)
    if not found:
        return
    kept = {None: _UNTOLD, True: "yes", False: "BROKEN"}
    yield BillPart(
        name="policy",
        tables=(
            Table(
                title=f"Policy of {units.spec.name} ({units.spec.policy.level})",
                headings=("Rule", "Allowed", "Stack", "Kept"),
                rows=tuple(
                    (
                        limit.key.removeprefix("policy."),
                        limit.allowed,
                        limit.got,
                        kept[limit.is_kept],
                    )
                    for limit in found
                ),
                num_text_columns=4,
                bad_rows=frozenset(
                    index for index, limit in enumerate(found) if limit.is_kept is False
                ),
            ),
        ),
        notes=tuple(f"{limit.key}: {limit.why}." for limit in found if limit.why),
        data=lambda: {**picked(units.spec.policy, "level"), "limits": list(map(_plain, found))},
    )


def _problem(units: UnitCosts, limit: Limit, instead: Alternative | None) -> Problem:
    path = f"{units.spec.name}.{limit.key}"
    if limit.is_kept is None:
        message = f"cannot be told whether it is kept ({limit.allowed}): {limit.why}"
        return Problem(level=Level.WARNING, path=path, message=message)
    strict = units.spec.policy.level is PolicyLevel.ERROR
    why = f" ({limit.why})" if limit.why else ""
    return Problem(
        level=Level.ERROR if strict else Level.WARNING,
        path=path,
        message=f"{limit.got}{why}, but allowed is {limit.allowed}; "
        + "; ".join(_fixes(units, instead)),
    )


def _fixes(units: UnitCosts, instead: Alternative | None) -> Iterator[str]:
    ask = f"soperator cost --stack {units.spec.name} --alternatives"
    if instead is None:
        if units.spec.attached is None:
            yield f"no change of one nodeset keeps every limit ({ask} lists what comes near)"
        yield "raise the limit or declare less"
        return
    from cost.choose.alternatives import summary_text

    yield f"the cheapest that keeps every limit: {summary_text(instead, units.estimate)}"
    yield f"others: {ask}"


def _plain(limit: Limit) -> dict[str, object]:
    numbers = {name: getattr(limit, name) for name in ("value", "most")}
    texts = {name: None if value is None else f"{value:f}" for name, value in numbers.items()}
    return {**asdict(limit), "why": limit.why or None, **texts}
