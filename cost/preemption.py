"""What preemptions cost a training run: checkpoint intervals, expected slowdown, where they stop.

Formulas: J. W. Young, "A first order approximation to the optimum checkpoint interval",
Communications of the ACM 17(9), 1974, and J. T. Daly, "A higher order estimate of the optimum
checkpoint interval for restart dumps", Future Generation Computer Systems 22(3), 2006. Preemptions
are a Poisson process; any one of the job's nodes stops the job. Owns no prices (run_costs.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Final

from cost.run_record import Kind, Outcome, RunRecord
from stacks.cost_spec import PreemptionSpec
from stacks.node_spec import WorkerSpec
from stacks.slurm_spec import JobSpec

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
        return mtbf_s(self.preemptions_per_node_day, self.num_nodes)

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
        """Expected losses at that interval; None when the run would never end."""
        return best_slowdown(self.stall.seconds, self.restart_s, self.mtbf_s)

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
        mean_s = mtbf_s(per_node_day, self.num_nodes)
        found = best_slowdown(self.stall.seconds, self.restart_s, mean_s)
        return found is not None and found.factor < price_ratio


def disturbance(
    preemption: PreemptionSpec, job: JobSpec, worker: WorkerSpec, records: Sequence[RunRecord]
) -> Disturbance:
    """The job's losses on the nodes, with the stall that was measured there or is assumed."""
    return Disturbance(
        stall=_stall(preemption, job, worker, records),
        restart_s=preemption.restart_s,
        num_nodes=job.nodes,
        preemptions_per_node_day=preemption.preemptions_per_node_day,
        source=preemption.source,
    )


def mtbf_s(preemptions_per_node_day: Decimal, num_nodes: int) -> Decimal | None:
    """Mean seconds between preemptions of a job on so many nodes; None when there are none."""
    per_day = preemptions_per_node_day * num_nodes
    return None if per_day == 0 else SECONDS_PER_DAY / per_day


def young_interval_s(stall_s: Decimal, mean_s: Decimal) -> Decimal:
    """Young 1974: sqrt(2 * stall * MTBF), seconds of work between checkpoints."""
    return (2 * stall_s * mean_s).sqrt()


def daly_interval_s(stall_s: Decimal, mean_s: Decimal) -> Decimal:
    """Daly 2006, equation 37: seconds of work between checkpoints; MTBF when stall >= 2 MTBF."""
    if stall_s >= 2 * mean_s:
        return mean_s
    part = stall_s / (2 * mean_s)
    return young_interval_s(stall_s, mean_s) * (1 + part.sqrt() / 3 + part / 9) - stall_s


def best_slowdown(stall_s: Decimal, restart_s: Decimal, mean_s: Decimal | None) -> Slowdown | None:
    """Expected losses at Daly's interval; none without preemptions; None when it never ends."""
    if mean_s is None:
        return Slowdown(checkpoint=Decimal(0), lost_work=Decimal(0), restart=Decimal(0))
    return slowdown(daly_interval_s(stall_s, mean_s), stall_s, restart_s, mean_s)


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


def _stall(
    preemption: PreemptionSpec, job: JobSpec, worker: WorkerSpec, records: Sequence[RunRecord]
) -> Stall:
    """The newest measured stall of this recipe on this preset, else the declared one."""
    for record in sorted(records, key=lambda each: (each.finished_at, each.job_id), reverse=True):
        seconds = record.metrics.get(STALL_METRIC)
        if seconds is not None and seconds >= 0 and same_run(record, job, worker):
            return Stall(
                seconds=seconds,
                source=f"job {record.job_id} of stack {record.stack or '?'}",
                measured_on=record.finished_at.date(),
            )
    return Stall(seconds=preemption.checkpoint_stall_s, source=preemption.source, measured_on=None)


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
