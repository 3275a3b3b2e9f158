"""A load test whose chats no server of its stack takes is refused before anything is paid for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from infra.jobs.recipes import DEFAULT_CONTEXT_TOKENS, DEFAULT_SPREAD, load_fit_problems
from stacks.load import STACKS_DIR, load_stack
from stacks.spec import StackSpec
from workloads.load.run import longest
from workloads.recipes.load import Lengths
from workloads.recipes.serve import Limits

CHECKOUT = STACKS_DIR.parent


def checkout(folder: Path, *, serve: object, load: object) -> Path:
    """A checkout with the recipes of l40s-dev's server and load test, and no others."""
    recipes = folder / "workloads" / "recipes"
    recipes.mkdir(parents=True)
    for name, section, values in (
        ("qwen3_14b_serve_1xl40s", "serve", serve),
        ("qwen3_14b_load_1xl40s", "load", load),
    ):
        (recipes / f"{name}.json").write_text(json.dumps({"model": "m", section: values}))
    return folder


@pytest.fixture
def spec(public_key_file: Path) -> StackSpec:
    return load_stack("l40s-dev")


@pytest.mark.parametrize("name", ["local", "l40s-dev", "h100-prod", "h200-elastic"])
def test_shipped_load_tests_fit_a_shipped_server(public_key_file: Path, name: str) -> None:
    """l40s-dev promised chats of 8000 + 2000 tokens and served 8192."""
    assert load_fit_problems(CHECKOUT, load_stack(name)) == []


def test_the_reference_chat_over_the_server_s_context_is_refused(
    spec: StackSpec, tmp_path: Path
) -> None:
    root = checkout(tmp_path, serve={"limits": {"context_tokens": 9999}}, load={})
    (problem,) = load_fit_problems(root, spec)
    assert problem.startswith(
        "l40s-dev: jobs.load.recipe: 'qwen3_14b_load_1xl40s' asks for chats of up to 8000 + 2000 "
        "tokens, but job 'serve' takes 9999 in all; raise serve.limits.context_tokens"
    )
    shorter = replace(spec, chat=replace(spec.chat, turns=2))
    assert load_fit_problems(root, shorter) == []


def test_drawn_lengths_count_with_the_longest_that_can_be_drawn(
    spec: StackSpec, tmp_path: Path
) -> None:
    drawn = {"mean": 2000, "distribution": "lognormal", "spread": 0.5}
    root = checkout(tmp_path, serve={}, load={"prompt_tokens": drawn})
    assert "8000 + 2000 tokens, but job 'serve' takes 8192" in load_fit_problems(root, spec)[0]


def test_settings_that_the_stack_gives_a_job_count(spec: StackSpec, tmp_path: Path) -> None:
    root = checkout(tmp_path, serve={}, load={})
    jobs = tuple(
        replace(job, args=("--set", "serve.limits.context_tokens=10240")) if job.is_server else job
        for job in spec.jobs
    )
    assert load_fit_problems(root, replace(spec, jobs=jobs)) == []


def test_defaults_are_those_of_the_workloads() -> None:
    assert Limits().context_tokens == DEFAULT_CONTEXT_TOKENS
    assert longest(Lengths(mean=10, distribution="lognormal", spread=1)) == 10 * DEFAULT_SPREAD
