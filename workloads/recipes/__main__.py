"""Prints a recipe with its settings, or everything that is wrong with it; no GPU, no model.

Usage: python -m workloads.recipes NAME [--set KEY=VALUE ...]
`soperator submit` asks this before it queues a job.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from workloads.common.exit_codes import ExitCode, WorkloadError, reason_of
from workloads.common.run_config import config_text
from workloads.recipes import load_recipe, read_recipe


def main(arguments: Sequence[str] | None = None) -> ExitCode:
    """Print the recipe; return 2 and say what is wrong when a job would refuse it."""
    parser = argparse.ArgumentParser(prog="python -m workloads.recipes")
    parser.add_argument("recipe", help="name in workloads/recipes, or a file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    options = parser.parse_args(arguments)
    try:
        load_recipe(options.recipe, options.overrides)
        text = config_text(read_recipe(options.recipe, options.overrides)[1])
    except WorkloadError as error:
        print(reason_of(error), file=sys.stderr)
        return error.exit_code
    sys.stdout.write(text)
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
