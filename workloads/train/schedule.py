"""The learning rate of a step: warm-up, then cosine, linear or constant. A function, no state."""

from __future__ import annotations

import math

from workloads.train.config import TrainConfig


def learning_rate_factor(step: int, *, config: TrainConfig, num_steps: int) -> float:
    """Return the factor on the learning rate of 0-based `step`."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    done = min(1.0, (step - config.warmup_steps) / max(1, num_steps - config.warmup_steps))
    if config.schedule == "linear":
        return 1.0 - done
    return 0.5 * (1 + math.cos(math.pi * done))
