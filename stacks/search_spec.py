"""What a stack declares of hyperparameter searches: one job many times with other settings."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from itertools import product


class Goal(StrEnum):
    """Which end of a metric is the better one."""

    LOWEST = "lowest"
    HIGHEST = "highest"


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisSpec:
    """One setting of the recipe and the values that it takes in turn."""

    key: str
    """Setting as `--set` names it, such as `train.learning_rate`."""
    values: tuple[str, ...]
    """Its values as `--set` takes them; numbers in quotes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """One run beside the grid."""

    settings: tuple[str, ...]
    """Settings as `--set` takes them, such as `train.learning_rate=2e-5`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpec:
    """A declared job as an array: a task for each combination of the grid and each listed trial."""

    name: str
    """Name of the array, submitted like a job."""
    job: str
    """Job that each task runs."""
    metric: str
    """Metric of the run record that trials are ranked by, such as `last_loss`."""
    goal: Goal = Goal.LOWEST
    """Which end of the metric is the better one."""
    grid: tuple[AxisSpec, ...] = ()
    """Settings whose values are combined, the last one changing first."""
    trials: tuple[TrialSpec, ...] = ()
    """Further trials."""
    at_once: int = 1
    """Tasks that run at the same time."""
    max_usd: Decimal | None = None
    """US dollars over which it is not submitted."""

    @property
    def settings(self) -> tuple[tuple[str, ...], ...]:
        """The settings of each task, by its number in the array."""
        axes = [[f"{axis.key}={value}" for value in axis.values] for axis in self.grid]
        combined = tuple(product(*axes)) if axes else ()
        return (*combined, *(trial.settings for trial in self.trials))
