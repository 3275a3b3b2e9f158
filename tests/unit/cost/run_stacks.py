"""Stacks, rates, jobs and entries that the tests of runs, ledger and spend start from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from cost.prices.book import layered
from cost.resources.estimate import Estimate, estimate
from cost.run_record import RunRecord
from cost.runs.ledger import ActualEntry, ForecastEntry, Occupancy
from cost.runs.spend import JobUse
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.cost import RunForecastSpec
from stacks.spec.slurm import JobSpec
from tests.unit.cost.conftest import record

CLUSTER = "ssh-ed25519 AAAA"
L40S = {
    "platform": "gpu-l40s-d",
    "preset": "2gpu-64vcpu-384gb",
    "device": "NVIDIA L40S",
    "num_nodes": 4,
    "num_gpus_declared": 8,
}
RUN = RunForecastSpec(
    job="finetune",
    tokens_per_epoch=7_200_000,
    epochs=Decimal(2),
    train_tokens_per_s=Decimal(2000),
    source="a document of 2026-11-01",
)
"""14,400,000 tokens at 2,000 a second: exactly 2 hours."""


def l40s(**changes: Any) -> StackSpec:
    """The stack of seed 000 (five workers at 4.5688 USD an hour) with a declared run."""
    return replace(load_stack("l40s-dev"), **{"runs": (RUN,), **changes})


def rates_of(spec: StackSpec) -> Estimate:
    """The stack's rates from its own prices."""
    book = layered(spec)
    return estimate(spec, book)


def job_of(spec: StackSpec, name: str = "finetune") -> JobSpec:
    """The declared job."""
    return next(job for job in spec.jobs if job.name == name)


def trained(**changes: Any) -> RunRecord:
    """A training run of the seed's recipe on four L40S nodes at 4,000 tokens a second."""
    values: dict[str, Any] = {
        "kind": "train",
        "job": "finetune",
        "stack": "l40s-dev",
        "recipe": "qwen3_14b_qlora_8xl40s",
        "hardware": L40S,
        "metrics": {"train_tokens_per_s": 4000, "checkpoint_stall_s": 5},
    }
    return record(**{**values, **changes})


def at(hour: int, minute: int = 0, *, day: int = 10, month: int = 11) -> datetime:
    """A moment of November 2026 (UTC)."""
    return datetime(2026, month, day, hour, minute, tzinfo=UTC)


def use(
    job_id: str, start: datetime, end: datetime | None, nodes: Sequence[str], **changes: Any
) -> JobUse:
    """A job on these nodes from start to end; running where there is no end."""
    made = JobUse(
        cluster=CLUSTER,
        job_id=job_id,
        job="finetune",
        user="anna",
        partition="main",
        state="COMPLETED" if end else "RUNNING",
        is_finished=end is not None,
        runs=(Occupancy(started_at=start, ended_at=end, nodes=tuple(nodes)),),
    )
    return replace(made, **changes)


def forecast_entry(job_id: str, usd: str | None, when: datetime, **changes: Any) -> ForecastEntry:
    """A submission of the job."""
    made = ForecastEntry(
        at=when,
        job="finetune",
        job_id=job_id,
        cluster=CLUSTER,
        num_nodes=4,
        hours=None if usd is None else Decimal(2),
        nodes_usd=None if usd is None else Decimal(usd),
        basis="2,000.0 tokens/s, declared: a document",
    )
    return replace(made, **changes)


def actual_entry(
    job_id: str, usd: str | None, start: datetime, end: datetime, **changes: Any
) -> ActualEntry:
    """The end of the job, on four nodes."""
    nodes = tuple(f"worker-{number}" for number in range(4))
    made = ActualEntry(
        at=end,
        job="finetune",
        job_id=job_id,
        cluster=CLUSTER,
        user="anna",
        partition="main",
        state="COMPLETED",
        runs=(Occupancy(started_at=start, ended_at=end, nodes=nodes),),
        node_hours=Decimal((end - start).total_seconds()) / 900,
        nodes_usd=None if usd is None else Decimal(usd),
        padding_percent=None,
    )
    return replace(made, **changes)
