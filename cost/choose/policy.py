"""What a broken limit does: policy_problems(inputs) for the preview, policy_part for people.

The budget is another matter: it is checked when a job is submitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from decimal import Decimal
from typing import TYPE_CHECKING

from cost.chat.unit_costs import Inputs, Part
from cost.choose.limits import Limit, limits
from cost.report.layout import Table
from stacks.errors import Level, Problem
from stacks.spec.cost import PolicyLevel

if TYPE_CHECKING:
    from cost.choose.alternatives import Alternative


def policy_problems(inputs: Inputs) -> tuple[Problem, ...]:
    """A problem for every limit that is broken or cannot be told, with the cheapest way out."""
    found = limits(inputs)
    if all(limit.is_kept for limit in found):
        return ()
    broken = any(limit.is_kept is False for limit in found)
    instead = None
    if broken:
        # Only a refused stack pays for the import: a preview has 100 ms for all cost work.
        from cost.choose.alternatives import cheapest_within_limits

        instead = cheapest_within_limits(inputs)
    return tuple(_problem(inputs, limit, instead) for limit in found if limit.is_kept is not True)


def policy_part(inputs: Inputs) -> Iterable[Part]:
    """The limits as a table and as plain values; no part where the stack sets none."""
    found = limits(inputs)
    if not found:
        return
    yield Part(
        name="policy",
        tables=(
            Table(
                title=f"Policy of {inputs.spec.name} ({inputs.spec.policy.level})",
                headings=("Rule", "Allowed", "Stack", "Kept"),
                rows=tuple(
                    (limit.key.removeprefix("policy."), limit.allowed, limit.got, _kept(limit))
                    for limit in found
                ),
                num_text_columns=4,
                bad_rows=frozenset(
                    index for index, limit in enumerate(found) if limit.is_kept is False
                ),
            ),
        ),
        notes=tuple(f"{limit.key}: {limit.why}." for limit in found if limit.why),
        plain={"level": str(inputs.spec.policy.level), "limits": [_plain(item) for item in found]},
    )


def _problem(inputs: Inputs, limit: Limit, instead: Alternative | None) -> Problem:
    path = f"{inputs.spec.name}.{limit.key}"
    if limit.is_kept is None:
        message = f"cannot be told whether it is kept ({limit.allowed}): {limit.why}"
        return Problem(level=Level.WARNING, path=path, message=message)
    strict = inputs.spec.policy.level is PolicyLevel.ERROR
    why = f" ({limit.why})" if limit.why else ""
    return Problem(
        level=Level.ERROR if strict else Level.WARNING,
        path=path,
        message=f"{limit.got}{why}, but allowed is {limit.allowed}; "
        + "; ".join(_fixes(inputs, instead)),
    )


def _fixes(inputs: Inputs, instead: Alternative | None) -> Iterator[str]:
    ask = f"soperator cost --stack {inputs.spec.name} --alternatives"
    if instead is None:
        yield f"no change of one nodeset keeps every limit ({ask} lists what comes near)"
        yield "raise the limit or declare less"
        return
    from cost.choose.alternatives import summary_text

    yield f"the cheapest that keeps every limit: {summary_text(instead, inputs.estimate)}"
    yield f"others: {ask}"


def _kept(limit: Limit) -> str:
    return "not known" if limit.is_kept is None else "yes" if limit.is_kept else "BROKEN"


def _plain(limit: Limit) -> dict[str, object]:
    return {
        **asdict(limit),
        "why": limit.why or None,
        "value": _number(limit.value),
        "most": _number(limit.most),
    }


def _number(value: Decimal | None) -> str | None:
    return None if value is None else f"{value:f}"
