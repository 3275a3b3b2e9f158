"""`soperator pull ID`: results, run record and log of one job, copied here."""

from __future__ import annotations

from typing import Annotated

import typer

from infra.cli import context, output
from infra.cli.context import DEFAULT_STACK, IdentityOption, StackOption


def command(
    job_id: Annotated[str, typer.Argument(help="Job id.")],
    stack: StackOption = DEFAULT_STACK,
    identity: IdentityOption = None,
) -> None:
    """Bring results, run record and log of a job here; prints the folder, and what it cost."""
    from cost.ledger import LedgerError
    from cost.price_book import PriceBookError
    from infra.jobs import pull, slurm
    from infra.jobs.books import open_books
    from infra.jobs.errors import JobsError
    from infra.jobs.spent import note_actual
    from stacks.load import StackError

    outputs = context.read(stack)
    with context.connect(outputs, identity) as connection:
        job = slurm.find(connection, job_id)
        print(pull.pull(connection, outputs, job.name, job.id, state=context.state_root()))
        if not job.finished:
            output.note(f"job {job.id} is {job.state}: its cost is written down once it ended")
            return
        try:
            books = open_books(context.spec(stack), context.state_root(), output.note)
            output.note(note_actual(books, connection, outputs.login_host_key, job.id))
        except (JobsError, LedgerError, PriceBookError, StackError) as error:
            # The results are here, whatever is wrong with prices or accounting.
            output.note(f"job {job.id}: its cost is not written down: {error}")
