"""The one entry of the cost engine: bill(spec, book, records) -> Bill, which all output comes from.

text = render(bill(spec, PriceBook.load(spec.prices), records), Format.TABLE)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cost.bill.left_running import reservations_part
from cost.chat.break_even import break_even_part, model_problems
from cost.chat.unit_costs import Amount, Inputs, Part, PartMaker, UnitCosts, unit_costs
from cost.choose.limits import policy_part, policy_problems
from cost.prices.book import PriceBook
from cost.resources.estimate import Estimate, estimate, price_problems
from cost.run_record import RunRecord
from cost.runs.pipelines import pipelines_part, schedules_part
from cost.runs.runs import runs
from cost.runs.searches import searches_part, shifts_part
from cost.size.shape import chat_problems
from stacks.check import check
from stacks.errors import Level, Problem
from stacks.spec import StackSpec

PARTS: Final[tuple[PartMaker, ...]] = (
    break_even_part, runs, reservations_part, pipelines_part, searches_part, schedules_part,
    shifts_part, policy_part
)  # fmt: skip
"""Every subject beyond the lines and the unit costs, in the order in which they are printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What a stack costs and every figure that follows from it."""

    spec: StackSpec
    book: PriceBook
    estimate: Estimate
    unit_costs: UnitCosts
    problems: tuple[Problem, ...]
    """Checks of the stack with their US dollars, errors first."""
    parts: tuple[Part, ...] = ()
    records: tuple[RunRecord, ...] = ()
    """Run records that measured speeds may come from."""

    @property
    def inputs(self) -> Inputs:
        """What the parts were computed from."""
        return Inputs(
            spec=self.spec,
            book=self.book,
            estimate=self.estimate,
            unit_costs=self.unit_costs,
            records=self.records,
        )

    @property
    def errors(self) -> tuple[Problem, ...]:
        """Problems that refuse the stack."""
        return tuple(problem for problem in self.problems if problem.level is Level.ERROR)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """Problems that cost money or comfort."""
        return tuple(problem for problem in self.problems if problem.level is Level.WARNING)

    @property
    def amounts(self) -> tuple[Amount, ...]:
        """Unit costs that the next preview compares with."""
        return tuple(amount for part in self.parts for amount in part.amounts)


def bill(spec: StackSpec, book: PriceBook, records: Sequence[RunRecord] = ()) -> Bill:
    """The stack's bill; records replace assumed speeds where they measure this stack."""
    total = estimate(spec, book)
    units = unit_costs(spec, total, records)
    inputs = Inputs(spec=spec, book=book, estimate=total, unit_costs=units, records=records)
    problems = price_problems(check(spec), spec, book)
    # A part may rely on what the checks allow.
    is_valid = not any(problem.level is Level.ERROR for problem in problems)
    if is_valid:
        problems += (*policy_problems(inputs), *model_problems(spec), *chat_problems(spec))
        problems = tuple(sorted(problems, key=lambda problem: problem.level is Level.WARNING))
    return Bill(
        spec=spec,
        book=book,
        estimate=total,
        unit_costs=units,
        problems=problems,
        parts=tuple(part for make in PARTS for part in make(inputs)) if is_valid else (),
        records=tuple(records),
    )
