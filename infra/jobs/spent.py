"""The spend report of one stack: from its cluster's accounting, or from the ledger alone.

Owns which source is used and that the report says so. Sums are cost/spend.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cost.budget import actuals, forecasts, open_parts
from cost.layout import small_usd_text
from cost.ledger import Content
from cost.ledger_entries import Entry
from cost.spend import JobUse, spend
from cost.spend_report import SpendReport, spend_report
from infra.jobs.books import Books
from infra.jobs.settle import settle_from
from infra.jobs.slurm import Shell

# Slurm forgets a job that nothing was written down about at its submission, but not so soon.
_LOOK_BACK = timedelta(days=31)


def report_of_cluster(
    books: Books, shell: Shell, *, cluster: str, since: datetime, until: datetime, now: datetime
) -> SpendReport:
    """What sacct knows of this cluster, and the ledger of former ones; ended jobs are settled."""
    with books.ledger.locked() as ledger:
        accounted = settle_from(ledger, shell, books, cluster=cluster, since=since, now=now)
        content = ledger.read()
    notes: list[str] = []
    if not accounted.has_accounting:
        notes.append(
            "Accounting is off on this cluster: ended jobs are those of the ledger, which knows "
            "what was pulled or asked for soon after its end. Set slurm.accounting: true to know "
            "all."
        )
    seen = frozenset((use.cluster, use.job_id) for use in accounted.uses)
    uses = (*accounted.uses, *uses_of(content.entries, but=seen))
    return _report(books, content, uses, notes, since=since, until=until, now=now)


def report_of_ledger(
    books: Books, *, since: datetime, until: datetime, now: datetime
) -> SpendReport:
    """What the ledger alone knows: jobs whose end was written down."""
    content = books.ledger.read()
    still_open = open_parts(content.entries)
    notes = ["From the ledger alone: jobs that it has no end of are not in these sums."]
    if still_open:
        ids = ", ".join(job_id for _, job_id in still_open)
        notes.append(f"Without an end: jobs {ids}.")
    uses = uses_of(content.entries, but=frozenset())
    return _report(books, content, uses, notes, since=since, until=until, now=now)


def note_actual(books: Books, shell: Shell, cluster: str, job_id: str) -> str:
    """Settles one job that ended, and says what it cost beside its forecast, in one line."""
    now = datetime.now(UTC)
    with books.ledger.locked() as ledger:
        own = forecasts(ledger.read().entries).get((cluster, job_id))
        since = now - _LOOK_BACK if own is None else own.at
        settle_from(ledger, shell, books, cluster=cluster, since=since, now=now, ids=[job_id])
        entries = ledger.read().entries
    actual = actuals(entries).get((cluster, job_id))
    if actual is None:
        return f"job {job_id}: accounting does not know its end yet; see `soperator spend` later"
    if actual.nodes_usd is None:
        return f"job {job_id}: {actual.node_hours:,.3f} node-hours; their price is not known"
    text = f"job {job_id}: {small_usd_text(actual.nodes_usd)}, {actual.node_hours:,.3f} node-hours"
    before = forecasts(entries).get((cluster, actual.array_id or job_id))
    expected_usd = None if before is None else before.usd_per_task
    if expected_usd:
        variance = (actual.nodes_usd - expected_usd) / expected_usd
        text += f"; forecast {small_usd_text(expected_usd)} ({100 * variance:+.1f} %)"
    if actual.padding_percent is not None:
        padding_usd = actual.nodes_usd * actual.padding_percent / 100
        text += f"; padding {small_usd_text(padding_usd)} ({actual.padding_percent:.1f} %)"
    return text


def uses_of(entries: Sequence[Entry], *, but: frozenset[tuple[str, str]]) -> tuple[JobUse, ...]:
    """Ended jobs as the ledger knows them, without those of the keys `but`."""
    return tuple(
        JobUse(
            cluster=entry.cluster,
            job_id=entry.job_id,
            name=entry.job,
            user=entry.user,
            partition=entry.partition,
            state=entry.state,
            is_finished=True,
            runs=entry.runs,
            array_id=entry.array_id,
            num_tasks=entry.num_tasks,
        )
        for key, entry in actuals(entries).items()
        if key not in but
    )


def _report(
    books: Books,
    content: Content,
    uses: Sequence[JobUse],
    notes: Sequence[str],
    *,
    since: datetime,
    until: datetime,
    now: datetime,
) -> SpendReport:
    inside = tuple(use for use in uses if _is_inside(use, since, until))
    return spend_report(
        spend(books.rates, inside, since=since, until=until),
        content.entries,
        heading=books.spec.bill_heading,
        budget=books.month(content.entries, now),
        notes=(*content.problems, *notes),
    )


def _is_inside(use: JobUse, since: datetime, until: datetime) -> bool:
    """Whether any run of the job reaches into the period."""
    return any(
        run.started_at < until and (run.ended_at is None or run.ended_at > since)
        for run in use.runs
    )
