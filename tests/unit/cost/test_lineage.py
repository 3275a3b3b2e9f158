"""Figures are of one finetune: a later try, or another's server, never comes between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cost.chat.break_even import finetune
from cost.chat.unit_costs import NotKnown, RunCost
from cost.resources.estimate import Estimate
from cost.run_record import RunRecord, lineage
from stacks.spec import StackSpec
from tests.unit.cost.conftest import record, unit_costs
from tests.unit.cost.policies import inputs_of


def run(kind: str, job_id: int, *, of: int | None = None, **changes: Any) -> RunRecord:
    """A job of a minute, `job_id` minutes after five; `of` is the training whose weights it has."""
    folder = {} if of is None else {"adapter_dir": f"/mnt/chkpt/finetune/{of}/final"}
    return record(
        kind=kind,
        job_id=str(job_id),
        started_at=f"2026-11-21T05:{job_id:02}:00Z",
        finished_at=f"2026-11-21T05:{job_id:02}:50Z",
        artifacts=folder,
        **changes,
    )


FIRST = (
    run("prepare-data", 1),
    run("train", 2, of=2),
    run("evaluate", 3, of=2),
    run("serve", 4, of=2),
    run("load", 5, of=2),
)
A_TRY = (run("train", 7, of=7), run("serve", 8, of=7), run("load", 9, of=7))


def test_a_later_try_that_nobody_evaluated_changes_nothing() -> None:
    found = lineage("local", (*FIRST, *A_TRY))
    assert (found.data, found.training, found.evaluation) == FIRST[:3]
    assert found.loads == (FIRST[4],)
    assert [each.job_id for each in (*FIRST, *A_TRY) if found.holds(each)] == list("12345")


def test_what_is_evaluated_becomes_the_finetune_with_its_own_runs() -> None:
    found = lineage("local", (*FIRST, *A_TRY, run("evaluate", 10, of=7)))
    assert found.training == A_TRY[0]
    assert found.loads == (A_TRY[2],)


def test_before_an_evaluation_the_newest_training_counts() -> None:
    assert lineage("local", (FIRST[1], A_TRY[0])).training == A_TRY[0]
    failed = run("evaluate", 10, of=2, outcome="FAIL")
    assert lineage("local", (FIRST[1], A_TRY[0], failed)).training == A_TRY[0]


def test_a_folder_of_the_cluster_before_is_another_training() -> None:
    """Numbers of jobs start again: job 2 of the new cluster wrote to the same path."""
    again = run("train", 12, of=2)
    assert lineage("local", (*FIRST, again)).training == FIRST[1]
    evaluated = run("evaluate", 13, of=2)
    found = lineage("local", (*FIRST, again, evaluated))
    assert (found.training, found.evaluation, found.loads) == (again, evaluated, ())


def test_runs_of_other_stacks_and_records_that_name_no_weights(
    priced: Callable[[str], tuple[StackSpec, Estimate]],
) -> None:
    other = run("evaluate", 20, of=9, stack="h100-prod")
    assert lineage("local", (*FIRST, other)).evaluation == FIRST[2]
    old = (run("train", 2), run("evaluate", 3), run("load", 5))
    found = lineage("local", old)
    assert (found.training, found.evaluation, found.loads) == (old[0], old[1], (old[2],))


def test_the_cost_is_of_the_training_that_was_evaluated(
    priced: Callable[[str], tuple[StackSpec, Estimate]],
) -> None:
    inputs = inputs_of(priced("local")[0], (*FIRST, *A_TRY))
    run = inputs.run
    assert isinstance(run, RunCost)
    assert run.job_id == "2"
    training = finetune(inputs).training
    assert isinstance(training, RunCost)
    assert training.job_id == "2"


def test_a_training_whose_record_is_not_here_is_not_replaced_by_another(
    priced: Callable[[str], tuple[StackSpec, Estimate]],
) -> None:
    spec, estimate = priced("local")
    units = unit_costs(spec, estimate, (FIRST[2], *A_TRY))
    assert isinstance(units.run, NotKnown)
    assert "/mnt/chkpt/finetune/2/final, which job 3 evaluated, is not here" in str(units.run)
