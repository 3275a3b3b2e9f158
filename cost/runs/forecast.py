"""Hours and dollars of a run before it starts, and what preemptions add: forecast(job, rates, ...).

A speed is measured (a run record of the same recipe, preset and number of nodes) or declared with
its source; without one the answer is UnknownRun, with the command that would tell.
Checkpoint intervals: J. W. Young, "A first order approximation to the optimum checkpoint interval",
Communications of the ACM 17(9), 1974, and J. T. Daly, "A higher order estimate of the optimum
checkpoint interval for restart dumps", Future Generation Computer Systems 22(3), 2006. Preemptions
are a Poisson process; any one of the job's nodes stops the job.
Also a job's recipe with the settings of stack and command line, as the job itself will read it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from typing import Any, Final

import yaml

from cost.report.layout import rounded
from cost.resources.estimate import Estimate
from cost.run_record import Kind, Outcome, RunRecord
from cost.runs.ledger import Entry, actuals
from cost.traced import decimal, named
from stacks.errors import UserError
from stacks.files import is_map
from stacks.load import STACKS_DIR
from stacks.machines import nodeset_of
from stacks.schedule import slurm_seconds
from stacks.spec import StackSpec
from stacks.spec.cost import PreemptionSpec, RunForecastSpec
from stacks.spec.nodes import Billing, WorkerSpec
from stacks.spec.slurm import RECIPE_ENDINGS, TRAIN_MODULE, JobSpec

SECONDS_PER_DAY: Final = Decimal(86400)
STALL_METRIC: Final = "checkpoint_stall_s"
# A segment that is 30 mean times long succeeds once in 1e13 tries: such a run never ends.
_HOPELESS: Final = Decimal(30)
_BISECTIONS: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """Seconds lost for each second of useful work, by cause."""

    checkpoint: Decimal
    lost_work: Decimal
    restart: Decimal

    @property
    def factor(self) -> Decimal:
        """Expected wall time over useful time, 1 or more."""
        return 1 + self.checkpoint + self.lost_work + self.restart


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Seconds that training stands still for one checkpoint, and who says so."""

    seconds: Decimal
    source: str
    measured_on: date | None
    """Day of the measurement; None for an assumption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """What a job on preemptible nodes has to expect."""

    stall: Stall
    restart_s: Decimal
    num_nodes: int
    preemptions_per_node_day: Decimal
    source: str
    """Where the rate and the restart time come from."""

    @property
    def mtbf_s(self) -> Decimal | None:
        """Mean seconds between preemptions of any node of the job; None when there are none."""
        per_day = self.preemptions_per_node_day * self.num_nodes
        return None if per_day == 0 else SECONDS_PER_DAY / per_day

    @property
    def interval_s(self) -> Decimal | None:
        """Daly's interval: seconds of work between checkpoints; None without preemptions."""
        mean_s = self.mtbf_s
        return None if mean_s is None else daly_interval_s(self.stall.seconds, mean_s)

    @property
    def young_s(self) -> Decimal | None:
        """Young's interval beside it; None without preemptions."""
        mean_s = self.mtbf_s
        return None if mean_s is None else young_interval_s(self.stall.seconds, mean_s)

    @property
    def slowdown(self) -> Slowdown | None:
        """Expected losses at Daly's interval; none without preemptions; None: it never ends."""
        mean_s, interval_s = self.mtbf_s, self.interval_s
        if mean_s is None or interval_s is None:
            return Slowdown(checkpoint=Decimal(0), lost_work=Decimal(0), restart=Decimal(0))
        return slowdown(interval_s, self.stall.seconds, self.restart_s, mean_s)

    def pays_up_to(self, price_ratio: Decimal) -> Decimal | None:
        """Preemptions a node-day up to which preemptible is cheaper; None: at every rate.

        `price_ratio` is the on-demand price over the preemptible one.
        """
        if price_ratio <= 1:
            return Decimal(0)
        if self.restart_s == 0 and self.stall.seconds == 0:
            return None
        low, high = Decimal(0), Decimal(1)
        while self._pays(high, price_ratio):
            low, high = high, 2 * high
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._pays(middle, price_ratio) else (low, middle)
        return low

    def _pays(self, per_node_day: Decimal, price_ratio: Decimal) -> bool:
        found = replace(self, preemptions_per_node_day=per_node_day).slowdown
        return found is not None and found.factor < price_ratio


