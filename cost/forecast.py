"""Hours and dollars of a run before it starts: forecast(job, rates, records, sets).

Owns how many tokens a run reads and how fast. A speed is measured (a run record of the same recipe,
preset and number of nodes) or declared with its source; without one the answer is UnknownRun, with
the command that would tell. What an hour costs is in run_rates.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Final

from cost.preemption import Disturbance, disturbance, same_run
from cost.run_rates import RunRates
from cost.run_record import Kind, Outcome, RunRecord
from stacks.cost_spec import RunForecastSpec
from stacks.node_spec import Billing, WorkerSpec
from stacks.slurm_spec import JobSpec
from stacks.slurm_time import slurm_seconds
from stacks.spec import StackSpec

SPEED_METRIC: Final = "train_tokens_per_s"
STEP_METRIC: Final = "train_step_s"
"""Mean, over the same steps as the speed."""
TOKENS_METRIC: Final = "num_train_tokens"
SECONDS_PER_HOUR: Final = Decimal(3600)
_EPOCHS_SETTING: Final = "train.epochs"
_STEPS_SETTING: Final = "train.max_steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpeed:
    """Tokens that all ranks train on in a second, and who says so."""

    tokens_per_s: Decimal
    source: str
    measured_on: date | None
    """Day of the measurement; None for a declared speed."""
    tokens_per_step: Decimal | None = None
    """Of all ranks; None where nothing measured it."""

    def __str__(self) -> str:
        """The speed with its origin."""
        origin = "declared" if self.measured_on is None else f"measured on {self.measured_on}"
        return f"{self.tokens_per_s:,.1f} tokens/s, {origin}: {self.source}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What one run is going to take."""

    job: str
    num_nodes: int
    worker: WorkerSpec
    """Nodes that the job is priced on: the dearest that its partition may give it."""
    num_tokens: Decimal
    speed: TrainSpeed
    busy_hours: Decimal
    """Without any preemption."""
    disturbance: Disturbance | None
    """What preemptions add; None on nodes that are not preempted."""
    hours: Decimal
    """Expected, preemptions included."""
    nodes_usd: Decimal | None
    """US dollars of the job's own nodes; None when their price is not known."""
    cluster_share_usd: Decimal | None
    """The nodes with their share of what the rest of the cluster costs meanwhile."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownRun:
    """A run that nothing is known about but its time limit."""

    job: str
    num_nodes: int
    reason: str
    fix: str
    """What to run or declare, so that it becomes known."""
    at_most_usd: Decimal | None
    """US dollars of the job's own nodes up to its time limit; None when not known."""

    def __str__(self) -> str:
        """The state with its way out, in one line."""
        return f"NOT KNOWN: {self.reason}; {self.fix}"


def forecast(
    job: JobSpec, rates: RunRates, records: Sequence[RunRecord], sets: Sequence[str] = ()
) -> Forecast | UnknownRun:
    """The run's expected hours and US dollars; `sets` are the settings of one submission."""
    spec = rates.spec
    worker = rates.dearest(job)
    declared = next((each for each in spec.runs if each.job == job.name), None)
    if worker is None:
        return _unknown(job, rates, None, f"no nodes fit {job.name}", f"see jobs of {spec.name}")
    if job.is_acceptance:
        reason = f"{job.name} reads no tokens"
        return _unknown(job, rates, worker, reason, "its profile decides how long it takes")
    if declared is None:
        reason = f"no entry of runs says how many tokens {job.name} reads"
        return _unknown(job, rates, worker, reason, _how_to_declare(spec, job, records))
    speed = _speed(declared, job, rates.workers_of(job), records)
    if speed is None:
        return _unknown(
            job,
            rates,
            worker,
            f"the speed of {job.recipe} on {job.nodes} x {worker.preset} is neither measured "
            "nor declared",
            f"run: soperator submit {job.name} --stack {spec.name}, then soperator pull its id",
        )
    return _known(job, rates, worker, declared, speed, records, sets)


def forecasts(rates: RunRates, records: Sequence[RunRecord]) -> tuple[Forecast | UnknownRun, ...]:
    """One for each declared job that trains, in declared order."""
    named = {each.job for each in rates.spec.runs}
    return tuple(
        forecast(job, rates, records)
        for job in rates.spec.jobs
        if job.name in named or job.module == "workloads.train"
    )


def _known(
    job: JobSpec,
    rates: RunRates,
    worker: WorkerSpec,
    declared: RunForecastSpec,
    speed: TrainSpeed,
    records: Sequence[RunRecord],
    sets: Sequence[str],
) -> Forecast:
    notes: list[str] = []
    epochs, steps = _asked(declared, speed, sets, notes)
    counted = _counted(rates.spec, job, records)
    tokens_per_epoch = Decimal(declared.tokens_per_epoch)
    if counted is not None and counted[0] != tokens_per_epoch:
        tokens_per_epoch = counted[0]
        notes.append(
            f"{counted[1]} counted {counted[0]:,f} train tokens, the stack declares "
            f"{declared.tokens_per_epoch:,}: the count is used"
        )
    num_tokens = tokens_per_epoch * epochs
    if steps is not None and speed.tokens_per_step is not None:
        num_tokens = steps * speed.tokens_per_step
    busy_hours = num_tokens / speed.tokens_per_s / SECONDS_PER_HOUR
    losses, hours = _disturbed(rates.spec, job, worker, busy_hours, records, notes)
    nodes_usd = rates.nodes_usd(worker, job.nodes, hours)
    if nodes_usd is None:
        notes.append(f"a node of {worker.name} has no price in book {rates.book.name}")
    limit_s = slurm_seconds(job.time_limit)
    if limit_s is not None and hours * SECONDS_PER_HOUR > limit_s:
        notes.append(
            f"time_limit {job.time_limit} is shorter than the {hours:.2f} hours of the forecast: "
            "Slurm would end the job before it is done; raise it in the stack"
        )
    return Forecast(
        job=job.name,
        num_nodes=job.nodes,
        worker=worker,
        num_tokens=num_tokens,
        speed=speed,
        busy_hours=busy_hours,
        disturbance=losses,
        hours=hours,
        nodes_usd=nodes_usd,
        cluster_share_usd=rates.share_usd(nodes_usd, job.nodes, hours),
        notes=tuple(notes),
    )


