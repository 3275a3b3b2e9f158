"""What an interactive session asks of Slurm, what it may take, and what it costs an hour.

Owns the options of its srun line and its price. Pure: who holds what is asked in room.py.
"""

from __future__ import annotations

import math
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from cost.run_rates import RunRates, num_gpus, num_vcpus
from infra.jobs.errors import JobsError
from infra.render.job_nodes import cpus_per_rank, memory_mib
from stacks.node_spec import WorkerSpec
from stacks.slurm_spec import JobSpec
from stacks.spec import StackSpec

_MINUTES_PER_HOUR: Final = 60
_MIB_PER_CPU: Final = 2048
"""Memory beside a CPU of a session without GPUs; without a figure Slurm gives all of a node."""
_PREFIX: Final = "shell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One session as it will be asked for."""

    name: str
    """Of its Slurm job; no other job has it, so that it can be ended by name."""
    partition: str
    gpus: int
    cpus: int
    memory_mib: int
    minutes: int
    """Slurm ends it then, whatever else happens."""
    usd_per_hour: Decimal | None
    """Its share of the dearest node that it may get; None when that price is not known."""

    @property
    def hours(self) -> Decimal:
        """The time limit in hours."""
        return Decimal(self.minutes) / _MINUTES_PER_HOUR

    @property
    def most_usd(self) -> Decimal | None:
        """US dollars up to the time limit."""
        return None if self.usd_per_hour is None else self.usd_per_hour * self.hours

    def srun(self, *words: str, options: Sequence[str] = ()) -> str:
        """The shell command that runs `words` in the session."""
        asked = [
            f"--job-name={self.name}",
            f"--partition={self.partition}",
            "--nodes=1",
            "--ntasks=1",
            f"--cpus-per-task={self.cpus}",
            *([f"--gpus-per-node={self.gpus}"] if self.gpus else []),
            f"--mem={self.memory_mib}M",
            f"--time={self.minutes}",
        ]
        return shlex.join(["srun", *asked, *options, *words])


def ask(
    rates: RunRates,
    *,
    gpus: int | None,
    cpus: int | None,
    partition: str | None,
    hours: float,
) -> Ask:
    """The session; refused where no node of the stack could ever give it.

    `gpus` None: one where the partition has any; `cpus` None: the share that goes with the GPUs.
    """
    spec = rates.spec
    queue = _partition(spec, partition)
    if not hours > 0 or not math.isfinite(hours):
        raise JobsError(f"--hours {hours:g}: not a time; give hours such as 2 or 0.5")
    if gpus is None:
        gpus = 1 if rates.workers_of(_job(queue, 1, None)) else 0
    job = _job(queue, gpus, cpus)
    workers = [
        worker for worker in rates.workers_of(job) if cpus is None or num_vcpus(worker) >= cpus
    ]
    if not workers:
        have = ", ".join(
            f"{worker.name} has {num_gpus(worker)} GPUs and {num_vcpus(worker)} vCPUs"
            for worker in rates.workers_of(_job(queue, 0, None))
        )
        raise JobsError(
            f"{spec.name}: no node of partition {queue} has {gpus} GPUs"
            + (f" and {cpus} vCPUs" if cpus is not None else "")
            + f" ({have or 'it has no worker'}); a session is on one node: ask for less"
        )
    cpus_found = cpus_per_rank(workers, job) * (max(1, gpus) if cpus is None else 1)
    return Ask(
        name=f"{_PREFIX}-{secrets.token_hex(4)}",
        partition=queue,
        gpus=gpus,
        cpus=cpus_found,
        memory_mib=memory_mib(spec, workers, job) if gpus else _MIB_PER_CPU * cpus_found,
        minutes=math.ceil(hours * _MINUTES_PER_HOUR),
        usd_per_hour=_usd_per_hour(rates, workers, gpus, cpus_found),
    )


def _job(partition: str, gpus: int, cpus: int | None) -> JobSpec:
    return JobSpec(
        name=_PREFIX,
        module="",
        recipe="",
        gpus_per_node=gpus,
        cpus_per_task=cpus,
        partition=partition,
    )


def _partition(spec: StackSpec, name: str | None) -> str:
    """The declared partition, or the one that Slurm takes without a name."""
    names = [each.name for each in spec.slurm.partitions]
    if name is None:
        default = [
            each.name for each in spec.slurm.partitions if "default=yes" in each.config.casefold()
        ]
        return (default or names)[0]
    if name not in names:
        raise JobsError(
            f"{spec.name}: slurm.partitions: {name!r} is not declared (has: {', '.join(names)})"
        )
    return name


def _usd_per_hour(
    rates: RunRates, workers: Sequence[WorkerSpec], gpus: int, cpus: int
) -> Decimal | None:
    """The larger of the shares of GPUs and CPUs, as spend.py divides a shared node."""
    found: list[Decimal] = []
    for worker in workers:
        usd = rates.node_usd_per_hour[worker.name]
        if usd is None:
            return None
        of_gpus = Decimal(gpus) / num_gpus(worker) if gpus else Decimal(0)
        found.append(usd * max(of_gpus, Decimal(cpus) / num_vcpus(worker)))
    return max(found)
