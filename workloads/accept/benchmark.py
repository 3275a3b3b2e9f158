"""The acceptance suite under the name and options of a published benchmark: a script for torchrun.

Usage: torchrun --nproc_per_node=8 workloads/accept/benchmark.py --mode distributed --output FILE
Modes: health, single, distributed, full. A rank ends with 0 for PASS, 1 for FAIL, 69 for NOT RUN;
torchrun makes 1 of both, and the outcome is in the file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

if __name__ == "__main__" and not __package__:
    # A script's own folder comes first on the path, and holds modules with common names.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from workloads.common.exit_codes import ExitCode, WorkloadError, exit_code_of, reason_of
from workloads.common.log import log
from workloads.recipes.accept import STAGES, StageName

MODES: Final[dict[str, tuple[StageName, ...]]] = {
    "health": ("readiness",),
    "single": ("readiness", "compute"),
    "distributed": ("readiness", "connectivity", "collectives", "training"),
    "full": STAGES,
}


def main(arguments: Sequence[str] | None = None) -> ExitCode:
    """Run one mode, write its result to --output and return the exit code; all ranks agree."""
    parser = argparse.ArgumentParser(prog="benchmark.py")
    parser.add_argument("--mode", choices=list(MODES), default="full")
    parser.add_argument("--output", type=Path, help="file of the result, written by rank 0")
    parser.add_argument("--config", help="recipe; accept_gpu, or accept_cpu without GPUs")
    parser.add_argument(
        "--platform", help="such as gpu-h100-sxm; told by the GPU's name by default"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="sets")
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except WorkloadError as error:
        log(f"{error.exit_code.name}: {error}", every_rank=True)
        return error.exit_code
    except RuntimeError as error:  # torch, gloo and NCCL
        log(reason_of(error), every_rank=True)
        return exit_code_of(error)


def _run(options: argparse.Namespace) -> ExitCode:
    import torch

    from workloads.accept.gates import Report, check_lines, exit_code
    from workloads.accept.suite import run_suite
    from workloads.common.dist import world
    from workloads.common.exit_codes import ConfigError
    from workloads.common.places import Places
    from workloads.recipes import load_recipe

    name = options.config or ("accept_gpu" if torch.cuda.is_available() else "accept_cpu")
    stages = ", ".join(f'"{stage}"' for stage in MODES[options.mode])
    recipe = load_recipe(name, [f"accept.stages=[{stages}]", *options.sets])
    if recipe.accept is None:
        raise ConfigError(f"recipe '{name}' has no section 'accept'; give accept_gpu or accept_cpu")

    def write(report: Report) -> None:
        if options.output is not None:
            report.write(options.output)

    with world() as here:
        report = run_suite(here, recipe.accept, Places(), platform=options.platform, write=write)
    for line in check_lines(report.checks):
        log(line)
    log(report.outcome.replace("_", " "))
    return exit_code(report.outcome)


if __name__ == "__main__":
    from workloads.job import end

    end(main())
