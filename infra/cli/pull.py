"""`soperator pull ID`: results, run record and log of one job, copied here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import context, output
from infra.cli.context import IdentityOption, StackOption
from infra.state import DEFAULT_STACK

if TYPE_CHECKING:
    from infra.clients.pulumi import StackOutputs


def command(
    job_id: Annotated[str, typer.Argument(help="Job id.")],
    stack: StackOption = DEFAULT_STACK,
    identity: IdentityOption = None,
) -> None:
    """Bring results, run record and log of a job here; prints the folder, and what it cost."""
    from cost.prices.price import PriceBookError
    from cost.runs.ledger import LedgerError
    from infra.clients import slurm
    from infra.clients.errors import JobsError, StackPausedError
    from infra.jobs import transfer
    from infra.jobs.ledger import note_actual, open_books
    from stacks.load import StackError

    try:
        outputs = context.read(stack)
    except StackPausedError as error:
        print(context.fetched(stack, job_id, error))
        return
    with context.connect(outputs, identity) as connection:
        job = slurm.find(connection, job_id)
        print(transfer.pull(connection, outputs, job.name, job.id, state=context.state_root()))
        if not job.finished:
            output.note(f"job {job.id} is {job.state}: its cost is written down once it ended")
            return
        try:
            books = open_books(context.spec(stack), context.state_root(), output.note)
            output.note(note_actual(books, connection, outputs.login_host_key, job.id))
        except (JobsError, LedgerError, PriceBookError, StackError) as error:
            # The results are here, whatever is wrong with prices or accounting.
            output.note(f"job {job.id}: its cost is not written down: {error}")
    _share(outputs, stack, job.id)


def _share(outputs: StackOutputs, stack: str, job_id: str) -> None:
    """Puts the run's record where others of the stack see it; without a bucket there is no such."""
    from cost.runs.ledger import FILE_NAME, Ledger, LedgerError
    from cost.runs.spend import actuals
    from infra.clients.errors import JobsError
    from infra.jobs.history import run_folder
    from infra.reports.runs.shared import publish

    state = context.state_root()
    try:
        store = context.run_config_store(outputs)
        if store is None:
            return
        entries = Ledger(state / "runs" / stack / FILE_NAME).read().entries
        publish(
            store,
            run_folder(state, stack, job_id),
            cluster=outputs.login_host_key,
            job_id=job_id,
            actual=actuals(entries).get((outputs.login_host_key, job_id)),
        )
    except (JobsError, LedgerError) as error:
        output.note(f"job {job_id}: others do not see it: {error}")
