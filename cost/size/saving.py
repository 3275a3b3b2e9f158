"""Whether a training can save all of its state between the notice of its node and the node's end.

Three sources of the time, the best that there is: the longest save that a run of the same recipe on
the same nodes measured; the state's bytes over what the newest acceptance of the stack wrote into
the place of checkpoints; over what the stack declares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Final

from cost.run_record import Outcome, RunRecord
from cost.runs.forecast import STEP_METRIC, same_run
from cost.size.memory import trained_weights
from cost.size.plan import Plan
from cost.size.training import BYTES_PER_GB
from stacks.files import is_map
from stacks.machines import workers_of
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing
from stacks.spec.slurm import JobSpec

SAVE_METRIC: Final = "longest_checkpoint_save_s"
WRITE_METRIC: Final = "chkpt_write_gb_per_s"
BYTES_PER_WEIGHT: Final = 12
"""A trained weight and AdamW's two moments of it in fp32: workloads/train/checkpoint.py."""
ELASTIC_BYTES_PER_WEIGHT: Final = 4
"""Of model.safetensors beside them, which a job of changing size saves too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What a job has to write after a notice, and what it has for it."""

    job: str
    num_bytes: int
    notice_s: int
    """`jobs[].save_s`: the step that runs and the save have to fit into it."""
    seconds: Decimal | None
    """For the save; None where nobody measured or declared a rate."""
    step_s: Decimal
    """Of the step that runs when the notice comes; 0 where none was measured."""
    source: str
    every_s: int
    """`train.checkpoint.every_s` of the recipe: what is lost at most without the save."""

    @property
    def fits(self) -> bool | None:
        """None: not known."""
        return None if self.seconds is None else self.seconds + self.step_s <= self.notice_s

    def __str__(self) -> str:
        size = f"{Decimal(self.num_bytes) / BYTES_PER_GB:,.2f} GB"
        if self.seconds is None:
            return (
                f"notice: {self.job} has {size} to save within {self.notice_s} s, and how long "
                "that takes is not known: pull a run of it or an acceptance, or declare "
                "preemption.save_gb_per_s"
            )
        step = f", after a step of {self.step_s:.1f} s" if self.step_s else ""
        says = "fits" if self.fits else "does not fit"
        left = "" if self.fits or not self.every_s else f"; at most {self.every_s} s are lost"
        return (
            f"notice: a save of {self.job} ({size}) takes {self.seconds:,.1f} s{step}, which "
            f"{says} into {self.notice_s} s{left}; {self.source}"
        )

    @property
    def refusal(self) -> str | None:
        """Why the job must not run like this; None where it may."""
        if self.fits is not False or self.every_s:
            return None
        return (
            f"{self.job}: {str(self).removeprefix('notice: ')}: what was trained since the last "
            "checkpoint would be lost with a node. Set train.checkpoint.every_s in the recipe, "
            "such as 300, to lose no more than that; or use more or on-demand nodes, or LoRA"
        )


def saving(
    spec: StackSpec,
    job: JobSpec,
    plan: Plan,
    recipe: Mapping[str, object],
    records: Sequence[RunRecord],
) -> Saving | None:
    """What the job has to save when it is told; None on nodes that are not taken."""
    workers = workers_of(spec, job.partition)
    if not any(each.billing is Billing.PREEMPTIBLE for each in workers):
        return None
    per_weight = BYTES_PER_WEIGHT
    if job.least_nodes is not None and job.least_nodes < job.nodes:
        per_weight += ELASTIC_BYTES_PER_WEIGHT
    num_bytes = per_weight * trained_weights(plan.shape, plan.training)
    newest = sorted(records, key=lambda each: (each.finished_at, each.job_id), reverse=True)
    same = [each for each in newest if any(same_run(each, job, worker) for worker in workers)]
    measured = next((each for each in same if each.metrics.get(SAVE_METRIC)), None)
    step_s = next((each.metrics[STEP_METRIC] for each in same if STEP_METRIC in each.metrics), None)
    rate = _rate(spec, newest)
    seconds, source = None, ""
    if measured is not None:
        seconds = measured.metrics[SAVE_METRIC]
        source = f"measured by job {measured.job_id} on {measured.finished_at.date()}"
    elif rate is not None:
        gb_per_s, said_by, day = rate
        seconds = Decimal(num_bytes) / BYTES_PER_GB / gb_per_s
        when = "" if day is None else f" on {day}"
        source = f"at {gb_per_s:.2f} GB/s, {said_by}{when}"
    return Saving(
        job=job.name,
        num_bytes=num_bytes,
        notice_s=job.save_s,
        seconds=seconds,
        step_s=step_s or Decimal(0),
        source=source,
        every_s=_every_s(recipe),
    )


def _rate(spec: StackSpec, newest: Sequence[RunRecord]) -> tuple[Decimal, str, date | None] | None:
    """GB/s into the place of checkpoints, who says so, and the day of a measurement."""
    for record in newest:
        found = record.metrics.get(WRITE_METRIC)
        if found and record.stack == spec.name and record.outcome is Outcome.PASS:
            return found, f"measured by acceptance job {record.job_id}", record.finished_at.date()
    declared = None if spec.preemption is None else spec.preemption.save_gb_per_s
    return None if not declared else (declared, "declared in preemption.save_gb_per_s", None)


def _every_s(recipe: Mapping[str, object]) -> int:
    """The recipe's own; what is wrong in it is refused by the workload's reader."""
    values: object = recipe
    for key in ("train", "checkpoint", "every_s"):
        values = values.get(key) if is_map(values) else None
    return values if isinstance(values, int) else 0
