"""One sbatch of a declared job without history and ledger, for tests of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infra.clients.pulumi import StackOutputs
from infra.jobs.history import Submission
from infra.jobs.submit import plan_submission, sbatch_once


def submit(
    connection: Any,
    outputs: StackOutputs,
    job: str,
    *,
    code_hash: str,
    sets: Sequence[str] = (),
    after: str | None = None,
    array: str | None = None,
    **options: Any,
) -> Submission:
    """The submission, once submit_once.sh took it; other options are those of sbatch_once."""
    planned = plan_submission(
        outputs, job, code_hash=code_hash, sets=sets, after=after, array=array
    )
    return sbatch_once(connection, outputs, planned, array=array, **options)
