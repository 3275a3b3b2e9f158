"""The settings that a stack's own arguments give a job, as this side reads them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost.runs.forecast import recipe_of
from infra.jobs.recipes import search_problems
from stacks.load import STACKS_DIR, load_stack
from stacks.spec.slurm import AxisSpec, JobSpec, SearchSpec

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


def test_a_searched_setting_that_no_recipe_has_is_told_by_its_trial(
    public_key_file: object,
) -> None:
    """It failed on nodes that were paid for."""
    spec = load_stack("l40s-dev")

    def searching(key: str) -> list[str]:
        grid = (AxisSpec(key=key, values=("1e-5",)),)
        search = SearchSpec(name="rates", job="finetune", metric="last_loss", grid=grid)
        return search_problems(STACKS_DIR.parent, replace(spec, searches=(search,)))

    assert searching("train.learning_rate") == []
    (problem,) = searching("train.lerning_rate")
    assert problem.startswith("l40s-dev.searches[0]: trial 0 (train.lerning_rate=1e-5): ")
    assert "unknown key; did you mean 'learning_rate'?" in problem