def disturbance(
    preemption: PreemptionSpec, job: JobSpec, worker: WorkerSpec, records: Sequence[RunRecord]
) -> Disturbance:
    """The job's losses on the nodes, with the newest stall that was measured there, or assumed."""
    stall = Stall(seconds=preemption.checkpoint_stall_s, source=preemption.source, measured_on=None)
    for record in newest_first(records):
        seconds = record.metrics.get(STALL_METRIC)
        if seconds is not None and seconds >= 0 and same_run(record, job, worker):
            source = f"job {record.job_id} of stack {record.stack or '?'}"
            day = record.finished_at.date()
            stall = Stall(seconds=seconds, source=source, measured_on=day)
            break
    return Disturbance(
        stall=stall,
        restart_s=preemption.restart_s,
        num_nodes=job.nodes,
        preemptions_per_node_day=preemption.preemptions_per_node_day,
        source=preemption.source,
    )


_TAKEN: Final = frozenset({"NODE_FAIL", "REQUEUED", ""})
"""Ends of a stretch by its node; PREEMPTED is Slurm's for another job, on nodes of any billing."""


def learned(spec: StackSpec, entries: Sequence[Entry]) -> StackSpec:
    """Return the stack with the preemption rate that its own jobs met, and where that is from.

    The declared rate counts as one preemption in the node-days that it says one takes (the mean of
    a gamma distribution with that prior), so that a first lucky day proves nothing and a declared
    guess fades. A stretch that another one follows met a preemption, as the supervisor queues a job
    again that had its notice, but for PREEMPTED, a requeue by hand and a next one on more nodes.
    """
    declared = spec.preemption
    names = {each.name for each in spec.nodes.workers if each.billing is Billing.PREEMPTIBLE}
    num_preemptions, node_s, last = 0, Decimal(0), None
    for entry in actuals(entries).values():
        met = [
            (run, sum(nodeset_of(spec, node) in names for node in run.nodes))
            for run in entry.runs
            if run.ended_at is not None
        ]
        met = [(run, num_nodes) for run, num_nodes in met if num_nodes]
        for run, num_nodes in met:
            assert run.ended_at is not None
            node_s += num_nodes * Decimal(int((run.ended_at - run.started_at).total_seconds()))
            last = run.ended_at if last is None else max(last, run.ended_at)
        num_preemptions += bool(met) and entry.state == "NODE_FAIL"
        num_preemptions += sum(
            run.state in _TAKEN and num_nodes >= num_later
            for (run, num_nodes), (_, num_later) in pairwise(met)
        )
    if declared is None or last is None:
        return spec
    assumed = declared.preemptions_per_node_day
    days = node_s / SECONDS_PER_DAY
    rate = Decimal(num_preemptions) / days if days else assumed
    if assumed:
        rate = (num_preemptions + 1) / (days + 1 / assumed)
    source = (
        f"{declared.source}; the rate is learned: {num_preemptions} preemptions in {days:,.2f} "
        f"node-days of this stack's jobs until {last.date()}, and the declared {assumed:f} as one "
        "more"
    )
    rate = rounded(rate, Decimal("0.0001"))
    return replace(spec, preemption=replace(declared, preemptions_per_node_day=rate, source=source))


def young_interval_s(stall_s: Decimal, mean_s: Decimal) -> Decimal:
    """Young 1974: sqrt(2 * stall * MTBF), seconds of work between checkpoints."""
    return (2 * stall_s * mean_s).sqrt()


