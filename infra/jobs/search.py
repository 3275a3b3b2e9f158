"""Submits a hyperparameter search: one sbatch of an array, each task with its plan and its config.

Owns which trials are left and that money is asked for before anything is queued. What a search
costs is cost/searches.py's, its script infra/render/search.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cost.searches import SearchCost, search_cost
from infra.jobs import dispatch, run_config, submit
from infra.jobs.books import Books
from infra.jobs.dispatch import Order, asking
from infra.jobs.earlier import Earlier
from infra.jobs.errors import JobsError
from infra.jobs.mark import new_mark
from infra.jobs.outputs import StackOutputs
from infra.jobs.prepared_data import prepared_data
from infra.jobs.sending import Sent, plan_submission, send
from infra.jobs.slurm import Shell
from infra.jobs.submit import Submission, TaskFiles
from infra.jobs.trials import runs_of, states_of
from infra.render.search import array_option
from stacks.search_spec import SearchSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOrder:
    """A search as it is about to be submitted."""

    search: SearchSpec
    sets: tuple[str, ...]
    """Settings that all trials share."""
    numbers: tuple[int, ...]
    """Trials that are left."""
    orders: Mapping[int, Order]
    """Each with its plan and config."""
    cost: SearchCost


def order_search(
    books: Books,
    search: SearchSpec,
    files: Mapping[str, bytes],
    sets: Sequence[str] = (),
    numbers: Sequence[int] | None = None,
) -> SearchOrder:
    """These trials, or all; refuses every one that no memory holds, and a search over its limit."""
    job = next(each for each in books.spec.jobs if each.name == search.job)
    wanted = tuple(range(len(search.settings)) if numbers is None else numbers)
    orders: dict[int, Order] = {}
    problems: list[str] = []
    for number in wanted:
        own = [*sets, *search.settings[number]]
        try:
            orders[number] = dispatch.order(books, job, files, own, say=lambda _line: None)
        except JobsError as error:
            problems.append(f"trial {number} ({' '.join(search.settings[number])}): {error}")
    if problems:
        raise JobsError("\n".join(problems))
    settings = [search.settings[number] for number in wanted]
    return SearchOrder(
        search=search,
        sets=tuple(sets),
        numbers=wanted,
        orders=orders,
        cost=search_cost(search, books.rates, books.records, sets, settings),
    )


def refuse_over(ordered: SearchOrder) -> None:
    """Refuses a search that costs more than it may."""
    if ordered.cost.over is not None:
        raise JobsError(f"{ordered.cost.over}; nothing was submitted")


def left(search: SearchSpec, earlier: Earlier, sets: Sequence[str]) -> tuple[int, ...]:
    """Trials that neither passed with this code and these settings nor are on their way."""
    arrays = {
        each.job_id
        for each in earlier.submissions()
        if (each.job, each.code_hash, each.sets) == (search.name, earlier.code_hash, tuple(sets))
    }
    if not arrays:
        return tuple(range(len(search.settings)))
    passed = {
        run.settings
        for run in runs_of(earlier.shell, earlier.outputs, search.name)
        if run.array_id in arrays and run.record and run.record.get("outcome") == "PASS"
    }
    active = {
        task.number
        for task in states_of(earlier.shell, search.name)
        if task.array_id in arrays and task.is_active
    }
    return tuple(
        number
        for number, settings in enumerate(search.settings)
        if settings not in passed and number not in active
    )


def dispatch_search(
    ordered: SearchOrder,
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
    once: bool = False,
) -> Sent:
    """The submission of the array, written down here and in the ledger as one forecast."""
    refuse_over(ordered)
    search, array = ordered.search, array_option(ordered.search, ordered.numbers)
    mark = new_mark(search.name, code_hash, ordered.sets, array=array)
    planned = plan_submission(outputs, search.name, code_hash, ordered.sets, after, mark)

    def submit_now() -> Submission:
        tasks = {
            number: TaskFiles(
                plan=order.plan and order.plan.to_bytes(), run_config=_kept(order, store)
            )
            for number, order in ordered.orders.items()
        }
        return submit.submit(
            shell,
            outputs,
            search.name,
            code_hash=code_hash,
            sets=ordered.sets,
            after=after,
            git_revision=git_revision,
            tasks=tasks,
            array=array,
            reads=[
                prepared_data(order.job, order.recipe, outputs.places)
                for order in ordered.orders.values()
            ],
            mark=mark,
            once_from=0 if once else None,
        )

    asked = replace(asking(ordered.cost.run, outputs, force=force), num_tasks=len(ordered.numbers))
    return send(books, shell, outputs, asked, planned, submit_now, state=state, say=say)


def _kept(order: Order, store: Mapping[str, str] | None) -> str | None:
    if store is None or order.config is None:
        return None
    return run_config.keep(store, order.job.recipe, order.config)
