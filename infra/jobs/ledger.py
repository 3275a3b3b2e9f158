"""Money of jobs: rates and ledger, what is spent and reserved, whether a budget has room.

The ledger is `<state>/runs/<stack>/ledger.jsonl`; ended jobs are settled from what Slurm accounts.
Between members Slurm's own queue is the ledger: a job is submitted held, and let go once the jobs
that were there before it leave it room. Amounts are computed in cost/.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from getpass import getuser
from pathlib import Path

from cost.report.layout import rounded, small_usd_text
from cost.resources.estimate import Estimate, estimate
from cost.run_record import RunRecord
from cost.runs.budget import Charge, MonthBudget, month_budget, queue_charge
from cost.runs.forecast import Forecast, UnknownRun, forecast, learned
from cost.runs.ledger import (
    FILE_NAME,
    ActualEntry,
    Content,
    Entry,
    ForecastEntry,
    Ledger,
    LedgerError,
    LineError,
    OpenLedger,
    OverrideEntry,
    VersionError,
    actuals,
    decode,
    encode,
    forecasts,
    open_parts,
)
from cost.runs.spend import JobUse, Spend, month_of, spend
from infra.clients import slurm
from infra.clients.errors import JobsError
from infra.clients.slurm import Accounted, Shell
from infra.jobs.records import load_records
from infra.operate.prices import price_book
from infra.operate.sessions import Ask
from infra.render.names import shell_file
from stacks.spec import StackSpec
from stacks.spec.slurm import JobSpec

Told = Mapping[str, Sequence[Entry]]
"""What members wrote down about their own jobs, by who owns the file."""
Log = Callable[[str], object]
"""Gets what is worth a line to the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLedger:
    """One stack's money, as this machine knows it."""

    spec: StackSpec
    rates: Estimate
    file: Ledger
    records: tuple[RunRecord, ...]
    log: Log

    def forecast(self, job: JobSpec, sets: Sequence[str] = ()) -> Forecast | UnknownRun:
        """What the job is going to take with these settings."""
        return forecast(job, self.rates, self.records, sets)

    def month(
        self,
        entries: Sequence[Entry],
        now: datetime,
        queue: Sequence[Charge] = (),
        told: Told | None = None,
    ) -> MonthBudget | None:
        """The budget's month; None where the stack declares no budget."""
        budget = self.spec.budget
        return None if budget is None else month_budget(budget, entries, now, queue, told)

    @contextmanager
    def locked(self, shell: Shell, cluster: str) -> Generator[OpenBooks]:
        """The ledger for the caller alone, and `shell` on the cluster with this host key."""
        with self.file.locked() as file:
            yield OpenBooks(ledger=self, file=file, shell=shell, cluster=cluster)

    @property
    def account(self) -> str | None:
        """Whose jobs are this stack's on a cluster that others run; None there: the user's own."""
        return None if self.spec.attached is None else self.spec.charge.account

    @property
    def is_alone(self) -> bool:
        """Whether the user's own jobs alone are this stack's."""
        return self.spec.attached is not None and self.account is None


def open_ledger(spec: StackSpec, state: Path, log: Log) -> JobLedger:
    """The stack's ledger in this state folder; `log` also gets a line where records are damaged."""
    book = price_book(spec, state)
    file = Ledger(state / "runs" / spec.name / FILE_NAME)
    spec = learned(spec, file.read().entries)
    return JobLedger(
        spec=spec,
        rates=estimate(spec, book),
        file=file,
        records=load_records(state, spec.name, log),
        log=log,
    )


PADDING_METRIC = "padding_percent"
# A record's clock is the node's, the times of its job are the controller's.
_CLOCKS_APART = timedelta(minutes=5)