def daly_interval_s(stall_s: Decimal, mean_s: Decimal) -> Decimal:
    """Daly 2006, equation 37: seconds of work between checkpoints; MTBF when stall >= 2 MTBF."""
    if stall_s >= 2 * mean_s:
        return mean_s
    part = stall_s / (2 * mean_s)
    return young_interval_s(stall_s, mean_s) * (1 + part.sqrt() / 3 + part / 9) - stall_s


def slowdown(
    interval_s: Decimal, stall_s: Decimal, restart_s: Decimal, mean_s: Decimal
) -> Slowdown | None:
    """Expected losses with a checkpoint after every `interval_s` of work; None: it never ends.

    Daly 2006, equation 20: wall time = M e^(R/M) (e^((t + d)/M) - 1) T/t. A segment of t + d fails
    e^((t + d)/M) - 1 times before it succeeds, and each failure costs a restart of M (e^(R/M) - 1).
    """
    segment_s = interval_s + stall_s
    if max(segment_s, restart_s) > _HOPELESS * mean_s:
        return None
    restart_phase_s = mean_s * _expm1(restart_s / mean_s)
    if interval_s == 0:
        # Free checkpoints at every moment: no work is lost, and only restarts cost.
        return Slowdown(
            checkpoint=Decimal(0), lost_work=Decimal(0), restart=restart_phase_s / mean_s
        )
    num_failures = _expm1(segment_s / mean_s)
    return Slowdown(
        checkpoint=stall_s / interval_s,
        lost_work=(mean_s * num_failures - segment_s) / interval_s,
        restart=num_failures * restart_phase_s / interval_s,
    )


def _expm1(value: Decimal) -> Decimal:
    """e^value - 1; the first terms of the series keep small values from cancelling to nothing."""
    if value < Decimal("1e-6"):
        return value * (1 + value / 2 * (1 + value / 3))
    return value.exp() - 1


def newest_first(records: Iterable[RunRecord]) -> list[RunRecord]:
    """The records by their end, of equal ones by the number of the job."""
    return sorted(records, key=lambda each: (each.finished_at, each.job_id), reverse=True)


def same_run(record: RunRecord, job: JobSpec, worker: WorkerSpec) -> bool:
    """Whether the record measured this job: training that passed, same recipe, nodes and preset."""
    hardware = record.hardware
    return (
        record.outcome is Outcome.PASS
        and record.kind == Kind.TRAIN
        and record.recipe == job.recipe
        and hardware is not None
        and hardware.num_nodes == job.nodes
        and (hardware.platform, hardware.preset) == (worker.platform, worker.preset)
    )


SPEED_METRIC: Final = "train_tokens_per_s"
STEP_METRIC: Final = "train_step_s"
"""Mean, over the same steps as the speed."""
TOKENS_METRIC: Final = "num_train_tokens"
SECONDS_PER_HOUR: Final = Decimal(3600)
_EPOCHS_SETTING: Final = "train.epochs"
_STEPS_SETTING: Final = "train.max_steps"
_MOST: Final = 10**12
"""As of every number of a stack file: `epochs: 1e999999` in a grid overflows."""


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
    job: JobSpec, rates: Estimate, records: Sequence[RunRecord], sets: Sequence[str] = ()
) -> Forecast | UnknownRun:
    """The run's expected hours and US dollars; `sets` are the settings of one submission.

    train.max_steps of recipe and settings counts where a run has told how many tokens a step reads;
    until then the stack's `runs[].epochs` stand for it.
    """
    spec = rates.spec
    worker = rates.dearest(job)
    declared = next((each for each in spec.runs if each.job == job.name), None)
    if worker is None:
        return _unknown(job, rates, f"no nodes fit {job.name}", f"see jobs of {spec.name}")
    is_never = job.is_server or job.is_acceptance
    if is_never or (declared is None and job.module != TRAIN_MODULE):
        reason = "answers until somebody ends it" if job.is_server else "trains on no tokens"
        return _unknown(job, rates, f"{job.name} {reason}", f"its limit is {job.time_limit}")
    if declared is None:
        reason = f"no entry of runs says how many tokens {job.name} reads"
        return _unknown(job, rates, reason, _how_to_declare(spec, job, records))
    speed = _speed(declared, job, rates.workers_of(job), records)
    if speed is None:
        return _unknown(
            job,
            rates,
            f"the speed of {job.recipe} on {job.nodes} x {worker.preset} is neither measured "
            "nor declared",
            f"run: soperator submit {job.name} --stack {spec.name}, then soperator pull ID "
            f"--stack {spec.name}",
        )
    return _known(job, rates, worker, declared, speed, records, sets)


