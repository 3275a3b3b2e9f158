"""The text of a hyperparameter search: its job as an array, each task with settings of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from getpass import getuser
from pathlib import Path

import pytest

from infra.render.delivery import code_files
from infra.render.login import job_commands
from infra.render.sbatch import RenderError, array_option, render_search, search_job
from stacks.load import STACKS_DIR, load_stack
from stacks.spec import StackSpec
from stacks.spec.slurm import AxisSpec, SearchSpec, TrialSpec

SEARCH = SearchSpec(
    name="lr-search",
    job="finetune",
    metric="last_loss",
    grid=(
        AxisSpec(key="train.learning_rate", values=("1e-4", "2e-4")),
        AxisSpec(key="train.warmup_steps", values=("0", "8")),
    ),
    trials=(TrialSpec(settings=('lora.target=it\'s "all"', "train.learning_rate=5e-4")),),
    at_once=2,
)


@pytest.fixture
def spec(public_key_file: Path) -> StackSpec:
    return replace(load_stack("local"), searches=(SEARCH,))


def run_task(text: str, number: int, folder: Path, **environment: str) -> dict[str, str]:
    """What the job's own part of the script sees as this task; the rest is cut off."""
    head, _, _ = text.partition("\n# A job keeps the release")
    shown = 'printf \'%s\\n\' "$@"; echo -- "${SOPERATOR_PLAN:-}" "${SOPERATOR_RUN_CONFIG:-}"'
    done = subprocess.run(
        ["bash", "-s", "--", "--set", "train.max_steps=4"],
        input=f"{head}\n{shown}\n",
        env={
            "PATH": "/usr/bin:/bin",
            "SLURM_ARRAY_TASK_ID": str(number),
            "SLURM_ARRAY_JOB_ID": "12",
            "SLURM_JOB_ID": "14",
            **environment,
        },
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return {"out": done.stdout, "err": done.stderr, "code": str(done.returncode)}


@pytest.mark.feature("S002-79")
def test_a_search_renders_as_its_golden_file(
    spec: StackSpec, golden: Callable[[str, str], None]
) -> None:
    text = render_search(spec, SEARCH)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    golden("sbatch/search.sh", text)


def test_a_grid_is_every_combination_and_the_trials_follow_it() -> None:
    assert SEARCH.settings == (
        ("train.learning_rate=1e-4", "train.warmup_steps=0"),
        ("train.learning_rate=1e-4", "train.warmup_steps=8"),
        ("train.learning_rate=2e-4", "train.warmup_steps=0"),
        ("train.learning_rate=2e-4", "train.warmup_steps=8"),
        ('lora.target=it\'s "all"', "train.learning_rate=5e-4"),
    )
    assert array_option(SEARCH) == "0-4%2"
    assert array_option(SEARCH, (1, 4)) == "1,4%2"


@pytest.mark.feature("S002-79")
def test_a_task_has_its_own_settings_after_those_of_the_command_line(
    spec: StackSpec, tmp_path: Path
) -> None:
    """The last of two settings of one key wins, so a trial is never overruled."""
    places = {**spec.storage.places, "results": str(tmp_path / "results")}
    text = render_search(replace(spec, storage=replace(spec.storage, places=places)), SEARCH)
    seen = run_task(
        text,
        4,
        tmp_path,
        SOPERATOR_PLAN_4="/p",
        SOPERATOR_PLAN_3="/q",
        SOPERATOR_RUN_CONFIG_4="b/k",
    )
    assert seen["out"].splitlines() == [
        "--set",
        "train.max_steps=4",
        "--set",
        'lora.target=it\'s "all"',
        "--set",
        "train.learning_rate=5e-4",
        "-- /p b/k",
    ]
    trial = json.loads(
        (tmp_path / "results" / "users" / getuser() / "14" / "trial.json").read_text()
    )
    assert trial == {
        "search": "lr-search",
        "array": "12",
        "trial": 4,
        "settings": list(SEARCH.settings[4]),
    }


def test_a_number_that_the_search_does_not_have_ends_the_task(
    spec: StackSpec, tmp_path: Path
) -> None:
    seen = run_task(render_search(spec, SEARCH), 5, tmp_path)
    assert (seen["code"], seen["err"]) == ("2", "soperator: lr-search has no trial 5\n")


def test_a_search_is_delivered_and_started_like_a_job(spec: StackSpec) -> None:
    assert "jobs/lr-search" in code_files(STACKS_DIR.parent, spec)
    assert job_commands(spec)["lr-search"] == "soperator submit lr-search --stack local"


def test_its_job_is_the_declared_one_under_the_name_of_the_search(spec: StackSpec) -> None:
    found = search_job(spec, SEARCH)
    declared = next(job for job in spec.jobs if job.name == "finetune")
    assert found == replace(declared, name="lr-search", after=())


def test_a_search_of_a_job_that_is_not_declared_is_refused(spec: StackSpec) -> None:
    with pytest.raises(RenderError, match=r"searches\.lr-search\.job: 'tune' is not a job \(has: "):
        render_search(spec, replace(SEARCH, job="tune"))
