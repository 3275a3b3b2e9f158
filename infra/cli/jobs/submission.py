"""Declared jobs on their way into the queue, the same for every command that submits one.

Owns what is read of this checkout for it. Order, budget and history are infra/jobs/submit_once's.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cost.size.shape import SizeError
from infra.cli import context, output
from infra.clients.errors import JobsError
from infra.clients.pulumi import StackOutputs
from infra.clients.ssh import Connection
from infra.jobs import recipes, submit, submit_once
from infra.jobs import transfer as code
from infra.jobs.history import Earlier
from infra.jobs.ledger import Books, open_books
from infra.jobs.submit_once import Order, Sent
from infra.render.delivery import hash_files
from stacks.spec import StackSpec
from stacks.spec.slurm import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyJob:
    """One job whose recipe was accepted here, with its forecast; nothing was sent."""

    books: Books
    files: Mapping[str, bytes]
    """This checkout's code."""
    order: Order

    def submit(
        self,
        connection: Connection,
        outputs: StackOutputs,
        *,
        sync: bool = False,
        force: bool = False,
        after: str | None = None,
        nodes: Sequence[str] = (),
        once: bool = False,
        reproduces: str | None = None,
        queued: Callable[[str], None] = lambda _: None,
    ) -> Sent:
        """The submission, with what submit_once.dispatch takes; to be called in `alone`."""
        if sync:
            code.send(connection, outputs, self.files)
        return submit_once.dispatch(
            self.order,
            self.books,
            connection,
            outputs,
            state=context.state_root(),
            code_hash=hash_files(self.files),
            git_revision=context.git_revision(),
            say=output.note,
            after=after,
            force=force,
            store=context.run_config_store(outputs),
            nodes=nodes,
            once=once,
            reproduces=reproduces,
            queued=queued,
        )

    def dry_run(
        self, connection: Connection, outputs: StackOutputs, *, after: str | None = None
    ) -> str:
        """The sbatch of `submit` with its variables, and the script; nothing is queued."""
        code_hash = hash_files(self.files)
        return submit.dry_run(
            connection,
            outputs,
            self.order.job.name,
            code_hash=code_hash,
            exported=submit_once.environment(
                self.order,
                outputs,
                code_hash=code_hash,
                git_revision=context.git_revision(),
                store=context.run_config_store(outputs),
            ),
            sets=self.order.sets,
            after=after,
        )

    def earlier(self, connection: Connection, outputs: StackOutputs) -> Earlier:
        """What was submitted before with this checkout's code."""
        return Earlier(
            shell=connection,
            outputs=outputs,
            state=context.state_root(),
            code_hash=hash_files(self.files),
            say=output.note,
        )


@contextmanager
def alone(connection: Connection, outputs: StackOutputs) -> Generator[None]:
    """No other command of this state folder submits to the stack in the block."""
    with submit_once.alone(context.state_root(), connection, outputs, output.note):
        yield


def ready(spec: StackSpec, job: JobSpec, sets: Sequence[str]) -> ReadyJob:
    """The job with its forecast, which is told; a setting that it would refuse is refused."""
    return ready_all(spec, [job], {job.name: sets})[job.name]


def ready_all(
    spec: StackSpec, jobs: Sequence[JobSpec], sets: Mapping[str, Sequence[str]]
) -> dict[str, ReadyJob]:
    """The jobs by name, each with its forecast; everything that is wrong is refused at once."""
    found: dict[str, ReadyJob] = {}
    problems: list[str] = []
    books = open_books(spec, context.state_root(), output.note)
    files = context.local_code(spec.name)
    if spec.nodes.paused:
        output.note(
            f"{spec.name}: declared as paused: the next `pulumi up` takes the workers away from "
            f"what runs; soperator cluster resume --stack {spec.name} keeps them"
        )
    for job in jobs:
        own = sets.get(job.name, ())
        try:
            recipes.refuse_wrong(context.CHECKOUT, job, own)
            order = submit_once.order(books, job, files, own, say=output.note)
        except (JobsError, SizeError) as error:
            problems.append(str(error))
        else:
            found[job.name] = ReadyJob(books=books, files=files, order=order)
    if problems:
        raise JobsError("\n".join(problems))
    return found