def settle(
    opened: OpenLedger, accounted: Accounted, ledger: JobLedger, *, since: datetime, now: datetime
) -> tuple[ActualEntry, ...]:
    """Writes down what jobs cost that ended and are not in the ledger like this yet."""
    known = actuals(opened.read().entries)
    moments = [run.started_at for use in accounted.uses for run in use.runs]
    moments += [run.ended_at for use in accounted.uses for run in use.runs if run.ended_at]
    # From the first start to the last end, so that each job is priced whole, whatever the clocks.
    first, last = min([since, *moments]), max([now, *moments])
    total = spend(ledger.rates, accounted.uses, since=first, until=last)
    new: list[ActualEntry] = []
    for job in total.jobs:
        use = job.use
        before = known.get((use.cluster, use.job_id))
        # Who shared a node before `since` is not known any more: what was written before stands.
        is_cut = any(run.started_at < since for run in use.runs)
        if not use.is_finished or (before and is_cut and before.state == use.state):
            continue
        entry = ActualEntry(
            at=now,
            node_hours=plain(job.node_hours),
            nodes_usd=None if job.nodes_usd is None else plain(job.nodes_usd),
            padding_percent=_padding(use, ledger, before),
            **use.accounted,
        )
        if before is None or encode(replace(entry, at=before.at)) != encode(before):
            new.append(entry)
    opened.append(*new)
    return tuple(new)


def _lost(use: JobUse, before: ActualEntry | None, now: datetime) -> JobUse:
    """A job that slurmctld forgot, as one that ended: when that was first seen, or at its limit.

    Its nodes were its own no longer than that; where it never started it had none.
    """
    runs = tuple(
        replace(run, ended_at=run.ended_at or use.end_at_most(run.started_at, now))
        for run in use.runs
    )
    if before is not None and before.state == slurm.FORGOTTEN and len(before.runs) == len(runs):
        runs = before.runs
    return replace(use, state=slurm.FORGOTTEN, is_finished=True, runs=runs)


def plain(amount: Decimal) -> Decimal:
    """Six digits behind the point, as in the outputs of the stack."""
    return rounded(amount, Decimal("0.000001"))


def _padding(use: JobUse, ledger: JobLedger, before: ActualEntry | None) -> Decimal | None:
    """Padding of the job's training in percent; ids repeat, so the times must fit too."""
    for record in ledger.records:
        if (record.job_id, record.stack) != (use.job_id, ledger.spec.name):
            continue
        inside = any(
            run.started_at - _CLOCKS_APART <= record.started_at
            and (run.ended_at is None or record.finished_at <= run.ended_at + _CLOCKS_APART)
            for run in use.runs
        )
        if inside:
            return record.metrics.get(PADDING_METRIC)
    return None if before is None else before.padding_percent


Entries = tuple[Entry, ...]


class OverBudgetError(JobsError):
    """A job that was taken back before it could start, as the budget has no room for it."""


def expected(
    run: Forecast | UnknownRun, cluster: str, num_tasks: int = 1, *, at: datetime | None = None
) -> ForecastEntry:
    """What the ledger gets of a run; `num_tasks`: of an array that it is of all together."""
    is_known = isinstance(run, Forecast)
    return ForecastEntry(
        at=at or datetime.now(UTC),
        job=run.job,
        job_id="",
        cluster=cluster,
        num_nodes=run.num_nodes,
        hours=plain(run.hours) if is_known else None,
        nodes_usd=plain(run.nodes_usd) if is_known and run.nodes_usd is not None else None,
        basis=str(run.speed) if is_known else str(run),
        num_tasks=num_tasks,
        at_most_usd=None if is_known or run.at_most_usd is None else plain(run.at_most_usd),
    )


def own_name() -> str:
    """Who submits, as this machine knows them; the number where it has no name for them."""
    try:
        return getuser()
    except (KeyError, OSError):
        return str(os.getuid())


@contextmanager
def named(job_id: str, what: str) -> Generator[None]:
    """Errors in the block name the job, so that nobody submits it once more and pays double."""
    try:
        yield
    except OverBudgetError:
        raise
    except (JobsError, LedgerError) as error:
        raise JobsError(f"{error}; job {job_id} {what}") from error


def _basis(entry: ForecastEntry) -> str:
    """Where a cost is from that a budget holds a run to."""
    return "the cost up to the time limit" if entry.nodes_usd is None else "the forecast"


def budget_lines(ledger: JobLedger, run: Forecast | UnknownRun, now: datetime) -> tuple[str, ...]:
    """What the budget would say to the run, from the ledger as it is; nothing without a budget."""
    entry = expected(run, "", at=now)
    return lines_together(ledger, run.job, entry.held_usd, now, basis=_basis(entry))


def lines_together(
    ledger: JobLedger, what: str, usd: Decimal | None, now: datetime, *, basis: str = "the forecast"
) -> tuple[str, ...]:
    """What the budget would say to jobs that cost this together; nothing without a budget."""
    content = ledger.file.read()
    month = ledger.month(content.entries, now)
    if month is None:
        return content.problems
    refusal = month.refusal(what, usd, basis=basis)
    return (*content.problems, str(month), *([] if refusal is None else [f"refused: {refusal}"]))


