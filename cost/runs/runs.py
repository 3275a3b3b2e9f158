"""What runs cost, as parts of the bill: forecasts, and what preemption adds to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from cost.chat.unit_costs import Amount, Inputs, Part
from cost.report.layout import UNKNOWN, Table, exact_money, number, small_usd_text
from cost.resources.estimate import RunRates
from cost.runs.forecast import Disturbance, Forecast, UnknownRun, disturbance, forecasts
from cost.traced import named
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing, WorkerSpec
from stacks.spec.slurm import JobSpec

SLOWDOWN_SOURCE: Final = "J. T. Daly, FGCS 22(3), 2006, equation 20"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionCost:
    """One job on preemptible nodes against the same on on-demand nodes."""

    job: str
    losses: Disturbance
    on_demand_usd_per_hour: Decimal | None
    """All nodes of the job, for an hour of useful work; None when the price is not known."""
    preemptible_usd_per_hour: Decimal | None
    """The same with the expected losses; None when not known, or when it would never end."""
    pays_up_to: Decimal | None
    """Preemptions a node-day up to which preemptible is cheaper; None: not known, or always."""
    reason: str | None
    """Why a figure is missing."""


def runs(inputs: Inputs) -> Iterable[Part]:
    """Parts `runs` and `preemption`; none where nothing trains, or no preemption is declared."""
    found = forecasts(inputs.rates, inputs.records)
    if found:
        yield _runs_part(found, inputs.spec)
    costs = preemption_costs(inputs)
    if costs:
        yield _preemption_part(costs)


def preemption_costs(inputs: Inputs) -> tuple[PreemptionCost, ...]:
    """One for each job that trains on a stack that declares its preemption."""
    spec, rates = inputs.spec, inputs.rates
    if spec.preemption is None:
        return ()
    named = {each.job for each in spec.runs}
    found: list[PreemptionCost] = []
    for job in spec.jobs:
        worker = rates.dearest(job)
        if worker is None or (job.name not in named and job.module != "workloads.train"):
            continue
        losses = disturbance(spec.preemption, job, worker, inputs.records)
        found.append(_preemption_cost(job, worker, losses, rates))
    return tuple(found)


def _preemption_cost(
    job: JobSpec, worker: WorkerSpec, losses: Disturbance, rates: RunRates
) -> PreemptionCost:
    on_demand = rates.billed_as(worker, Billing.ON_DEMAND)
    preemptible = rates.billed_as(worker, Billing.PREEMPTIBLE)
    slowdown = losses.slowdown
    reasons = [each for each in (on_demand, preemptible) if isinstance(each, str)]
    pays_up_to = None
    if not isinstance(on_demand, str) and not isinstance(preemptible, str) and preemptible > 0:
        pays_up_to = losses.pays_up_to(on_demand / preemptible)
    if slowdown is None:
        reasons.append("at this rate the run would never end on preemptible nodes")
    return PreemptionCost(
        job=job.name,
        losses=losses,
        on_demand_usd_per_hour=None if isinstance(on_demand, str) else on_demand * job.nodes,
        preemptible_usd_per_hour=None
        if isinstance(preemptible, str) or slowdown is None
        else preemptible
        * job.nodes
        * named(slowdown.factor, "slowdown", SLOWDOWN_SOURCE, beside=preemptible),
        pays_up_to=pays_up_to,
        reason="; ".join(reasons) or None,
    )


def _runs_part(found: Sequence[Forecast | UnknownRun], spec: StackSpec) -> Part:
    return Part(
        name="runs",
        tables=(
            Table(
                title="Cost per run (own nodes; with their share of the rest of the cluster)",
                headings=("Job", "Nodes", "Tokens", "Hours", "Own nodes", "Cluster share"),
                rows=tuple(_run_row(each) for each in found),
            ),
        ),
        notes=tuple(note for each in found for note in run_notes(each)),
        amounts=tuple(_amount(each, spec) for each in found),
        plain={"runs": [plain_run(each) for each in found]},
    )


def run_notes(run: Forecast | UnknownRun) -> tuple[str, ...]:
    """What the run's figures rest on, a sentence each."""
    if isinstance(run, UnknownRun):
        most = ""
        if run.at_most_usd is not None:
            most = f" Its time limit allows at most {small_usd_text(run.at_most_usd)}."
        return (f"Run of {run.job}: {run}.{most}",)
    expected = ""
    if run.disturbance is not None:
        expected = f" {run.busy_hours:.2f} hours without preemptions."
    return (
        f"Run of {run.job}: {run.num_tokens:,.0f} tokens at {run.speed}.{expected}",
        *(f"Run of {run.job}: {note}." for note in run.notes),
    )


def run_lines(run: Forecast | UnknownRun) -> tuple[str, ...]:
    """The run for `soperator submit`: hours and US dollars first, then what they rest on."""
    if isinstance(run, UnknownRun):
        return run_notes(run)
    usd = "price not known"
    if run.nodes_usd is not None:
        usd = (
            f"{small_usd_text(run.nodes_usd)} of its own nodes "
            f"({small_usd_text(run.cluster_share_usd)} with their share of the cluster)"
        )
    where = f"{run.num_nodes} x {run.worker.preset}"
    return (f"Forecast of {run.job}: {run.hours:,.2f} h on {where}, {usd}.", *run_notes(run))


