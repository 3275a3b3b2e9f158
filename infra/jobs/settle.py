"""Writes down what jobs cost once they ended: settle(ledger, accounted, books).

Owns when the ledger gets an actual. What Slurm knows comes from accounting.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

from cost.budget import actuals, open_parts
from cost.ledger import OpenLedger
from cost.ledger_entries import ActualEntry
from cost.rounding import rounded
from cost.spend import JobUse, spend
from infra.jobs import accounting
from infra.jobs.accounting import Accounted
from infra.jobs.books import Books
from infra.jobs.slurm import Shell

PADDING_METRIC = "padding_percent"
# A record's clock is the node's, the times of its job are the controller's.
_CLOCKS_APART = timedelta(minutes=5)


def settle(
    ledger: OpenLedger,
    accounted: Accounted,
    books: Books,
    *,
    since: datetime,
    now: datetime,
) -> tuple[ActualEntry, ...]:
    """Writes down what jobs cost that ended and are not in the ledger like this yet."""
    known = actuals(ledger.read().entries)
    moments = [run.started_at for use in accounted.uses for run in use.runs]
    moments += [run.ended_at for use in accounted.uses for run in use.runs if run.ended_at]
    # From the first start to the last end, so that each job is priced whole, whatever the clocks.
    first, last = min([since, *moments]), max([now, *moments])
    total = spend(books.rates, accounted.uses, since=first, until=last)
    new: list[ActualEntry] = []
    for job in total.jobs:
        use = job.use
        before = known.get((use.cluster, use.job_id))
        # Who shared a node before `since` is not known any more: the earlier word stands.
        is_cut = any(run.started_at < since for run in use.runs)
        if not use.is_finished or (before is not None and is_cut):
            continue
        entry = ActualEntry(
            at=now,
            job=use.name,
            job_id=use.job_id,
            cluster=use.cluster,
            user=use.user,
            partition=use.partition,
            state=use.state,
            runs=use.runs,
            node_hours=plain(job.node_hours),
            nodes_usd=None if job.nodes_usd is None else plain(job.nodes_usd),
            padding_percent=_padding(use, books, before),
            array_id=use.array_id,
            num_tasks=use.num_tasks,
        )
        if before is None or replace(entry, at=before.at) != before:
            new.append(entry)
    ledger.append(*new)
    return tuple(new)


def settle_from(
    ledger: OpenLedger,
    shell: Shell,
    books: Books,
    *,
    cluster: str,
    since: datetime,
    now: datetime,
    ids: Sequence[str] = (),
) -> Accounted:
    """Asks the cluster for the period and for every job that is still open, and settles them."""
    entries = ledger.read().entries
    wanted = {key[1] for key in open_parts(entries) if key[0] == cluster}
    accounted = accounting.uses(
        shell, cluster, since=since, until=now, ids=sorted({*wanted, *ids}, key=int)
    )
    settle(ledger, accounted, books, since=since, now=now)
    return accounted


def plain(amount: Decimal) -> Decimal:
    """Six digits behind the point, as in the outputs of the stack."""
    return rounded(amount, Decimal("0.000001"))


def _padding(use: JobUse, books: Books, before: ActualEntry | None) -> Decimal | None:
    """Padding of the job's training in percent; ids repeat, so the times must fit too."""
    for record in books.records:
        if (record.job_id, record.stack) != (use.job_id, books.spec.name):
            continue
        inside = any(
            run.started_at - _CLOCKS_APART <= record.started_at
            and (run.ended_at is None or record.finished_at <= run.ended_at + _CLOCKS_APART)
            for run in use.runs
        )
        if inside:
            return record.metrics.get(PADDING_METRIC)
    return None if before is None else before.padding_percent