def check_together(
    ledger: JobLedger, shell: Shell, cluster: str, what: str, usd: Decimal | None
) -> None:
    """Refuses several jobs before the first is submitted, where they are more than what is left."""
    if ledger.spec.budget is None or usd is None:
        return
    with ledger.locked(shell, cluster) as books:
        month = books.month(datetime.now(UTC))
    refusal = None if month is None else month.refusal(what, usd)
    if refusal is not None:
        raise JobsError(f"{refusal}; nothing was submitted")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBooks:
    """The ledger of a stack while nobody else writes it, and the cluster whose jobs it counts."""

    ledger: JobLedger
    file: OpenLedger
    shell: Shell
    cluster: str
    """Host key of the login node."""

    @property
    def folder(self) -> str | None:
        """Where members of a team tell each other what their jobs cost; None: nowhere."""
        budget = self.ledger.spec.budget
        return None if budget is None else budget.ledger

    def settle(self, *, since: datetime, now: datetime, ids: Sequence[str] = ()) -> Accounted:
        """Asks the cluster for the period and every job that is still open, and settles them."""
        entries, cluster = self.file.read().entries, self.cluster
        wanted = {key[1] for key in open_parts(entries) if key[0] == cluster}
        accounted = slurm.uses(
            self.shell,
            cluster,
            since=since,
            until=now,
            ids=sorted({*wanted, *ids}, key=int),
            mine=self.ledger.is_alone,
            account=self.ledger.account,
        )
        active = {use.job_id for use in accounted.queued}
        still = {use.job_id for use in accounted.uses if not use.is_finished} - active
        lost, known = slurm.forgotten(self.shell, sorted(still)), actuals(entries)
        settled = tuple(
            _lost(use, known.get((cluster, use.job_id)), now) if use.job_id in lost else use
            for use in accounted.uses
        )
        accounted = replace(accounted, uses=settled)
        settle(self.file, accounted, self.ledger, since=since, now=now)
        return accounted

    def month(self, now: datetime) -> MonthBudget | None:
        """The month, every end that the cluster knows written down; None without a budget."""
        if self.ledger.spec.budget is None:
            return None
        queue: tuple[JobUse, ...] = ()
        try:
            accounted = self.settle(since=month_of(now)[0], now=now)
            queue = accounted.queue
            if accounted.is_private:
                self.ledger.log(PRIVATE)
            if not (accounted.has_accounting or self.ledger.is_alone or self.folder):
                self.ledger.log(NO_PLACE)
        except JobsError as error:
            self.ledger.log(
                f"accounting does not answer ({error}); the budget is checked by the ledger alone"
            )
        told = self.exchange(self.ledger.log)
        content = self.file.read()
        for problem in content.problems:
            self.ledger.log(problem)
        charges = [queue_charge(self.ledger.rates, use, now) for use in queue]
        return self.ledger.month(content.entries, now, charges, told)

    def within_budget(self, entry: ForecastEntry, *, force: bool) -> tuple[Entries, bool]:
        """What the ledger gets once the job has its number, and whether it is submitted held.

        Refused where the budget has no room and no `force`. A held job is decided about once it is
        queued.
        """
        month = self.month(entry.at)
        if month is None:
            return (entry,), False
        usd = entry.held_usd
        if usd is None:
            self.ledger.log(
                f"{entry.job}: its cost is not known, so the budget does not hold it back"
            )
        refusal = month.refusal(entry.job, usd, basis=_basis(entry))
        if refusal is not None and not force:
            raise JobsError(refusal)
        self.ledger.log(str(month))
        if refusal is None or usd is None:
            return (entry,), not force and usd is not None
        self.ledger.log(f"{entry.job}: submitted over the budget with --force; the ledger says so")
        override = OverrideEntry(
            at=entry.at,
            job=entry.job,
            job_id="",
            cluster=entry.cluster,
            user=own_name(),
            forecast_usd=usd,
            left_usd=plain(month.left_usd),
            budget_usd=month.budget_usd,
        )
        return (entry, override), False

    def tell(self) -> None:
        """Tells the team what is written down; it can wait, so that an error of it is only said."""
        try:
            self.exchange()
        except JobsError as error:
            self.ledger.log(
                f"{error}; the job is written down here, and the team is told at the next submit"
            )

    def exchange(self, log: Log = lambda _line: None) -> Told:
        """Tells the team what the jobs submitted from here cost, and returns what its members tell.

        Through `budget.ledger`; without one nobody tells anything. JobsError where it is not safe.
        """
        folder, cluster = self.folder, self.cluster
        if folder is None:
            return {}
        entries = self.file.read().entries
        own = {key for key in forecasts(entries) if key[0] == cluster}
        lines = [
            encode(each)
            for each in entries
            if not isinstance(each, OverrideEntry)
            and {(each.cluster, each.job_id), (each.cluster, getattr(each, "array_id", None))} & own
        ]
        script = f"{shell_file('own_folder')}\n{shell_file('team_ledger', __file__)}"
        words = f"folder={shlex.quote(folder)} alone={'yes' if self.ledger.is_alone else ''}"
        stdin = "".join(f"{line}\n" for line in lines).encode()
        result = self.shell.run(f"{words} bash -c {shlex.quote(script)}", stdin=stdin)
        if not result.ok:
            raise JobsError(f"budget.ledger: {result.stderr.strip() or 'it cannot be read'}")
        for line in result.stderr.splitlines():
            log(f"budget.ledger: {line}")
        told, damaged = dict[str, list[Entry]](), dict[str, list[str]]()
        for line in filter(None, result.stdout.split("\n")):
            user, _, text = line.partition("\t")
            try:
                entry = decode(text)
            except (LineError, VersionError) as error:
                damaged.setdefault(user, []).append(str(error))
                continue
            if entry.cluster == cluster and not isinstance(entry, OverrideEntry):
                told.setdefault(user, []).append(entry)
        for user, why in damaged.items():
            what = f"{len(why)} lines of {user} are left out, the first of them: {why[0][:200]}"
            log(f"budget.ledger: {what}")
        return told

    def decide(self, entry: ForecastEntry, job_id: str) -> None:
        """Lets a held job go where it fits beside all that Slurm took before, else takes it back.

        slurmctld numbers jobs one after the other, so of those that are decided at once the last
        one sees all others: together they never pass the budget, whoever decides first. Of jobs
        that ended since the ledger was settled the queue knows for minutes (MinJobAge).
        """
        now, ledger, shell = datetime.now(UTC), self.ledger, self.shell
        queue = slurm.queue(shell, entry.cluster, mine=ledger.is_alone, account=ledger.account)
        own = [use for use in queue if use.forecast_key[1] == job_id]
        if not any(use.is_held for use in own):
            return
        others = [
            use
            for use in queue
            if use not in own and not (use.is_held and int(use.forecast_key[1]) > int(job_id))
        ]
        charges = [queue_charge(ledger.rates, use, now) for use in others]
        told = self.exchange()
        month = ledger.month(self.file.read().entries, now, charges, told)
        usd = entry.nodes_usd
        if usd is None:
            limits = [queue_charge(ledger.rates, use, now).usd for use in own]
            usd = None if None in limits else sum(filter(None, limits), Decimal(0))
        refusal = month and month.refusal(
            entry.job, usd, user=own[0].user, account=own[0].account, basis=_basis(entry)
        )
        if refusal is not None:
            slurm.cancel(shell, [job_id])
            raise OverBudgetError(f"{refusal}; job {job_id} was taken back before it could start")
        slurm.release(shell, job_id)


