"""Totals of a stack: estimate(spec, book), what is missing from them, and what an hour costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from functools import cached_property
from typing import Protocol

from cost.prices.book import HOURS_PER_MONTH, PriceBook, UnknownPrice
from cost.resources.lines import CostComponent, Scope, Section, components, node_rate
from cost.traced import named
from stacks.errors import Problem
from stacks.machines import ROLES, cpus_per_rank, share_of_node, workers_of
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing, WorkerSpec
from stacks.spec.slurm import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """A sum of lines in US dollars a 730-hour month; `low` at min_nodes, `high` at max_nodes."""

    low_usd: Decimal
    high_usd: Decimal
    is_lower_bound: bool
    """Whether a line of the sum has no amount, so that the truth is at least this much."""

    @property
    def least(self) -> str:
        """What stands before it where the truth may be more; else nothing."""
        return "at least " if self.is_lower_bound else ""

    @property
    def hourly_low_usd(self) -> Decimal:
        """US dollars an hour at the least number of nodes."""
        return self.low_usd / HOURS_PER_MONTH

    @property
    def hourly_high_usd(self) -> Decimal:
        """US dollars an hour at the greatest number of nodes."""
        return self.high_usd / HOURS_PER_MONTH

    def __str__(self) -> str:
        """The sum an hour and a month."""
        hour, month = (
            f"${low:,.2f}" if low == high else f"${low:,.2f} to ${high:,.2f}"
            for low, high in (
                (self.hourly_low_usd, self.hourly_high_usd),
                (self.low_usd, self.high_usd),
            )
        )
        return f"{self.least}{hour} an hour, {month} a month of {HOURS_PER_MONTH} hours"


_STORAGE = (Section.BOOT_DISKS, Section.WORKER_DISKS, Section.FILESYSTEMS, Section.OBJECT_STORAGE)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a stack costs while it exists; `low` and rates at min_nodes, `high` at max_nodes.

    Without slots, which a cached property cannot have.
    """

    spec: StackSpec
    book: PriceBook
    components: tuple[CostComponent, ...]

    @cached_property
    def total(self) -> Total:
        """The sum of all lines."""
        found = total_of(self.components)
        low_usd = named(found.low_usd, "USD a month at min_nodes", "explain total")
        high_usd = named(found.high_usd, "USD a month at max_nodes", "explain total")
        return replace(found, low_usd=low_usd, high_usd=high_usd)

    @cached_property
    def price_date(self) -> date | None:
        """Day of the oldest price used; None when no price is known."""
        return min((price.date for line in self.components for price in line.prices), default=None)

    @property
    def prices(self) -> str:
        """Where the amounts come from, in words."""
        day = "" if self.price_date is None else f" of {self.price_date}"
        return f"prices of book {self.book.name}{day}"

    @property
    def unpriced(self) -> tuple[CostComponent, ...]:
        """Lines without an amount."""
        return tuple(component for component in self.components if component.unknown is not None)

    def subtotal(self, scope: Scope) -> Total:
        """The sum of the lines of one scope."""
        return total_of([line for line in self.components if line.scope is scope])

    @cached_property
    def node_usd_per_hour(self) -> Mapping[str, Decimal | None]:
        """One worker node of each nodeset, without its disks; None is a price that is not known."""
        return {
            line.nodeset: line.rate
            and named(line.rate.usd, "USD a node-hour", f"explain {line.id}")
            for line in self.components
            if line.nodeset is not None and line.section is Section.COMPUTE
        }

    def node_month_usd(self, key: str) -> Decimal | None:
        """US dollars a month of one node of the group with its boot disk; None: not known."""
        lines = [line for line in self.components if line.id in (key, f"{key}.boot_disk")]
        return known_sum(line.rate and line.monthly_usd_of_node for line in lines)

    @property
    def unpriced_nodesets(self) -> tuple[str, ...]:
        """Nodesets whose price is not known; a sum without them is a least."""
        return tuple(name for name, usd in self.node_usd_per_hour.items() if usd is None)

    @cached_property
    def disk_usd_per_hour(self) -> Mapping[str, Decimal]:
        """Disks of one worker node of each nodeset; 0 where their price is not known."""
        usd = {worker.name: Decimal(0) for worker in self.spec.nodes.workers}
        for line in self.components:
            if line.nodeset in usd and line.section in _STORAGE:
                usd[line.nodeset] += line.monthly_usd_of_node / HOURS_PER_MONTH
        return usd

    @cached_property
    def control_plane_usd_per_hour(self) -> Decimal:
        """Every node that runs no jobs, addresses and what else is neither worker nor storage."""
        usd = self._usd_per_hour(is_storage=False)
        return named(usd, "USD an hour of the rest", "explain total")

    @cached_property
    def storage_usd_per_hour(self) -> Decimal:
        """Disks, filesystems and object storage."""
        disks = self.disk_usd_per_hour
        of_workers = (self.least_nodes(each) * disks[each.name] for each in self.spec.nodes.workers)
        usd = sum(of_workers, self._usd_per_hour(is_storage=True))
        return named(usd, "USD an hour of storage", "explain total")

    def _usd_per_hour(self, *, is_storage: bool) -> Decimal:
        """What is no nodeset's own, with the addresses of its nodes."""
        own = (Section.COMPUTE, *_STORAGE)
        lines = (each for each in self.components if not each.nodeset or each.section not in own)
        of_kind = (line for line in lines if (line.section in _STORAGE) is is_storage)
        amounts = ((line.low_usd or Decimal(0)) / HOURS_PER_MONTH for line in of_kind)
        return sum(amounts, Decimal(0))

    @property
    def around_usd_per_hour(self) -> Decimal:
        """All but worker nodes: every other node, disks, filesystems and addresses."""
        return self.control_plane_usd_per_hour + self.storage_usd_per_hour

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
        return nodes_usd + self.around_usd_per_hour * hours * num_nodes / most

    def least_nodes(self, worker: WorkerSpec) -> int:
        """Nodes of the set that are paid for at any time."""
        return self.spec.nodes.counts(worker)[0]

    def billed_as(self, worker: WorkerSpec, billing: Billing) -> Decimal | str:
        """US dollars an hour of one such node under another billing, or why it is not known."""
        rate = node_rate(replace(worker, billing=billing), self.book)
        return rate.reason if isinstance(rate, UnknownPrice) else rate.usd


