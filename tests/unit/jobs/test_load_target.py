"""Which server a load test measures, and that the record will name the server's own preset."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infra.clients.errors import JobsError
from infra.clients.slurm import Job
from infra.jobs.server import (
    choose,
    job_settings,
    load_job,
    preset_settings,
)
from stacks.load import load_stack
from stacks.spec import StackSpec


@pytest.fixture
def spec(public_key_file: object) -> StackSpec:
    return load_stack("l40s-dev")


def job(id: str, name: str = "serve", state: str = "RUNNING", where: str = "worker-serve-0") -> Job:
    return Job(id=id, name=name, state=state, where=where)


def test_the_newest_server_that_runs_is_taken(spec: StackSpec):
    jobs = [job("9"), job("10"), job("11", state="PENDING"), job("12", name="finetune")]
    assert choose(spec, jobs, None).id == "10"


@pytest.mark.parametrize(
    ("jobs", "wanted", "words"),
    [
        (
            [],
            None,
            "no server runs; submit serve or serve-vllm and wait until it is up, or give --url",
        ),
        ([job("3", state="PENDING")], "3", "job 3 is serve, PENDING; a load test needs a running"),
        ([job("4", name="finetune")], "4", "job 4 is finetune, RUNNING; a load test needs"),
    ],
)
def test_what_is_no_running_server_is_refused(
    spec: StackSpec, jobs: list[Job], wanted: str | None, words: str
):
    with pytest.raises(JobsError, match=words):
        choose(spec, jobs, wanted)


def test_the_job_is_told_the_server_and_its_node_s_preset(spec: StackSpec):
    assert job_settings(spec, job("10")) == [
        'load.target.serve_job="10"',
        "load.target.platform=gpu-l40s-d",
        "load.target.preset=2gpu-64vcpu-384gb",
    ]
    assert job_settings(spec, job("10", where="elsewhere-0")) == ['load.target.serve_job="10"']


def test_the_preset_of_a_server_elsewhere_becomes_settings():
    assert preset_settings("p/q") == ["load.target.platform=p", "load.target.preset=q"]
    with pytest.raises(JobsError, match="--preset 1gpu: write PLATFORM/PRESET"):
        preset_settings("1gpu")


def test_a_stack_without_a_load_test_is_told_what_to_declare(spec: StackSpec):
    assert load_job(spec).name == "load"
    without = replace(spec, jobs=tuple(each for each in spec.jobs if not each.is_load_test))
    with pytest.raises(
        JobsError, match=r"declare one, such as \{name: load, module: workloads.load"
    ):
        load_job(without)
