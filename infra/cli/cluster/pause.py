"""Take a stack's workers away and bring them back; keep new jobs off single nodes.

`pause` and `resume` write `nodes.paused`; `NodesSpec.counts` makes it 0 workers at `pulumi up`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from infra import files
from infra.cli import context, output
from infra.cli.context import IdentityOption, StackOption
from infra.state import DEFAULT_STACK
from stacks.errors import UserError

if TYPE_CHECKING:
    from infra.clients.pulumi import StackOutputs
    from infra.clients.ssh import Connection
    from infra.jobs.submit import Submission


def pause(
    stack: StackOption = DEFAULT_STACK,
    fetch: Annotated[
        bool,
        typer.Option(help="First bring the results that are not here: nobody enters meanwhile."),
    ] = True,
    identity: IdentityOption = None,
) -> None:
    """Pause a stack: no workers, and no cost for them, until it is resumed."""
    from infra.clients.errors import JobsError

    left = [] if not fetch or context.spec(stack).nodes.paused else _not_pulled(stack)
    if left:
        try:
            outputs = context.read(stack)
            with context.connect(outputs, identity) as connection:
                problems = bring(stack, outputs, connection)
        except JobsError as error:
            problems = [str(error)]
        if problems:
            jobs = ", ".join(each.job_id for each in left)
            why = (
                f"{stack}: results of jobs {jobs} are not on this machine and cannot be fetched "
                "while it is paused; nothing was changed; --no-fetch pauses all the same"
            )
            raise UserError("\n".join([*problems, why]))
    switch(stack, paused=True)


def bring(stack: str, outputs: StackOutputs, connection: Connection) -> list[str]:
    """Fetch what jobs of this machine left and is not here; returns what went wrong."""
    from infra.clients.errors import JobsError, NothingThereError
    from infra.jobs import transfer

    problems: list[str] = []
    for each in _not_pulled(stack):
        if each.cluster != outputs.login_host_key:
            continue  # of a former cluster of this name
        try:
            folder = transfer.pull(
                connection, outputs, each.job, each.job_id, state=context.state_root()
            )
            output.note(f"{each.job} ({each.job_id}): fetched to {folder}")
        except NothingThereError:
            continue
        except JobsError as error:
            problems.append(str(error))
    return problems


def _not_pulled(stack: str) -> list[Submission]:
    """Jobs that were submitted from here and have no record here."""
    from cost.run_record import FILE_NAME
    from infra.jobs.history import run_folder, submissions

    state = context.state_root()
    return [
        each
        for each in submissions(state, stack)
        if not (run_folder(state, stack, each.job_id) / FILE_NAME).is_file()
    ]


def switch(stack: str, *, paused: bool) -> None:
    """Sets the pause switch of a stack file once, and says what that saves or costs."""
    from cost.bill.left_running import pause_saving
    from infra.operate.prices import price_book
    from stacks.changes import set_paused
    from stacks.load import STACKS_DIR

    spec = context.spec(stack)
    saving = pause_saving(spec, price_book(spec, context.state_root()))
    path = STACKS_DIR / f"Pulumi.{stack}.yaml"
    text = path.read_text(encoding="utf-8")
    changed = set_paused(text, paused=paused)
    state, verb = ("paused", "saves") if paused else ("running", "costs")
    if changed == text:
        output.note(f"{stack}: already declared as {state}; it {verb} {saving}")
    else:
        files.write(path, changed)
        output.note(f"{stack}: declared as {state} in {path.name}; this {verb} {saving}")
    if paused and (left := _not_pulled(stack)):
        output.note(
            f"{stack}: while it is paused nothing can be fetched, and jobs "
            f"{', '.join(each.job_id for each in left)} have no result here: what they write until "
            f"`pulumi up` is fetched by soperator pull ID --stack {stack}"
        )
    output.note(f"{stack}: to make it so: pulumi up --stack {stack}")


def resume(stack: StackOption = DEFAULT_STACK) -> None:
    """Resume a paused stack: the workers that it declares come back."""
    switch(stack, paused=False)


_WAYS = "give --reason TEXT to drain, or --undo"


def drain(
    nodes: Annotated[list[str], typer.Argument(help="Slurm nodes, such as worker-0.")],
    reason: Annotated[str, typer.Option(help="Why, as `sinfo -R` shows it.")] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Return once no job runs there.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Take jobs on these nodes again.")] = False,
    stack: StackOption = DEFAULT_STACK,
    identity: IdentityOption = None,
) -> None:
    """Keep new jobs off nodes until `--undo`; jobs that run there go on to their end."""
    if undo and (reason or wait):
        raise UserError("cluster drain: --undo excludes --reason and --wait; " + _WAYS)
    if not undo and not reason:
        raise UserError(f"cluster drain: {_WAYS}")
    from infra.jobs.nodes import await_idle, listed
    from infra.jobs.nodes import drain as drain_nodes
    from infra.jobs.nodes import resume as undrain

    named = ", ".join(nodes)
    with context.connect(context.read(stack), identity) as shell:
        if undo:
            undrain(shell, nodes)
            output.note(f"{named}: take jobs again")
            return
        jobs = drain_nodes(shell, nodes, reason)
        if wait:
            await_idle(
                shell,
                nodes,
                say=lambda rest: output.note(f"{named}: waiting for {len(rest)}:\n{listed(rest)}"),
            )
            jobs = ()
        rest = f"still running there:\n{listed(jobs)}" if jobs else "no job runs there\n"
        output.note(f"{named}: no new job; {rest}".rstrip())
