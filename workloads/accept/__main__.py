"""The acceptance suite as a job: under torchrun, in an sbatch or as a Kubernetes Job.

Usage: python -m workloads.accept [--recipe accept_gpu] [--set accept.profile=quick]
       python -m workloads.accept --judge RESULT.json [RESULT.json] --platform gpu-h100-sxm
Writes acceptance.json. A rank ends with 0 for PASS, 1 for FAIL, 69 for NOT RUN; a bare torchrun
makes 1 of both, and the outcome is in the file. docs/acceptance.md.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from workloads.accept.gates import FILE_NAME, Report, check_lines
from workloads.common import hardware
from workloads.common.exit_codes import NotRunError, WorkloadError
from workloads.common.log import log
from workloads.job import Job, end, run_job, section
from workloads.recipes.accept import AcceptConfig

DEFAULT_RECIPE = "accept_gpu"


class NotAcceptedError(WorkloadError):
    """A limit was not kept."""


def main(job: Job) -> None:
    """Run the stages, write acceptance.json; anything but PASS is an error."""
    config = section(job.recipe, AcceptConfig)
    from workloads.accept.suite import run_suite
    from workloads.common.dist import world

    path = job.results_dir / FILE_NAME
    with world() as here:
        job.record.hardware = hardware.detect(hardware.device_name())
        report = run_suite(here, config, job.places, write=lambda report: report.write(path))
    job.record.model = config.training.name
    job.record.artifacts["acceptance"] = str(path)
    job.record.metrics |= metrics(report)
    for line in check_lines(report.checks):
        log(line)
    if report.outcome == "PASS":
        return
    bad = [check for check in report.checks if check.outcome == report.outcome]
    names = ", ".join(dict.fromkeys(check.id for check in bad))
    if report.outcome == "FAIL":
        raise NotAcceptedError(f"{len(bad)} of {len(report.checks)} checks failed: {names}")
    raise NotRunError(f"not accepted: {len(bad)} checks were not run: {names or 'a stage'}")


def metrics(report: Report) -> dict[str, float]:
    """Return what a run record keeps: the widest training point and the largest all-reduce."""
    found: dict[str, float] = {}
    points = report.measurements.get("training", {}).get("points", [])
    if points:
        found["train_tokens_per_s"] = points[-1]["tokens_per_s"]
    rows = [row for row in report.measurements.get("collectives", []) if row["op"] == "all_reduce"]
    if rows:
        found["busbw_gb_per_s"] = rows[-1]["busbw_gb_per_s"]
    # All nodes write at once, as the ranks of a job do when they save.
    rates = [row for row in report.measurements.get("storage", []) if row["place"] == "chkpt"]
    if rates and all(row["is_direct"] for row in rates):
        found["chkpt_write_gb_per_s"] = sum(row["write_gb_per_s"] for row in rates)
    return found


def run() -> NoReturn:
    """Run the job, or judge recorded results."""
    arguments = sys.argv[1:]
    if "--judge" in arguments:
        from workloads.accept.suite import judge_files

        end(judge_files(arguments))
    if not {"--recipe", "--config"} & {each.partition("=")[0] for each in arguments}:
        arguments = ["--recipe", DEFAULT_RECIPE, *arguments]
    end(run_job("accept", main, arguments))


if __name__ == "__main__":
    run()
