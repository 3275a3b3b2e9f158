"""Submits a declared job the one way there is: forecast, plan, budget, sbatch, history, ledger.

`soperator submit` and the demo both come here, so that no job escapes the budget or its plan.
Owns that order and what is said of it. What each step does is in the module of its name; callers
hold the lock of recovery.py.
    dispatch(order(books, job, files, sets, say=say), books, connection, outputs, ...)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from getpass import getuser
from pathlib import Path
from typing import Any

from cost.forecast import Forecast, UnknownRun
from cost.runs import run_lines
from cost.size.errors import SizeError
from cost.size.plan import Plan
from infra.jobs import budget, run_config, submit
from infra.jobs.books import Books
from infra.jobs.earlier import Earlier
from infra.jobs.errors import JobsError
from infra.jobs.mark import new_mark
from infra.jobs.outputs import StackOutputs
from infra.jobs.plan import plan_lines, plan_of, refuse_unfit
from infra.jobs.prepared_data import prepared_data
from infra.jobs.recipes import recipe_of
from infra.jobs.sending import Sent, plan_submission, send
from infra.jobs.slurm import Shell
from infra.jobs.submit import Submission
from stacks.lifetime import refusal
from stacks.slurm_spec import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One declared job as it is about to be submitted."""

    job: JobSpec
    sets: tuple[str, ...]
    run: Forecast | UnknownRun
    plan: Plan | None
    """None: the job does not train, or cannot be planned."""
    recipe: Mapping[str, Any]
    """With the settings in it; empty: it cannot be read here."""

    @property
    def config(self) -> bytes | None:
        """What the run is configured by; None: its recipe cannot be read here."""
        return run_config.config_text(self.recipe) if self.recipe else None


def order(
    books: Books,
    job: JobSpec,
    files: Mapping[str, bytes],
    sets: Sequence[str] = (),
    *,
    say: Callable[[str], None],
) -> Order:
    """What the job is expected to take and the plan that it ships, both told; `files` is code.

    Refuses a job of a stack that has ended, and one that no memory holds, as its trainer would.
    """
    over = refusal(books.spec, datetime.now(UTC))
    if over is not None:
        raise JobsError(f"{over}; nothing was submitted")
    run = books.forecast(job, sets)
    for line in run_lines(run):
        say(line)
    plan = None
    try:
        plan = plan_of(books.spec, job, files, sets, run)
    except SizeError as error:
        for line in str(error).splitlines():
            say(f"no plan: {line}")
    for line in plan_lines(plan) if plan is not None else ():
        say(line)
    if plan is not None:
        refuse_unfit(plan, recipe_of(job, files, sets))
    return Order(job=job, sets=tuple(sets), run=run, plan=plan, recipe=_recipe(job, files, sets))


def dispatch(
    ordered: Order,
    books: Books,
    shell: Shell,
    outputs: StackOutputs,
    *,
    state: Path,
    code_hash: str,
    git_revision: str | None,
    say: Callable[[str], None],
    after: str | None = None,
    force: bool = False,
    store: Mapping[str, str] | None = None,
    nodes: Sequence[str] = (),
    once: bool = False,
    reproduces: str | None = None,
    queued: Callable[[str], None] = lambda _: None,
) -> Sent:
    """The submission, written down here and in the ledger; refused where the budget has no room.

    `store`: where run configs are kept; `nodes`: what it must run on; `once`: not beside a job of
    equal inputs that runs or waits, unless what it needs was submitted after that. `queued` gets
    the id of a new job right after sbatch.
    """
    mark = new_mark(ordered.job.name, code_hash, ordered.sets, reproduces=reproduces)
    once_from = None
    if once:
        earlier = Earlier(shell=shell, outputs=outputs, state=state, code_hash=code_hash, say=say)
        once_from = earlier.oldest(earlier.newest(ordered.job.after))
    planned = plan_submission(
        outputs, ordered.job.name, code_hash, ordered.sets, after, mark, reproduces=reproduces
    )

    def submit_now() -> Submission:
        kept = None
        if store is not None and ordered.config is not None:
            kept = run_config.keep(store, ordered.job.recipe, ordered.config)
            say(f"config: {kept}")
        return submit.submit(
            shell,
            outputs,
            ordered.job.name,
            code_hash=code_hash,
            sets=ordered.sets,
            after=after,
            git_revision=git_revision,
            plan=ordered.plan and ordered.plan.to_bytes(),
            run_config=kept,
            nodes=nodes,
            reads=(prepared_data(ordered.job, ordered.recipe, outputs.places),),
            mark=mark,
            once_from=once_from,
        )

    asked = asking(ordered.run, outputs, force=force)
    return send(
        books, shell, outputs, asked, planned, submit_now, state=state, say=say, queued=queued
    )


def environment(
    ordered: Order,
    outputs: StackOutputs,
    *,
    code_hash: str,
    git_revision: str | None,
    store: Mapping[str, str] | None = None,
) -> list[str]:
    """Variables that `dispatch` submits the job with, NAME=VALUE each; nothing is stored."""
    return submit.environment(
        outputs, code_hash, git_revision=git_revision, own=task_files(ordered, store)
    )


def task_files(ordered: Order, store: Mapping[str, str] | None) -> submit.TaskFiles:
    """Plan and place of the config of one job as it will be submitted."""
    kept = None
    if store is not None and ordered.config is not None:
        kept = run_config.address(store, ordered.job.recipe, ordered.config)
    return submit.TaskFiles(plan=ordered.plan and ordered.plan.to_bytes(), run_config=kept)


def asking(
    run: Forecast | UnknownRun, outputs: StackOutputs, *, force: bool = False
) -> budget.Asking:
    """The run as it stands before the budget now, asked by the user of this process."""
    return budget.Asking(
        run=run,
        cluster=outputs.login_host_key,
        now=datetime.now(UTC),
        user=_user(),
        force=force,
    )


def _recipe(job: JobSpec, files: Mapping[str, bytes], sets: Sequence[str]) -> dict[str, Any]:
    try:
        return recipe_of(job, files, sets)
    except SizeError:
        return {}  # the job itself refuses it, with the key that is wrong


def _user() -> str:
    """Who asks, as this machine knows them; the number where it has no name for them."""
    try:
        return getuser()
    except (KeyError, OSError):
        return str(os.getuid())
