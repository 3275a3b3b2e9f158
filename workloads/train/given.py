"""What is known of a run before a rank takes a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from workloads.common.job import Job
from workloads.train.config import TrainConfig
from workloads.train.plan import Plan
from workloads.train.tasks import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: its recipe, rows, plan and the strategy that follows."""

    job: Job
    config: TrainConfig
    task: Task
    model_dir: Path | None
    """None for a model that is made here."""
    strategy: str
    plan: Plan | None
