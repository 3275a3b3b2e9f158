"""A job's recipe is a file of the checkout, in any form that the workloads read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from infra.render.delivery import recipe_problems, run_configs
from stacks.load import STACKS_DIR, load_stack
from stacks.spec import StackSpec

CHECKOUT = STACKS_DIR.parent


def with_recipes(spec: StackSpec, *recipes: str) -> StackSpec:
    jobs = (replace(job, recipe=recipe) for job, recipe in zip(spec.jobs, recipes, strict=False))
    return replace(spec, jobs=tuple(jobs))


def test_every_recipe_without_a_file_is_told_with_its_path(public_key_file: Path):
    """The preview ended in a traceback, or went through and the job could not be submitted."""
    spec = with_recipes(load_stack("local"), "bfcl_smolm2", "smollm2_135m_lora_2xcpu", "none")
    first, last = recipe_problems(CHECKOUT, spec)
    assert first == (
        "local.jobs[0].recipe: 'bfcl_smolm2' is no file in workloads/recipes; "
        "did you mean 'bfcl_smollm2'?"
    )
    assert last.startswith("local.jobs[2].recipe: 'none' is no file")
    assert recipe_problems(CHECKOUT, load_stack("local")) == []


@pytest.mark.feature("S001-10")
def test_a_recipe_in_yaml_is_uploaded_as_it_is(public_key_file: Path):
    recipe = "qwen2_7b_lora_zero3_16xh100"
    spec = with_recipes(load_stack("h100-prod"), recipe)
    text = (CHECKOUT / "workloads" / "recipes" / f"{recipe}.yaml").read_bytes()
    assert recipe_problems(CHECKOUT, spec) == []
    assert run_configs(CHECKOUT, spec)[f"recipes/{recipe}.yaml"] == text


def test_a_module_that_nothing_runs_is_told_before_nodes_are_paid_for(public_key_file: Path):
    spec = load_stack("local")
    first, *rest = spec.jobs
    jobs = (replace(first, module="workloads.dta"), *rest)
    (problem,) = recipe_problems(CHECKOUT, replace(spec, jobs=jobs))
    assert problem == (
        "local.jobs[0].module: 'workloads.dta' is nothing in workloads/ that `python -m` runs; "
        "did you mean 'workloads.data'?"
    )