def write_down(file: OpenLedger, entries: Entries, job_id: str) -> bool:
    """Adds the entries of a submission under its number; False: they are there already."""
    is_new = (entries[0].cluster, job_id) not in forecasts(file.read().entries)
    if is_new:
        file.append(*(replace(entry, job_id=job_id) for entry in entries))
    return is_new


def admit_session(ledger: JobLedger, shell: Shell, asked: Ask, cluster: str) -> bool:
    """Decides of a session's held job, and writes it down; False while Slurm has not got it."""
    number = slurm.id_of(shell, asked.name)
    if number is None:
        return False
    entry = ForecastEntry(
        at=datetime.now(UTC),
        job=asked.name,
        job_id=number,
        cluster=cluster,
        num_nodes=1,
        hours=plain(asked.hours),
        nodes_usd=None if asked.most_usd is None else plain(asked.most_usd),
        basis="the time limit of the session",
    )
    with ledger.locked(shell, cluster) as books:
        with named(number, "is the session's, and is ended with it"):
            books.decide(entry, number)
            write_down(books.file, (entry,), number)
        books.tell()
    return True


PRIVATE = (
    "Slurm shows this user the own jobs alone (PrivateData=jobs): of what other members spend and "
    "reserve these sums have what budget.ledger tells alone; ask the administrators to take jobs "
    "out of PrivateData of slurm.conf and slurmdbd.conf"
)
NO_PLACE = (
    "Slurm keeps no accounts there and the stack names no budget.ledger: of other members' ended "
    "jobs those alone count that this machine saw in time; ask root for: install -d -m 1770 -g "
    "GROUP FOLDER"
)
# Slurm forgets a job that nothing was written down about at its submission, but not so soon.
_LOOK_BACK = timedelta(days=31)


