"""Reserved against on-demand nodes: from how many hours a month a reservation is the cheaper one.

A reserved node is paid for every hour of its term; an on-demand node only while it is there
(`soperator cluster pause`, autoscaling). Reserved prices are agreed in a contract, so that there is
something to compare only where `contract_prices` has one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from cost.chat.unit_costs import Inputs, Part
from cost.prices.price import HOURS_PER_MONTH
from cost.report.layout import Table, money, number, usd_text
from cost.resources.hourly_rates import RunRates, num_gpus, run_rates
from stacks.spec.nodes import Billing, WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """One nodeset under both kinds of billing, without disks."""

    worker: WorkerSpec
    on_demand_usd_per_hour: Decimal
    """Of one node."""
    reserved_usd_per_hour: Decimal
    """Of one node."""

    @property
    def pays_from(self) -> Decimal | None:
        """Share of the hours from which a reservation is cheaper, or None: it never is."""
        if self.reserved_usd_per_hour >= self.on_demand_usd_per_hour:
            return None
        return self.reserved_usd_per_hour / self.on_demand_usd_per_hour


def reservations_part(inputs: Inputs) -> Iterable[Part]:
    """Part `reservations`; none where no nodeset has both prices."""
    found = tuple(_reservations(inputs, run_rates(inputs.spec, inputs.estimate, inputs.book)))
    if not found:
        return
    yield Part(
        name="reservations",
        tables=(
            Table(
                title="Reserved against on-demand nodes (US dollars a node, without disks)",
                headings=("Workers", "On demand", "Reserved", "Reserved a month", "Pays from"),
                rows=tuple(_row(each) for each in found),
            ),
        ),
        notes=(
            (
                "Reserved nodes are paid for all 730 hours; on-demand ones only while they are "
                "there (autoscaling, a paused stack)."
            ),
        ),
        plain={"reservations": [_plain(each) for each in found]},
    )


def _reservations(inputs: Inputs, rates: RunRates) -> Iterable[Reservation]:
    for worker in inputs.spec.nodes.workers:
        on_demand = rates.billed_as(worker, Billing.ON_DEMAND)
        reserved = rates.billed_as(worker, Billing.RESERVED)
        if isinstance(on_demand, str) or isinstance(reserved, str):
            continue
        if num_gpus(worker) and on_demand > 0:
            yield Reservation(
                worker=worker, on_demand_usd_per_hour=on_demand, reserved_usd_per_hour=reserved
            )


def _row(each: Reservation) -> tuple[str, ...]:
    share = each.pays_from
    return (
        each.worker.name,
        f"{usd_text(each.on_demand_usd_per_hour)}/h",
        f"{usd_text(each.reserved_usd_per_hour)}/h",
        usd_text(each.reserved_usd_per_hour * HOURS_PER_MONTH),
        "never" if share is None else f"{share * HOURS_PER_MONTH:.0f} h a month ({share:.0%})",
    )


def _plain(each: Reservation) -> dict[str, object]:
    share = each.pays_from
    return {
        "workers": each.worker.name,
        "on_demand_usd_per_node_hour": money(each.on_demand_usd_per_hour),
        "reserved_usd_per_node_hour": money(each.reserved_usd_per_hour),
        "pays_from_hours_per_month": None if share is None else number(share * HOURS_PER_MONTH),
    }
