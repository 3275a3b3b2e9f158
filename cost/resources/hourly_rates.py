"""What an hour costs where jobs run: nodes by nodeset, and the cluster around them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal

from cost.prices.book import PriceBook
from cost.prices.price import HOURS_PER_MONTH, UnknownPrice
from cost.resources.component import CostComponent, Section
from cost.resources.estimate import Estimate
from cost.resources.lines import node_rate
from stacks.catalog import find_preset
from stacks.rules.jobs import nodesets_of
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing, WorkerSpec
from stacks.spec.slurm import JobSpec

_STORAGE = (Section.BOOT_DISKS, Section.WORKER_DISKS, Section.FILESYSTEMS, Section.OBJECT_STORAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRates:
    """US dollars an hour of one stack, by what they pay for; None is a price that is not known."""

    spec: StackSpec
    book: PriceBook
    node_usd_per_hour: Mapping[str, Decimal | None]
    """One worker node of each nodeset, without its disk."""
    disk_usd_per_hour: Mapping[str, Decimal]
    """Boot disk of one worker node of each nodeset; 0 where its price is not known."""
    control_plane_usd_per_hour: Decimal
    """Every node that runs no jobs, addresses and what else is neither worker nor storage."""
    storage_usd_per_hour: Decimal
    """Disks, filesystems and object storage, at min_nodes."""
    bill_usd_per_hour: Decimal
    """The whole stack at min_nodes."""
    is_lower_bound: bool
    """Whether a line of the bill has no price."""

    def workers_of(self, job: JobSpec) -> tuple[WorkerSpec, ...]:
        """Nodesets of the job's partition whose nodes have the GPUs that it asks for."""
        partition = next(
            (each for each in self.spec.slurm.partitions if each.name == job.partition), None
        )
        return tuple(
            worker
            for worker in (() if partition is None else nodesets_of(self.spec, partition))
            if num_gpus(worker) >= job.gpus_per_node
        )

    def dearest(self, job: JobSpec) -> WorkerSpec | None:
        """The nodes that a forecast prices: the dearest that the job may get."""
        return max(
            self.workers_of(job),
            key=lambda worker: self.node_usd_per_hour[worker.name] or Decimal(0),
            default=None,
        )

    def nodes_usd(self, worker: WorkerSpec, num_nodes: int, hours: Decimal) -> Decimal | None:
        """US dollars of so many nodes for so long; None when their price is not known."""
        rate = self.node_usd_per_hour[worker.name]
        return None if rate is None else rate * num_nodes * hours

    def share_usd(
        self, nodes_usd: Decimal | None, num_nodes: int, hours: Decimal
    ) -> Decimal | None:
        """The same nodes with their part, by number of nodes, of what is not a worker's own."""
        if nodes_usd is None:
            return None
        most = max(num_nodes, sum(map(self.least_nodes, self.spec.nodes.workers)))
        around = self.control_plane_usd_per_hour + self.storage_usd_per_hour
        return nodes_usd + around * hours * num_nodes / most

    def least_nodes(self, worker: WorkerSpec) -> int:
        """Nodes of the set that are paid for at any time."""
        return self.spec.nodes.counts(worker)[0]

    def billed_as(self, worker: WorkerSpec, billing: Billing) -> Decimal | str:
        """US dollars an hour of one such node under another billing, or why it is not known."""
        rate = node_rate(replace(worker, billing=billing), self.book)
        return rate.reason if isinstance(rate, UnknownPrice) else rate.usd


def run_rates(spec: StackSpec, estimate: Estimate, book: PriceBook) -> RunRates:
    """The stack's rates, at min_nodes of every autoscaled group."""
    nodes, workers = spec.nodes, spec.nodes.workers
    rates = {worker.name: node_rate(worker, book) for worker in workers}
    around = [line for line in estimate.components if line.nodeset is None]
    storage = sum((_hourly(line) for line in around if line.section in _STORAGE), Decimal(0))
    disks = {worker.name: _disk_usd_per_hour(worker, estimate) for worker in workers}
    return RunRates(
        spec=spec,
        book=book,
        node_usd_per_hour={
            name: None if isinstance(rate, UnknownPrice) else rate.usd
            for name, rate in rates.items()
        },
        disk_usd_per_hour=disks,
        control_plane_usd_per_hour=sum(
            (_hourly(line) for line in around if line.section not in _STORAGE), Decimal(0)
        ),
        storage_usd_per_hour=storage
        + sum((nodes.counts(each)[0] * disks[each.name] for each in workers), Decimal(0)),
        bill_usd_per_hour=estimate.hourly_low_usd,
        is_lower_bound=estimate.is_lower_bound,
    )


def num_gpus(worker: WorkerSpec) -> int:
    """GPUs of one node of the nodeset."""
    preset = find_preset(worker.platform, worker.preset)
    return 0 if preset is None else preset.gpus


def num_vcpus(worker: WorkerSpec) -> int:
    """vCPUs of one node of the nodeset."""
    preset = find_preset(worker.platform, worker.preset)
    return 0 if preset is None else preset.vcpus


def _hourly(line: CostComponent) -> Decimal:
    return (line.monthly_low_usd or Decimal(0)) / HOURS_PER_MONTH


def _disk_usd_per_hour(worker: WorkerSpec, estimate: Estimate) -> Decimal:
    """The disks of one node, from the lines that hold those of all of them."""
    usd = Decimal(0)
    for line in estimate.components:
        if line.section in _STORAGE and line.nodeset == worker.name:
            usd += line.monthly_usd_of_node / HOURS_PER_MONTH
    return usd


@dataclass(frozen=True, slots=True, kw_only=True)
class Burn:
    """US dollars an hour of one stack without tax, with the day of its prices."""

    node_usd_per_hour: Mapping[str, Decimal | None]
    """One worker node of each nodeset, without its disks; None is a price that is not known."""
    around_usd_per_hour: Decimal
    """Every other node, disks, filesystems and addresses."""
    is_lower_bound: bool
    """Whether a line of the bill has no price."""
    budget_usd_per_month: Decimal | None
    """What the stack declares for its jobs; None without a budget."""
    book: str
    """Price book."""
    price_date: date | None
    """Day of the oldest price in use; None where no price is known."""

    @property
    def unpriced_nodesets(self) -> tuple[str, ...]:
        """Nodesets whose price is not known; a sum without them is a least."""
        return tuple(name for name, usd in self.node_usd_per_hour.items() if usd is None)

    @property
    def prices(self) -> str:
        """Where the amounts come from, in words."""
        day = "" if self.price_date is None else f" of {self.price_date}"
        return f"prices of book {self.book}{day}"


def burn(spec: StackSpec, estimate: Estimate, book: PriceBook) -> Burn:
    """What the stack costs an hour, at its prices of now."""
    rates = run_rates(spec, estimate, book)
    return Burn(
        node_usd_per_hour=rates.node_usd_per_hour,
        around_usd_per_hour=rates.control_plane_usd_per_hour + rates.storage_usd_per_hour,
        is_lower_bound=rates.is_lower_bound,
        budget_usd_per_month=None if spec.budget is None else spec.budget.usd_per_month,
        book=estimate.book_name,
        price_date=estimate.price_date,
    )