def _run_row(run: Forecast | UnknownRun) -> tuple[str, ...]:
    if isinstance(run, UnknownRun):
        return (run.job, str(run.num_nodes), *(UNKNOWN for _ in range(4)))
    return (
        run.job,
        str(run.num_nodes),
        f"{run.num_tokens:,.0f}",
        f"{run.hours:,.2f}",
        small_usd_text(run.nodes_usd),
        small_usd_text(run.cluster_share_usd),
    )


def _amount(run: Forecast | UnknownRun, spec: StackSpec) -> Amount:
    is_known = isinstance(run, Forecast)
    job = f"jobs[{run.job}]"
    partition = next((each.partition for each in spec.jobs if each.name == run.job), "")
    return Amount(
        name=f"per_run_usd[{run.job}]",
        label=f"$/run of {run.job}",
        usd=run.nodes_usd if is_known else None,
        basis=str(run.speed) if is_known else str(run),
        keys=(
            *(
                f"{job}.{key}"
                for key in ("module", "recipe", "nodes", "gpus_per_node", "partition")
            ),
            f"slurm.partitions[{partition}].nodesets",
            f"runs[{run.job}]",
            "preemption",
        ),
    )


def plain_run(run: Forecast | UnknownRun) -> dict[str, object]:
    """The run as JSON values; money is text."""
    common: dict[str, object] = {"job": run.job, "num_nodes": run.num_nodes}
    if isinstance(run, UnknownRun):
        return {**common, "hours": None, "nodes_usd": None, "reason": run.reason, "fix": run.fix}
    return {
        **common,
        "num_tokens": number(run.num_tokens),
        "train_tokens_per_s": number(run.speed.tokens_per_s),
        "basis": str(run.speed),
        "hours": number(run.hours),
        "nodes_usd": exact_money(run.nodes_usd),
        "cluster_share_usd": exact_money(run.cluster_share_usd),
        "notes": list(run.notes),
    }


def _preemption_part(costs: Sequence[PreemptionCost]) -> Part:
    return Part(
        name="preemption",
        tables=(
            Table(
                title="Preemptible against on-demand nodes (US dollars for an hour of useful work)",
                headings=(
                    "Job",
                    "Checkpoint every",
                    "Young",
                    "Slowdown",
                    "On-demand",
                    "Preemptible",
                    "Pays up to",
                ),
                rows=tuple(_preemption_row(each) for each in costs),
            ),
        ),
        notes=tuple(note for each in costs for note in _preemption_notes(each)),
        plain={"preemption": [_plain_preemption(each) for each in costs]},
    )


def _preemption_row(cost: PreemptionCost) -> tuple[str, ...]:
    losses, slowdown = cost.losses, cost.losses.slowdown
    return (
        cost.job,
        "never" if losses.interval_s is None else _minutes(losses.interval_s),
        "never" if losses.young_s is None else _minutes(losses.young_s),
        "endless" if slowdown is None else f"{slowdown.factor:.3f} x",
        small_usd_text(cost.on_demand_usd_per_hour),
        small_usd_text(cost.preemptible_usd_per_hour),
        _pays_up_to(cost),
    )


def _pays_up_to(cost: PreemptionCost) -> str:
    if cost.pays_up_to is not None:
        return f"{cost.pays_up_to:.2f} /node-day"
    return "any rate" if cost.reason is None else UNKNOWN


def _preemption_notes(cost: PreemptionCost) -> list[str]:
    losses, stall = cost.losses, cost.losses.stall
    origin = "assumed" if stall.measured_on is None else f"measured on {stall.measured_on}"
    slowdown = losses.slowdown
    lost = ""
    if slowdown is not None:
        lost = (
            f" Lost: {100 * slowdown.checkpoint:.2f} % to checkpoints, "
            f"{100 * slowdown.lost_work:.2f} % to work done again, "
            f"{100 * slowdown.restart:.2f} % to restarts."
        )
    rests_on = (
        f"Preemption of {cost.job}: {number(losses.preemptions_per_node_day)} a node-day on "
        f"{losses.num_nodes} nodes, restart {number(losses.restart_s)} s: "
        f"{losses.source}; checkpoint stall {number(stall.seconds)} s, {origin}: {stall.source}."
        f"{lost} Checkpoint interval: Daly 2006, beside Young 1974."
    )
    if cost.reason is None:
        return [rests_on]
    return [rests_on, f"Preemption of {cost.job}: NOT KNOWN: {cost.reason}."]


def _plain_preemption(cost: PreemptionCost) -> dict[str, object]:
    losses, slowdown = cost.losses, cost.losses.slowdown
    return {
        "job": cost.job,
        "preemptions_per_node_day": number(losses.preemptions_per_node_day),
        "checkpoint_stall_s": number(losses.stall.seconds),
        "checkpoint_stall_measured_on": None
        if losses.stall.measured_on is None
        else losses.stall.measured_on.isoformat(),
        "restart_s": number(losses.restart_s),
        "young_interval_s": number(losses.young_s),
        "daly_interval_s": number(losses.interval_s),
        "slowdown": None if slowdown is None else number(slowdown.factor),
        "on_demand_usd_per_useful_hour": exact_money(cost.on_demand_usd_per_hour),
        "preemptible_usd_per_useful_hour": exact_money(cost.preemptible_usd_per_hour),
        "pays_up_to_per_node_day": number(cost.pays_up_to),
        "reason": cost.reason,
    }


def _minutes(seconds: Decimal) -> str:
    return f"{seconds / 60:,.1f} min"
