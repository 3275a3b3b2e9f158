"""One sbatch of a declared job without history and ledger, for tests of the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cost.runs.forecast import UnknownRun
from cost.runs.ledger import ForecastEntry
from infra.clients.pulumi import StackOutputs
from infra.jobs.history import Submission
from infra.jobs.ledger import JobLedger
from infra.jobs.recipes import PreparedJob, Request
from infra.jobs.submit import Submitter
from stacks.spec.slurm import JobSpec


def submitter(
    connection: Any,
    outputs: StackOutputs,
    *,
    state: Path = Path("/nowhere"),
    log: Callable[[str], None] = lambda _line: None,
    **others: Any,
) -> Submitter:
    """What submits there, without a ledger."""
    others = {"books": lambda: None, **others}
    return Submitter(connection=connection, outputs=outputs, state=state, log=log, **others)


def request(
    job: str,
    *,
    sets: Sequence[str] = (),
    array: str | None = None,
    tasks: Any = None,
    after: str | None = None,
    nodes: Sequence[str] = (),
) -> Request:
    """A request of which nothing is known but what sbatch gets."""
    run = UnknownRun(job=job, num_nodes=1, reason="", fix="", at_most_usd=None)
    return Request(
        name=job,
        sets=tuple(sets),
        run=run,
        tasks=tasks or {},
        array=array,
        after=after,
        nodes=nodes,
    )


def submit(
    connection: Any,
    outputs: StackOutputs,
    job: str,
    *,
    code_hash: str,
    sets: Sequence[str] = (),
    after: str | None = None,
    nodes: Sequence[str] = (),
    array: str | None = None,
    tasks: Mapping[int | None, PreparedJob] | None = None,
    store: Mapping[str, str] | None = None,
    **options: Any,
) -> Submission:
    """The submission, once submit_once.sh took it; other options are those of sbatch_once."""
    from_here = submitter(connection, outputs, code_hash=code_hash, store=lambda: store)
    asked = request(job, sets=sets, array=array, tasks=tasks, after=after, nodes=nodes)
    return from_here.sbatch_once(from_here.planned(asked), asked, **options)


def submit_within_budget(
    books: JobLedger,
    shell: Any,
    entry: ForecastEntry,
    send: Callable[[], Submission],
    *,
    decides: bool = False,
    force: bool = False,
    log: Callable[[str], Any],
) -> Submission:
    """What a submission does of its budget around the sbatch that is `send`."""
    state = books.file.path.parents[2]
    own = submitter(shell, None, state=state, log=log)  # type: ignore[arg-type]
    with replace(books, log=log).locked(shell, entry.cluster) as opened:
        entries, is_held = opened.within_budget(entry, force=force)
        assert is_held or not decides
        made = send()
        if decides:
            own._decide(opened, entries, made)
        own._book(opened.file, entries, made, is_new=True)
        opened.tell()
    return made


class Planned:
    """A plan of these bytes."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def to_bytes(self) -> bytes:
        return self._content


def task(plan: bytes, recipe: Mapping[str, Any] | None = None) -> PreparedJob:
    """One task with this plan, and this recipe as its config."""
    job = JobSpec(name="finetune", module="workloads.train", recipe="finance_qwen3_14b")
    planned: Any = Planned(plan)
    run = UnknownRun(job=job.name, num_nodes=1, reason="", fix="", at_most_usd=None)
    return PreparedJob(job=job, run=run, plan=planned, recipe=recipe or {})