def estimate(spec: StackSpec, book: PriceBook) -> Estimate:
    """The stack's bill with totals."""
    return Estimate(spec=spec, book=book, components=components(spec, book))


class _Line(Protocol):
    """What has an amount, or none, at either end."""

    @property
    def low_usd(self) -> Decimal | None: ...
    @property
    def high_usd(self) -> Decimal | None: ...


def total_of(lines: Sequence[_Line]) -> Total:
    """The sum of the lines; those without an amount count as nothing and make it a lower bound."""
    zero = Decimal(0)
    return Total(
        low_usd=sum((line.low_usd or zero for line in lines), zero),
        high_usd=sum((line.high_usd or zero for line in lines), zero),
        is_lower_bound=any(line.low_usd is None for line in lines),
    )


def known_sum(amounts: Iterable[Decimal | None]) -> Decimal | None:
    """Their sum; None where one of them is not known."""
    found = list(amounts)
    return None if None in found else sum(filter(None, found), Decimal(0))


def price_problems(problems: tuple[Problem, ...], total: Estimate) -> tuple[Problem, ...]:
    """The same problems, those about spare nodes and GiB with their US dollars per month."""
    return tuple(_priced_problem(problem, total) for problem in problems)


def _priced_problem(problem: Problem, total: Estimate) -> Problem:
    if (spare := problem.spare) is None:
        return problem
    if spare.what in ROLES:
        usd = total.node_month_usd(f"nodes.{spare.what}")
    else:
        price = total.book.find(spare.what)
        usd = None if isinstance(price, UnknownPrice) else price.usd
    return problem if usd is None else replace(problem, usd_per_month=spare.count * usd)