def forecasts(rates: Estimate, records: Sequence[RunRecord]) -> tuple[Forecast | UnknownRun, ...]:
    """One for each declared job that trains, in declared order."""
    named = {each.job for each in rates.spec.runs}
    return tuple(
        forecast(job, rates, records)
        for job in rates.spec.jobs
        if job.name in named or job.module == TRAIN_MODULE
    )


def _known(
    job: JobSpec,
    rates: Estimate,
    worker: WorkerSpec,
    declared: RunForecastSpec,
    speed: TrainSpeed,
    records: Sequence[RunRecord],
    sets: Sequence[str],
) -> Forecast:
    notes: list[str] = []
    epochs, steps = _epochs(declared, speed, sets, notes), max_steps(job, sets)
    counted = _counted(rates.spec, job, records)
    tokens_per_epoch = decimal(declared.tokens_per_epoch)
    if counted is not None and counted[0] != tokens_per_epoch:
        tokens_per_epoch = counted[0]
        notes.append(
            f"{counted[1]} counted {counted[0]:,f} train tokens, the stack declares "
            f"{declared.tokens_per_epoch:,}: the count is used"
        )
    num_tokens = tokens_per_epoch * epochs
    if steps is not None and speed.tokens_per_step is not None:
        num_tokens = steps * speed.tokens_per_step
    source = f"runs[{job.name}] x epochs, or counted; measured steps where train.max_steps is set"
    num_tokens = named(num_tokens, "tokens", source, beside=declared.epochs)
    per_s = named(speed.tokens_per_s, "tokens a second", str(speed), beside=declared.epochs)
    busy_hours = num_tokens / per_s / SECONDS_PER_HOUR
    losses, hours = _disturbed(rates.spec, job, worker, busy_hours, records, notes)
    nodes_usd = rates.job_usd(job, hours)
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


def _epochs(
    declared: RunForecastSpec, speed: TrainSpeed, sets: Sequence[str], notes: list[str]
) -> Decimal:
    """Epochs of this submission; a setting that is not counted is named."""
    epochs = declared.epochs
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
        elif not (wanted.is_finite() and 0 < wanted <= _MOST):
            kind = key.rpartition("_")[2].removeprefix("train.")
            notes.append(f"--set {setting} is no number of {kind} and not in the forecast")
        elif key == _EPOCHS_SETTING:
            epochs = wanted
        elif speed.tokens_per_step is None:
            notes.append(
                f"--set {setting} is not in the forecast: no run of this recipe on these nodes has "
                "told how many tokens a step reads"
            )
    return epochs


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
    source = f"Daly 2006 at {losses.preemptions_per_node_day} a node-day: {losses.source}"
    return losses, busy_hours * named(
        found.factor, "slowdown by preemptions", source, beside=busy_hours
    )


def _speed(
    declared: RunForecastSpec,
    job: JobSpec,
    workers: Sequence[WorkerSpec],
    records: Sequence[RunRecord],
) -> TrainSpeed | None:
    """The newest measurement of the same run, else the declared speed."""
    for record in newest_first(records):
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
    for record in newest_first(records):
        tokens = record.metrics.get(TOKENS_METRIC, Decimal(0))
        has_passed = record.kind == Kind.PREPARE_DATA and record.outcome is Outcome.PASS
        if has_passed and record.recipe in recipes and tokens > 0:
            return tokens, f"job {record.job_id}"
    return None


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


