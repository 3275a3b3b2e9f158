"""The bills that `soperator cost` prints: of a declared stack, of a stack file, of a checkout.

Owns where their declarations, prices and run records are. What is damaged is refused with its file,
so that no figure is printed that a damaged file should have changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from infra.cli import context
from stacks.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cost.bill.bill import Bill
    from cost.diff.comment import StackChange
    from cost.prices.book import PriceBook
    from stacks.problem import Problem
    from stacks.spec import StackSpec

_STACKS = Path("stacks")
_PRICES = Path("cost/prices")


def of_stack(stack: str) -> Bill:
    """The bill of a declared stack, with the runs that were pulled here."""
    from infra.operate.prices import price_book

    spec = context.spec(stack)
    return _bill(spec, price_book(spec, context.state_root()))


def of_file(path: Path) -> Bill:
    """The bill of `Pulumi.NAME.yaml`, with the price books of the checkout that it is in."""
    from cost.prices.book import PRICES_DIR, PriceBook, layered
    from stacks.load import load_stack

    name = path.name.removeprefix("Pulumi.").removesuffix(".yaml")
    if path.name != f"Pulumi.{name}.yaml" or not path.is_file():
        raise UserError(f"--compare {path}: no such stack file; give one called Pulumi.NAME.yaml")
    spec = load_stack(name, path.parent, environ=context.environ())
    of_checkout = path.resolve().parent.parent / _PRICES
    prices_dir = of_checkout if of_checkout.is_dir() else PRICES_DIR
    return _bill(spec, layered(spec, book=PriceBook.load(spec.prices, prices_dir)))


def since_checkout(folder: Path, stacks: Sequence[str] = ()) -> tuple[StackChange, ...]:
    """What became of the stacks of another checkout; every stack of either where none is named."""
    from cost.diff.comment import StackChange
    from cost.prices.price import PriceBookError
    from stacks.load import StackError, stack_names

    then = folder / _STACKS
    if not then.is_dir():
        raise UserError(f"--compare {folder}: no folder {_STACKS} in it; give a checkout")
    was, now = set(stack_names(then)), set(stack_names())
    found: list[StackChange] = []
    for name in stacks or sorted(was | now):
        after = of_stack(name) if name in now else None
        before, problem = None, None
        if name in was:
            try:
                before = of_file(then / f"Pulumi.{name}.yaml")
            except (StackError, PriceBookError, UserError) as error:
                problem = str(error).splitlines()[0]
        found.append(StackChange(name=name, before=before, after=after, problem=problem))
    return tuple(found)


def _bill(spec: StackSpec, book: PriceBook) -> Bill:
    """The bill; refused are errors other than what the stack may not afford, which a bill shows."""
    from cost.bill.bill import bill
    from infra.jobs.records import load_whole_records

    found = bill(spec, book, load_whole_records(context.state_root(), spec.name))
    refused = [problem for problem in found.errors if not _is_unaffordable(problem, spec)]
    if refused:
        raise UserError("\n".join(str(problem) for problem in refused))
    return found


def _is_unaffordable(problem: Problem, spec: StackSpec) -> bool:
    """Whether a limit is passed; a limit that is declared wrong is refused like anything else."""
    if problem.path.startswith(f"{spec.name}.quotas["):
        return problem.path.endswith("].limit")
    return problem.path.startswith(f"{spec.name}.policy.")
