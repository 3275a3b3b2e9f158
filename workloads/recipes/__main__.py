"""Prints a recipe with its settings, or everything that is wrong with it; no GPU, no model.

Usage: python -m workloads.recipes NAME [--set KEY=VALUE ...] [--trials]
`soperator submit` asks this before it queues a job, or with --trials a search.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from workloads.common.exit_codes import ExitCode, WorkloadError, reason_of
from workloads.recipes import config_text, load_recipe, read_recipe


def main(arguments: Sequence[str] | None = None) -> ExitCode:
    """Print the recipe; return 2 and say what is wrong when a job would refuse it."""
    parser = argparse.ArgumentParser(prog="python -m workloads.recipes")
    parser.add_argument("recipe", help="name in workloads/recipes, or a file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument(
        "--trials",
        action="store_true",
        help="read lists of settings as JSON; say of each list, after --set, what is wrong",
    )
    options = parser.parse_args(arguments)
    if options.trials:
        return _trials(options.recipe, options.overrides, json.load(sys.stdin))
    try:
        load_recipe(options.recipe, options.overrides)
        text = config_text(read_recipe(options.recipe, options.overrides)[1])
    except WorkloadError as error:
        print(reason_of(error), file=sys.stderr)
        return error.exit_code
    sys.stdout.write(text)
    return ExitCode.OK


def _trials(recipe: str, overrides: Sequence[str], trials: Sequence[Sequence[str]]) -> ExitCode:
    """Say each reason once, with the first trial that it is of and how many more there are."""
    wrong: dict[str, list[int]] = {}
    code = ExitCode.OK
    for number, settings in enumerate(trials):
        try:
            load_recipe(recipe, [*overrides, *settings])
        except WorkloadError as error:
            wrong.setdefault(reason_of(error), []).append(number)
            code = error.exit_code
    for reason, numbers in wrong.items():
        more = f" and {len(numbers) - 1} more" if len(numbers) > 1 else ""
        print(
            f"trial {numbers[0]} ({' '.join(trials[numbers[0]])}){more}: {reason}", file=sys.stderr
        )
    return code


if __name__ == "__main__":
    sys.exit(main())