def report_of_cluster(
    ledger: JobLedger,
    shell: Shell,
    *,
    cluster: str,
    since: datetime,
    until: datetime,
    now: datetime,
) -> Spend:
    """What sacct knows of this cluster, and the ledger of former ones; ended jobs are settled."""
    notes: list[str] = []
    with ledger.locked(shell, cluster) as books:
        accounted = books.settle(since=since, now=now)
        content = books.file.read()
        told = books.exchange(notes.append)
    if not (accounted.has_accounting or books.folder):
        more = "" if ledger.spec.attached else " Set slurm.accounting: true to know all."
        notes.append(
            "Accounting is off on this cluster: ended jobs are those of the ledger, which knows "
            f"what was pulled or asked for soon after its end.{more}"
        )
    seen = frozenset((use.cluster, use.job_id) for use in accounted.uses)
    uses = (*accounted.uses, *uses_of(content.entries, but=seen))
    seen |= {(use.cluster, use.job_id) for use in uses}
    uses += tuple(
        replace(use, user=who, told_by=who) for who in told for use in uses_of(told[who], but=seen)
    )
    if accounted.is_private:
        notes.append(PRIVATE)
    charges = [queue_charge(ledger.rates, use, now) for use in accounted.queue]
    month = ledger.month(content.entries, now, charges, told)
    return _report(ledger, content, uses, notes, month, since=since, until=until)


def report_of_ledger(
    ledger: JobLedger, *, since: datetime, until: datetime, now: datetime
) -> Spend:
    """What the ledger alone knows: jobs whose end was written down."""
    content = ledger.file.read()
    still_open = open_parts(content.entries)
    notes = ["From the ledger alone: jobs that it has no end of are not in these sums."]
    if still_open:
        ids = ", ".join(job_id for _, job_id in still_open)
        notes.append(f"Without an end: jobs {ids}.")
    uses = uses_of(content.entries, but=frozenset())
    month = ledger.month(content.entries, now)
    return _report(ledger, content, uses, notes, month, since=since, until=until)


def note_actual(ledger: JobLedger, shell: Shell, cluster: str, job_id: str) -> str:
    """Settles one job that ended, and says what it cost beside its forecast, in one line."""
    now = datetime.now(UTC)
    with ledger.locked(shell, cluster) as books:
        own = forecasts(books.file.read().entries).get((cluster, job_id))
        since = now - _LOOK_BACK if own is None else own.at
        accounted = books.settle(since=since, now=now, ids=[job_id])
        entries = books.file.read().entries
        books.tell()
    actual = actuals(entries).get((cluster, job_id))
    if actual is None and not accounted.has_accounting:
        return f"job {job_id}: Slurm keeps no accounts there and has forgotten it: cost not known"
    if actual is None:
        later = f"`soperator cost spend -s {ledger.spec.name}`"
        return f"job {job_id}: accounting does not know its end yet; see {later} later"
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
        JobUse(is_finished=True, **entry.accounted)
        for key, entry in actuals(entries).items()
        if key not in but
    )


def _report(
    ledger: JobLedger,
    content: Content,
    uses: Sequence[JobUse],
    notes: Sequence[str],
    month: MonthBudget | None,
    *,
    since: datetime,
    until: datetime,
) -> Spend:
    inside = tuple(
        use
        for use in uses
        if any(
            run.started_at < until and (run.ended_at is None or run.ended_at > since)
            for run in use.runs
        )
    )
    return spend(
        ledger.rates,
        inside,
        since=since,
        until=until,
        entries=content.entries,
        budget=month,
        notes=(*content.problems, *notes),
    )
