"""A pipeline is a job with everything that it needs, in an order in which it can run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stacks.load import StackError, load_config, load_stack
from stacks.schedule import in_order, pipeline, pipeline_ends
from stacks.spec import StackSpec
from stacks.spec.slurm import JobSpec


def job(name: str, *after: str) -> JobSpec:
    return JobSpec(name=name, module="workloads.train", recipe="r", after=after)


@pytest.fixture
def spec(public_key_file: Path) -> StackSpec:
    jobs = (
        job("compare", "tuned", "base"),
        job("tuned", "prepare"),
        job("other"),
        job("base", "prepare"),
        job("prepare"),
        job("serve", "tuned"),
    )
    return replace(load_stack("local"), jobs=jobs)


def test_two_ways_meet_in_one_job_and_each_job_is_there_once(spec: StackSpec) -> None:
    found = [each.name for each in pipeline(spec, "compare")]
    assert found == ["prepare", "tuned", "base", "compare"]


def test_a_job_that_needs_none_is_a_pipeline_of_its_own(spec: StackSpec) -> None:
    assert [each.name for each in pipeline(spec, "other")] == ["other"]


def test_pipelines_end_with_jobs_that_no_other_one_needs(spec: StackSpec) -> None:
    assert [each.name for each in pipeline_ends(spec)] == ["compare", "serve"]


def test_jobs_that_wait_for_each_other_are_refused_by_name() -> None:
    with pytest.raises(StackError, match="x: jobs: a, b wait for each other"):
        in_order("x", [job("a", "b"), job("b", "a"), job("c")])


def test_one_needed_job_may_be_written_as_text(public_key_file: Path, config: dict[str, Any]):
    config["jobs"][1]["after"] = "prepare"
    one = load_config({f"soperator-stack:{key}": value for key, value in config.items()}, "demo")
    assert one.jobs[1].after == ("prepare",)
