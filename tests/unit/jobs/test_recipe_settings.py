"""The settings that a stack's own arguments give a job, as this side reads them."""

from __future__ import annotations

import pytest

from infra.jobs.recipes import recipe_of
from stacks.slurm_spec import JobSpec

FILES = {"workloads/recipes/r.json": b'{"model": "m", "train": {"max_steps": 1}}'}


@pytest.mark.parametrize(
    ("arguments", "train"),
    [
        (("--set", "train.max_steps=2"), {"max_steps": 2}),
        (("--set=train.max_steps=2",), {"max_steps": 2}),
        (("--set=train.a=b=c", "--resume=auto"), {"max_steps": 1, "a": "b=c", "resume": "auto"}),
        (("--resume", "auto", "--set=train.seed=3"), {"max_steps": 1, "resume": "auto", "seed": 3}),
        (("--plan", "--set"), {"max_steps": 1}),
    ],
    ids=["two words", "one word", "equals signs", "both forms", "no value"],
)
def test_settings_count_in_both_forms_in_which_the_job_reads_them(
    arguments: tuple[str, ...], train: dict[str, object]
) -> None:
    """Else the plan, the refusal and the stored config are those of another run."""
    job = JobSpec(name="j", module="workloads.train", recipe="r", args=arguments)
    assert recipe_of(job, FILES)["train"] == train