def limit_hours(job: JobSpec) -> Decimal:
    """Hours of its time limit; 0 where that is no time."""
    return Decimal(slurm_seconds(job.time_limit) or 0) / SECONDS_PER_HOUR


def _unknown(job: JobSpec, rates: Estimate, reason: str, fix: str) -> UnknownRun:
    is_limited = slurm_seconds(job.time_limit) is not None
    at_most_usd = rates.job_usd(job, limit_hours(job)) if is_limited else None
    return UnknownRun(
        job=job.name, num_nodes=job.nodes, reason=reason, fix=fix, at_most_usd=at_most_usd
    )


_FOLDER: Final = "workloads/recipes"


class RecipeError(UserError):
    """A recipe that is not there or cannot be read, or a setting of no section of it."""


def recipe_of(job: JobSpec, files: Mapping[str, bytes], sets: Sequence[str] = ()) -> dict[str, Any]:
    """The recipe that the job will run; its file is among `files`, path -> content."""
    return with_settings(_read(job, files), [*declared_settings(job), *sets])


def max_steps(job: JobSpec, sets: Sequence[str] = ()) -> int | None:
    """Train steps that bound the run, by this checkout's recipe; None: it counts epochs.

    None too where the recipe cannot be read or its number is wrong: the job itself refuses that.
    """
    paths = (STACKS_DIR.parent / _FOLDER / f"{job.recipe}{ending}" for ending in RECIPE_ENDINGS)
    files = {f"{_FOLDER}/{path.name}": path.read_bytes() for path in paths if path.is_file()}
    try:
        train = recipe_of(job, files, sets).get("train")
    except RecipeError:
        return None
    steps = train.get("max_steps") if is_map(train) else None
    return steps if type(steps) is int and steps > 0 else None


def with_settings(recipe: Mapping[str, Any], sets: Sequence[str]) -> dict[str, Any]:
    """The recipe with `a.b=c` settings, read as the workload reads them: JSON, else text."""
    result: dict[str, Any] = json.loads(json.dumps(recipe))
    for setting in sets:
        key, _, text = setting.partition("=")
        *parents, last = key.split(".")
        node = result
        for parent in parents:
            if not isinstance(node.setdefault(parent, {}), dict):
                raise RecipeError(f"--set {setting}: {parent!r} is no section of the recipe")
            node = node[parent]
        try:
            node[last] = json.loads(text)
        except ValueError:
            node[last] = text
    return result


def declared_settings(job: JobSpec) -> Iterator[str]:
    """Settings among the arguments that the stack gives the job."""
    words = iter(job.args)
    for word in words:
        flag, equals, text = word.partition("=")
        if flag not in ("--set", "--resume"):
            continue
        if not equals:
            text = next(words, None)
        if text is not None:  # else the job itself says that its last argument lacks a value
            yield text if flag == "--set" else f"train.resume={text}"


def _read(job: JobSpec, files: Mapping[str, bytes]) -> Mapping[str, Any]:
    for ending in RECIPE_ENDINGS:
        path = f"{_FOLDER}/{job.recipe}{ending}"
        if path not in files:
            continue
        try:
            # JSON is YAML, but YAML reads 2e-5 as text.
            read = json.loads if ending == ".json" else yaml.safe_load
            recipe: object = read(files[path])
        except (ValueError, yaml.YAMLError) as error:
            raise RecipeError(f"{path}: cannot be read: {error}") from error
        if not is_map(recipe):
            raise RecipeError(f"{path}: got {type(recipe).__name__}, expected a mapping")
        return recipe
    raise RecipeError(f"jobs.{job.name}.recipe: no file of {job.recipe!r} in workloads/recipes")
