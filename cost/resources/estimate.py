"""Totals of a stack: estimate(spec, book), what is missing from them, and what an hour costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal

from cost.prices.book import HOURS_PER_MONTH, PriceBook, Unit, UnknownPrice
from cost.resources.lines import CostComponent, Scope, Section, components, node_rate
from cost.traced import named
from stacks.errors import Problem
from stacks.machines import cpus_per_rank, share_of_node, workers_of
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing, NodeGroupSpec, WorkerSpec
from stacks.spec.slurm import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """A sum of lines in US dollars a 730-hour month; `low` at min_nodes, `high` at max_nodes."""

    low_usd: Decimal
    high_usd: Decimal
    is_lower_bound: bool
    """Whether a line of the sum has no amount, so that the truth is at least this much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a stack costs while it exists; `low` at min_nodes, `high` at max_nodes."""

    stack_name: str
    heading: str | None
    """Printed over the bill where the stack does not pay it."""
    book_name: str
    book_caveat: str
    components: tuple[CostComponent, ...]
    monthly_low_usd: Decimal
    monthly_high_usd: Decimal
    price_date: date | None
    """Day of the oldest price used; None when no price is known."""

    @property
    def hourly_low_usd(self) -> Decimal:
        """US dollars an hour at the least number of nodes."""
        return self.monthly_low_usd / HOURS_PER_MONTH

    @property
    def hourly_high_usd(self) -> Decimal:
        """US dollars an hour at the greatest number of nodes."""
        return self.monthly_high_usd / HOURS_PER_MONTH

    @property
    def unpriced(self) -> tuple[CostComponent, ...]:
        """Lines without an amount."""
        return tuple(component for component in self.components if component.unknown is not None)

    @property
    def is_lower_bound(self) -> bool:
        """Whether the totals miss a line, so that the truth is at least this much."""
        return bool(self.unpriced)

    def subtotal(self, scope: Scope) -> Total:
        """The sum of the lines of one scope."""
        return total_of([line for line in self.components if line.scope is scope])


def estimate(spec: StackSpec, book: PriceBook) -> Estimate:
    """The stack's bill with totals."""
    lines = components(spec, book)
    total = total_of(lines)
    return Estimate(
        stack_name=spec.name,
        heading=spec.bill_heading,
        book_name=book.name,
        book_caveat=book.caveat,
        components=lines,
        monthly_low_usd=named(total.low_usd, "USD a month at min_nodes", "explain total"),
        monthly_high_usd=named(total.high_usd, "USD a month at max_nodes", "explain total"),
        price_date=min((term.price.date for line in lines for term in line.terms), default=None),
    )


def total_of(lines: Sequence[CostComponent]) -> Total:
    """The sum of the lines; those without an amount count as nothing and make it a lower bound."""
    zero = Decimal(0)
    return Total(
        low_usd=sum((line.monthly_low_usd or zero for line in lines), zero),
        high_usd=sum((line.monthly_high_usd or zero for line in lines), zero),
        is_lower_bound=any(line.unknown is not None for line in lines),
    )


def known_sum(amounts: Iterable[Decimal | None]) -> Decimal | None:
    """Their sum; None where one of them is not known."""
    found = list(amounts)
    return None if None in found else sum(filter(None, found), Decimal(0))


def price_problems(
    problems: tuple[Problem, ...], spec: StackSpec, book: PriceBook
) -> tuple[Problem, ...]:
    """The same problems, those about spare nodes and GiB with their US dollars per month."""
    return tuple(_priced_problem(problem, spec, book) for problem in problems)


def _priced_problem(problem: Problem, spec: StackSpec, book: PriceBook) -> Problem:
    if problem.spare_gib is not None:
        price = book.find(problem.spare_gib.sku, Unit.GIB_MONTH)
        if isinstance(price, UnknownPrice):
            return problem
        return replace(problem, usd_per_month=problem.spare_gib.count * price.usd)
    spare = problem.spare_nodes
    group: NodeGroupSpec | None = None if spare is None else getattr(spec.nodes, spare.role)
    if spare is None or group is None:
        return problem
    one_node = node_month_usd(group, book)
    return problem if one_node is None else replace(problem, usd_per_month=spare.count * one_node)


def node_month_usd(group: NodeGroupSpec, book: PriceBook) -> Decimal | None:
    """US dollars a month for one node with its boot disk; None when a price is unknown."""
    rate = node_rate(group, book)
    disk = book.find(f"disk/{group.boot_disk.type}", Unit.GIB_MONTH)
    if isinstance(rate, UnknownPrice) or isinstance(disk, UnknownPrice):
        return None
    return rate.usd_per_month + group.boot_disk.size_gib * disk.usd


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
        of = workers_of(self.spec, job.partition)
        return tuple(worker for worker in of if worker.gpus >= job.gpus_per_node)

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

    def job_usd(self, job: JobSpec, hours: Decimal) -> Decimal | None:
        """US dollars of the job's nodes for so long; of others' cluster its share, as spend has."""
        worker = self.dearest(job)
        usd = None if worker is None else self.nodes_usd(worker, job.nodes, hours)
        if worker is None or usd is None or self.spec.attached is None:
            return usd
        cpus = cpus_per_rank(self.workers_of(job), job) * max(1, job.gpus_per_node)
        return usd * share_of_node(self.spec, job.partition, worker, job.gpus_per_node, cpus)

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
    others = sum((_hourly(line) for line in around if line.section not in _STORAGE), Decimal(0))
    stored = [line for line in estimate.components if line.section in _STORAGE]
    # Those of one node, from the lines that hold those of all of them.
    disks = {
        worker.name: sum(
            (
                line.monthly_usd_of_node / HOURS_PER_MONTH
                for line in stored
                if line.nodeset == worker.name
            ),
            Decimal(0),
        )
        for worker in workers
    }
    return RunRates(
        spec=spec,
        book=book,
        node_usd_per_hour={
            name: None
            if isinstance(rate, UnknownPrice)
            else named(rate.usd, "USD a node-hour", f"explain nodes.workers[{name}]")
            for name, rate in rates.items()
        },
        disk_usd_per_hour=disks,
        control_plane_usd_per_hour=named(others, "USD an hour of the rest", "explain total"),
        storage_usd_per_hour=named(
            sum((nodes.counts(each)[0] * disks[each.name] for each in workers), storage),
            "USD an hour of storage",
            "explain total",
        ),
        bill_usd_per_hour=estimate.hourly_low_usd,
        is_lower_bound=estimate.is_lower_bound,
    )


def _hourly(line: CostComponent) -> Decimal:
    return (line.monthly_low_usd or Decimal(0)) / HOURS_PER_MONTH


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