def _asked(
    declared: RunForecastSpec, speed: TrainSpeed, sets: Sequence[str], notes: list[str]
) -> tuple[Decimal, Decimal | None]:
    """Epochs of this submission, and steps instead of them; what is not counted is named."""
    epochs, steps = declared.epochs, None
    for setting in sets:
        key, _, value = setting.partition("=")
        try:
            wanted = Decimal(value)
        except InvalidOperation:
            wanted = Decimal("NaN")
        if key not in (_EPOCHS_SETTING, _STEPS_SETTING):
            notes.append(f"--set {setting} is not in the forecast")
        elif value == "null":  # a recipe has either, and the other takes its place
            continue
        elif not (wanted.is_finite() and wanted > 0):
            kind = key.rpartition("_")[2].removeprefix("train.")
            notes.append(f"--set {setting} is no number of {kind} and not in the forecast")
        elif key == _EPOCHS_SETTING:
            epochs = wanted
        elif speed.tokens_per_step is None:
            notes.append(
                f"--set {setting} is not in the forecast: no run of this recipe on these nodes has "
                "told how many tokens a step reads"
            )
        else:
            steps = wanted
    return epochs, steps


def _disturbed(
    spec: StackSpec,
    job: JobSpec,
    worker: WorkerSpec,
    busy_hours: Decimal,
    records: Sequence[RunRecord],
    notes: list[str],
) -> tuple[Disturbance | None, Decimal]:
    """Expected hours with preemptions, on nodes that have any."""
    if worker.billing is not Billing.PREEMPTIBLE:
        return None, busy_hours
    if spec.preemption is None:
        notes.append(
            f"{worker.name} is preemptible and the stack declares no preemption: no losses counted"
        )
        return None, busy_hours
    losses = disturbance(spec.preemption, job, worker, records)
    found = losses.slowdown
    if found is None:
        notes.append(
            f"at {losses.preemptions_per_node_day} preemptions a node-day on {job.nodes} nodes "
            "the run would never end; use fewer or on-demand nodes. The hours are without any"
        )
        return losses, busy_hours
    return losses, busy_hours * found.factor


def _speed(
    declared: RunForecastSpec,
    job: JobSpec,
    workers: Sequence[WorkerSpec],
    records: Sequence[RunRecord],
) -> TrainSpeed | None:
    """The newest measurement of the same run, else the declared speed."""
    for record in sorted(records, key=lambda each: (each.finished_at, each.job_id), reverse=True):
        tokens_per_s = record.metrics.get(SPEED_METRIC, Decimal(0))
        if tokens_per_s > 0 and any(same_run(record, job, worker) for worker in workers):
            step_s = record.metrics.get(STEP_METRIC)
            device = "unknown device" if record.hardware is None else record.hardware.device
            return TrainSpeed(
                tokens_per_s=tokens_per_s,
                source=f"job {record.job_id} of stack {record.stack or '?'} on {device}",
                measured_on=record.finished_at.date(),
                tokens_per_step=None if step_s is None else tokens_per_s * step_s,
            )
    if declared.train_tokens_per_s is None:
        return None
    return TrainSpeed(
        tokens_per_s=declared.train_tokens_per_s,
        source=declared.source or "no source",
        measured_on=None,
    )


def _counted(
    spec: StackSpec, job: JobSpec, records: Sequence[RunRecord]
) -> tuple[Decimal, str] | None:
    """Train tokens that the newest run of the job's data job counted, and that run's name."""
    recipes = {each.recipe for each in spec.jobs if each.name in job.after}
    found = [
        record
        for record in records
        if record.kind == Kind.PREPARE_DATA
        and record.outcome is Outcome.PASS
        and record.recipe in recipes
        and record.metrics.get(TOKENS_METRIC, Decimal(0)) > 0
    ]
    if not found:
        return None
    newest = max(found, key=lambda record: (record.finished_at, record.job_id))
    return newest.metrics[TOKENS_METRIC], f"job {newest.job_id}"


def _how_to_declare(spec: StackSpec, job: JobSpec, records: Sequence[RunRecord]) -> str:
    counted = _counted(spec, job, records)
    entry = f"declare runs: [{{job: {job.name}, tokens_per_epoch: %s}}]"
    if counted is not None:
        return f"{entry % f'{counted[0]:f}'} ({counted[1]} counted them)"
    if job.after:
        return (
            f"run: soperator submit {job.after[0]} --stack {spec.name}, pull it, and "
            f"{entry % f'its {TOKENS_METRIC}'}"
        )
    return entry % "N"


def _unknown(
    job: JobSpec, rates: RunRates, worker: WorkerSpec | None, reason: str, fix: str
) -> UnknownRun:
    limit_s = slurm_seconds(job.time_limit)
    at_most_usd = None
    if worker is not None and limit_s is not None:
        at_most_usd = rates.nodes_usd(worker, job.nodes, limit_s / SECONDS_PER_HOUR)
    return UnknownRun(
        job=job.name, num_nodes=job.nodes, reason=reason, fix=fix, at_most_usd=at_most_usd
    )
