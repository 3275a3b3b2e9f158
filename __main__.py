"""The program: stack file -> spec -> checks -> bill and components -> outputs."""

import os
from pathlib import Path

import pulumi
from pulumi.runtime.config import CONFIG, get_config_env

from cost import summary
from cost.estimate import estimate, price_problems
from cost.layout import Format
from cost.price_book import PriceBook
from cost.table import render
from cost.unit_costs import unit_costs
from infra.components.stack import Stack
from infra.jobs.records import load_records
from stacks.check import Level, check
from stacks.load import StackError, load_config

ROOT = Path(__file__).resolve().parent
STATE = Path(os.environ.get("SOPERATOR_STATE") or ROOT / ".soperator")


def main() -> None:
    """Declares the stack, or refuses it with every problem at once."""
    try:
        # The official language host hands over the environment, the automation server a variable.
        spec = load_config(CONFIG.get() or get_config_env(), pulumi.get_stack())
    except StackError as error:
        raise pulumi.RunError(str(error)) from error
    book = PriceBook.load(spec.prices)
    problems = price_problems(check(spec), spec, book)
    # The engine prints the level itself.
    errors = [
        str(problem).removeprefix(f"{Level.ERROR}: ")
        for problem in problems
        if problem.level is Level.ERROR
    ]
    if errors:
        raise pulumi.RunError("\n".join(errors))
    warnings = [str(problem).removeprefix(f"{Level.WARNING}: ") for problem in problems]
    for warning in warnings:
        pulumi.log.warn(warning)

    bill = estimate(spec, book)
    units = unit_costs(spec, bill, load_records(STATE, spec.name))
    pulumi.log.info("\n" + render(bill, units, Format.TABLE))

    stack = Stack(spec, root=ROOT, build_folder=STATE / "build")
    for name, value in stack.outputs.items():
        pulumi.export(name, value)
    pulumi.export("cost", summary.outputs(bill, units))
    pulumi.export("warnings", warnings)


main()
