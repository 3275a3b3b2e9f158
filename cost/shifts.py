"""What the same nodes give by day and by night: scheduled jobs that share a partition, per week.

Owns what each hour is worth: US dollars of its nodes, tokens that a training reads, chats that a
server has room for. The timeline is stacks/shifts.py's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from cost.forecast import SECONDS_PER_HOUR, Forecast, forecast
from cost.layout import UNKNOWN, Table, small_usd_text
from cost.part import Inputs, Part
from cost.run_rates import RunRates, run_rates
from cost.summary import money, number
from cost.unit_costs import NotKnown
from stacks.shifts import PartitionShifts, Shift, partition_shifts
from stacks.slurm_spec import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftCost:
    """One scheduled job, a week of it."""

    shift: Shift
    node_hours: Decimal
    usd: Decimal | None
    """US dollars of its nodes; None when their price is not known."""
    tokens: Decimal | None
    """Tokens that it trains on; None: it does not train, or no speed is known."""
    chats: Decimal | None
    """Chats that it has room for; None: it serves none, or no speed is known."""

    @property
    def gives(self) -> str:
        """What comes of it."""
        if self.tokens is not None:
            return f"{self.tokens:,.0f} tokens trained on"
        if self.chats is not None:
            return f"{self.chats:,.0f} chats"
        return UNKNOWN


def shifts_part(inputs: Inputs) -> Iterable[Part]:
    """Part `shifts`; none where no two scheduled jobs share a partition."""
    rates = run_rates(inputs.spec, inputs.estimate, inputs.book)
    found = partition_shifts(inputs.spec)
    if not found:
        return
    costs = {each.partition: _costs(each, rates, inputs) for each in found}
    yield Part(
        name="shifts",
        tables=tuple(_table(each, costs[each.partition], rates) for each in found),
        notes=(
            (
                "Shifts: every run up to its time limit, mean of four weeks; free nodes are in "
                "the bill all the same."
            ),
        ),
        plain={
            "shifts": [
                {
                    "partition": each.partition,
                    "num_nodes": each.num_nodes,
                    "free_node_hours_per_week": number(each.free_node_hours_per_week),
                    "clash_hours_per_week": number(each.clash_hours_per_week),
                    "jobs": [_plain(cost) for cost in costs[each.partition]],
                }
                for each in found
            ]
        },
    )


def _costs(each: PartitionShifts, rates: RunRates, inputs: Inputs) -> tuple[ShiftCost, ...]:
    costs: list[ShiftCost] = []
    for shift in each.shifts:
        job = shift.job
        worker = rates.dearest(job)
        hours = shift.hours_per_week
        run = None if job.is_server else forecast(job, rates, inputs.records)
        costs.append(
            ShiftCost(
                shift=shift,
                node_hours=hours * job.nodes,
                usd=None if worker is None else rates.nodes_usd(worker, job.nodes, hours),
                tokens=run.speed.tokens_per_s * hours * SECONDS_PER_HOUR
                if isinstance(run, Forecast)
                else None,
                chats=_chats(job, hours, inputs) if job.is_server else None,
            )
        )
    return tuple(costs)


def _chats(job: JobSpec, hours: Decimal, inputs: Inputs) -> Decimal | None:
    """Room for the reference chat in these hours, by the first speed that is known."""
    rows = inputs.unit_costs.chats
    if isinstance(rows, NotKnown):
        return None
    row = rows[0]
    return row.chats_per_day / row.serving_nodes * job.nodes * hours / 24


def _table(each: PartitionShifts, costs: tuple[ShiftCost, ...], rates: RunRates) -> Table:
    rows: list[tuple[str, ...]] = [
        (
            cost.shift.job.name,
            cost.shift.job.schedule or "",
            f"{cost.shift.hours_per_week:,.1f}",
            f"{cost.node_hours:,.1f}",
            _usd(cost.usd),
            cost.gives,
        )
        for cost in costs
    ]
    worker = rates.dearest(costs[0].shift.job)
    free = each.free_node_hours_per_week
    usd = None if worker is None else rates.nodes_usd(worker, 1, free)
    rows.append(("nobody", "", "", f"{free:,.1f}", _usd(usd), "nothing"))
    if each.first_clash is not None:
        rows.append(
            (
                (
                    f"From {each.first_clash:%A %H:%M} on the schedules ask for more than the "
                    f"{each.num_nodes} nodes, {each.clash_hours_per_week:,.1f} h a week: one waits."
                ),
            )
        )
    return Table(
        title=f"A week of the {each.num_nodes} nodes of partition {each.partition}",
        headings=("Job", "Schedule", "Hours", "Node-hours", "Own nodes", "Gives"),
        rows=tuple(rows),
        num_text_columns=2,
    )


def _plain(cost: ShiftCost) -> dict[str, object]:
    return {
        "job": cost.shift.job.name,
        "schedule": cost.shift.job.schedule,
        "hours_per_week": number(cost.shift.hours_per_week),
        "node_hours_per_week": number(cost.node_hours),
        "usd_per_week": None if cost.usd is None else money(cost.usd),
        "tokens_per_week": None if cost.tokens is None else number(cost.tokens),
        "chats_per_week": None if cost.chats is None else number(cost.chats),
    }


def _usd(usd: Decimal | None) -> str:
    return UNKNOWN if usd is None else small_usd_text(usd)
