"""Whether what a training has to save fits into the notice of its node, and who says so."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from cost.run_record import RunRecord
from cost.runs.forecast import recipe_of
from cost.size.plan import Saving, make_plan, saving
from infra.jobs.recipes import notice_problems
from infra.render.delivery import code_files
from infra.state import CHECKOUT
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing
from tests.unit.cost.run_stacks import job_of, trained

HARDWARE = {
    "platform": "gpu-h200-sxm",
    "preset": "1gpu-16vcpu-200gb",
    "device": "H200",
    "num_nodes": 4,
    "num_gpus_declared": 4,
}


@pytest.fixture
def stack(public_key_file: Path) -> StackSpec:
    """Full training of 7.6 billion weights, of a size that changes, on nodes that are taken."""
    spec = load_stack("h200-elastic")
    workers = tuple(replace(each, billing=Billing.PREEMPTIBLE) for each in spec.nodes.workers)
    return replace(spec, nodes=replace(spec.nodes, workers=workers))


def declaring(spec: StackSpec, gb_per_s: str) -> StackSpec:
    assert spec.preemption is not None
    return replace(spec, preemption=replace(spec.preemption, save_gb_per_s=Decimal(gb_per_s)))


def measured(**metrics: float) -> RunRecord:
    return trained(
        recipe="qwen2_7b_full_4xh200", stack="h200-elastic", hardware=HARDWARE, metrics=metrics
    )


def saving_of(spec: StackSpec, *records: RunRecord, sets: tuple[str, ...] = ()) -> Saving | None:
    job = job_of(spec)
    recipe = recipe_of(job, code_files(CHECKOUT, spec), sets)
    return saving(spec, job, make_plan(spec, job, recipe), recipe, records)


def test_what_is_saved_are_weights_moments_and_the_whole_weights_of_an_elastic_job(
    stack: StackSpec,
) -> None:
    """Qwen2-7B has 7,615,616,512 parameters (its model card): 12 + 4 bytes each."""
    found = saving_of(stack)
    assert found is not None
    assert found.num_bytes == 16 * 7_615_616_512
    assert found.fits is None
    assert "is not known: pull a run of it" in str(found)
    assert found.refusal is None


@pytest.mark.parametrize(
    ("gb_per_s", "fits", "told"),
    [("4", True, "(121.85 GB) takes 30.5 s, which fits into 60 s; at 4.00 GB/s, declared in"),
     ("2", False, "(121.85 GB) takes 60.9 s, which does not fit into 60 s; at 2.00 GB/s")],
)  # fmt: skip
def test_a_declared_rate_decides_until_one_is_measured(
    stack: StackSpec, gb_per_s: str, fits: bool, told: str
) -> None:
    found = saving_of(declaring(stack, gb_per_s))
    assert found is not None
    assert found.fits is fits
    assert told in str(found)


def test_a_measured_save_of_the_same_run_wins_and_its_step_comes_before_it(
    stack: StackSpec,
) -> None:
    spec = declaring(stack, "100")
    accepted = replace(measured(chkpt_write_gb_per_s=50), kind="accept", job_id="30")
    found = saving_of(spec, accepted)
    assert found is not None
    assert "at 50.00 GB/s, measured by acceptance job 30 on 2026-" in str(found)
    found = saving_of(spec, accepted, measured(longest_checkpoint_save_s=50, train_step_s=11))
    assert found is not None
    assert found.fits is False
    assert "takes 50.0 s, after a step of 11.0 s, which does not fit into 60 s" in str(found)
    assert "measured by job " in str(found)


def test_what_does_not_fit_is_refused_unless_copies_bound_the_loss(stack: StackSpec) -> None:
    spec = declaring(stack, "1")
    found = saving_of(spec)
    assert found is not None
    assert found.refusal is not None
    assert "Set train.checkpoint.every_s in the recipe" in found.refusal
    (problem,) = notice_problems(CHECKOUT, spec, ())
    assert problem == f"h200-elastic.jobs: {found.refusal}"
    bounded = saving_of(spec, sets=("train.checkpoint.every_s=300",))
    assert bounded is not None
    assert bounded.refusal is None
    assert "does not fit into 60 s; at most 300 s are lost" in str(bounded)


def test_nodes_that_are_not_taken_give_no_notice(public_key_file: Path) -> None:
    assert saving_of(load_stack("h200-elastic")) is None
