"""`soperator leaderboard NAME`: the trials of a search, ranked by its metric, with $ each."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import context, output
from infra.cli.context import IdentityOption, StackOption
from infra.cli.output import Format
from infra.state import DEFAULT_STACK
from stacks.errors import UserError

if TYPE_CHECKING:
    from infra.jobs.search import Board
    from stacks.search_spec import SearchSpec
    from stacks.spec import StackSpec


def command(
    search: Annotated[str, typer.Argument(help="Search that the stack declares.")],
    stack: StackOption = DEFAULT_STACK,
    identity: IdentityOption = None,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,
) -> None:
    """Rank the trials of a declared search by its metric, with what each cost."""
    from infra.jobs.ledger import open_books
    from infra.jobs.search import leaderboard, runs_of, states_of, usd_by_job

    spec = context.spec(stack)
    wanted = declared(spec, search)
    outputs = context.read(stack)
    books = open_books(spec, context.state_root(), output.note)
    with context.connect(outputs, identity) as connection:
        runs = runs_of(connection, outputs, wanted.name)
        states = states_of(connection, wanted.name)
        usd = usd_by_job(
            books,
            connection,
            outputs.login_host_key,
            [run.job_id for run in runs],
            now=datetime.now(UTC),
        )
    board = leaderboard(wanted, runs, states, usd)
    if format is Format.JSON:
        output.print_json(_plain(board))
    else:
        _print(board, spec)


def declared(spec: StackSpec, name: str) -> SearchSpec:
    """The search in the stack file, or a refusal that names those that are there."""
    from stacks.decode import nearest

    for search in spec.searches:
        if search.name == name:
            return search
    have = tuple(search.name for search in spec.searches)
    raise UserError(f"{spec.name}: searches: '{name}' is not declared{nearest(name, have)}")


def _print(board: Board, spec: StackSpec) -> None:
    from cost.report.layout import small_usd_text
    from infra.jobs.search import NO_METRIC

    search = board.search
    if spec.bill_heading is not None:
        output.note(spec.bill_heading)
    output.print_table(
        ("RANK", "TRIAL", search.metric.upper(), "USD", "STATE", "JOB", "SETTINGS"),
        [
            (
                row.rank,
                row.number,
                None if row.value is None else f"{row.value:.6g}",
                None if row.usd is None else small_usd_text(row.usd),
                row.state if row.reason is None else f"{row.state}: {row.reason}",
                row.job_id,
                shlex.join(row.settings),
            )
            for row in board.rows
        ],
    )
    former = f", {board.num_former} tasks with former settings in it" if board.num_former else ""
    output.note(f"{search.name}: {small_usd_text(board.usd)} so far{former}")
    if board.best is not None:
        sets = " ".join(f"--set {shlex.quote(each)}" for each in board.best.settings)
        output.note(f"the best ({search.goal} {search.metric}) for the job itself: {sets}")
    states = {row.state for row in board.rows}
    if NO_METRIC in states:
        output.note(
            f"{NO_METRIC}: {search.metric} is no finite number in a record that passed; name a "
            f"metric of it in searches.{search.name}.metric"
        )
    if states - {"PASS", NO_METRIC}:
        output.note(
            f"what did not pass is submitted again by: soperator submit {search.name} -s "
            f"{spec.name}"
        )


def _plain(board: Board) -> dict[str, object]:
    search = board.search
    return {
        "search": search.name,
        "job": search.job,
        "metric": search.metric,
        "goal": search.goal,
        "usd": board.usd,
        "num_former": board.num_former,
        "trials": [asdict(row) for row in board.rows],
    }
