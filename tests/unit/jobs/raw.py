"""One sbatch of a declared job without history and ledger, for tests of the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cost.runs.forecast import UnknownRun
from infra.clients.pulumi import StackOutputs
from infra.jobs.history import Submission
from infra.jobs.recipes import Request, TaskFiles
from infra.jobs.submit import Submitter


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
    job: str, *, sets: Sequence[str] = (), array: str | None = None, tasks: Any = None
) -> Request:
    """A request of which nothing is known but what sbatch gets."""
    run = UnknownRun(job=job, num_nodes=1, reason="", fix="", at_most_usd=None)
    return Request(name=job, sets=tuple(sets), run=run, tasks=tasks or {}, array=array)


def submit(
    connection: Any,
    outputs: StackOutputs,
    job: str,
    *,
    code_hash: str,
    sets: Sequence[str] = (),
    after: str | None = None,
    array: str | None = None,
    tasks: Mapping[int | None, TaskFiles] | None = None,
    **options: Any,
) -> Submission:
    """The submission, once submit_once.sh took it; other options are those of sbatch_once."""
    from_here = submitter(connection, outputs, code_hash=code_hash)
    asked = request(job, sets=sets, array=array)
    planned = from_here.planned(asked, after=after)
    return from_here.sbatch_once(planned, asked, tasks or {}, **options)
