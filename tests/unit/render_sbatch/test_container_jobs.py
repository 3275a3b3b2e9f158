"""A training job in an image has the same ranks and checks; pyxis starts the ranks in it."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from infra.render.sbatch import render_sbatch
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.slurm import JobSpec

IMAGE = "cr.eu-north1.nebius.cloud#e00registry/soperator-jobs:sha-0123456789ab"


@pytest.fixture
def spec(public_key_file: Path) -> StackSpec:
    return load_stack("h100-prod")


@pytest.fixture
def job(spec: StackSpec) -> JobSpec:
    (declared,) = [each for each in spec.jobs if each.name == "finetune"]
    return replace(declared, container=IMAGE)


@pytest.mark.feature("S000-62", "S003-84")
def test_a_training_job_in_an_image_renders_as_its_golden_file(
    spec: StackSpec, job: JobSpec, golden: Callable[[str, str], None]
) -> None:
    text = render_sbatch(spec, job)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    golden("sbatch/h100-prod/finetune-in-an-image.sh", text)


@pytest.mark.feature("S003-71")
def test_only_the_step_of_the_ranks_is_in_the_image(spec: StackSpec, job: JobSpec) -> None:
    """The supervisor asks Slurm, whose programs the image lacks; the checks are the node's."""
    lines = render_sbatch(spec, job).splitlines()
    check, ranks = (line for line in lines if line.startswith("srun "))
    assert "--container" not in check
    assert f"--container-image={shlex.quote(IMAGE)} " in ranks
    assert '--container-workdir="$code"' in ranks
    (supervisor,) = (line for line in lines if "-m workloads.common.supervise" in line)
    assert "--container" not in supervisor
    assert "export SOPERATOR_PYTHON=python3" in lines


def test_nothing_else_of_the_job_changes_with_its_image(spec: StackSpec, job: JobSpec) -> None:
    with_image = render_sbatch(spec, job)
    without = render_sbatch(spec, replace(job, container=None))
    directives = [
        [line for line in text.splitlines() if line.startswith("#SBATCH")]
        for text in (with_image, without)
    ]
    assert directives[0] == directives[1]
    tail = "bash -c 'is_host=0"
    assert with_image.split(tail)[1:] == without.split(tail)[1:]
