"""What Prometheus gets of a training run, on rank 0: names, units and when they change.

Owns the numbers while the run lasts; metrics.py owns those of its record.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from workloads.train.metrics import StepResult


class TrainMetrics:
    """Gauges and counters of one training run."""

    def __init__(
        self,
        *,
        step: int,
        num_steps: int,
        world_size: int,
        last_commit_s: Callable[[], float | None],
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`last_commit_s`: when the newest checkpoint of this process was committed, Unix time;
        None before the first, when the start of the loop counts.
        """
        began_s = now_s()
        self._now_s = now_s
        self._registry = CollectorRegistry()
        options: dict[str, Any] = {"registry": self._registry, "namespace": "train"}
        self._step = Gauge("step", "Train steps done.", **options)
        Gauge("steps", "Train steps of the whole run.", **options).set(num_steps)
        Gauge("ranks", "Ranks that train.", **options).set(world_size)
        self._loss = Gauge("loss", "Mean cross entropy per label token, in nats.", **options)
        self._grad_norm = Gauge("grad_norm", "Norm of the gradient before clipping.", **options)
        self._rate = Gauge("learning_rate", "Learning rate of the last step.", **options)
        self._tokens = Counter("tokens", "Tokens that are not padding, of all ranks.", **options)
        self._positions = Counter("positions", "Tokens and padding, of all ranks.", **options)
        self._data_wait = Counter("data_wait_seconds", "Waited for rows.", **options)
        self._stall = Counter("checkpoint_stall_seconds", "Stood still for checkpoints.", **options)
        self._last_step = Gauge(
            "last_step_timestamp_seconds",
            "When the last step ended; when the loop started before the first.",
            **options,
        )
        self._step.set(step)
        self._last_step.set(began_s)
        Gauge(
            "last_checkpoint_timestamp_seconds",
            "When the newest checkpoint was committed; when the loop started before the first.",
            **options,
        ).set_function(lambda: last_commit_s() or began_s)

    def text(self) -> bytes:
        """Return the page that Prometheus reads."""
        return generate_latest(self._registry)

    def ended_step(self, result: StepResult) -> None:
        """Note one train step that has just ended."""
        self._step.set(result.step + 1)
        self._loss.set(result.loss)
        self._grad_norm.set(result.grad_norm)
        self._rate.set(result.learning_rate)
        self._tokens.inc(result.num_tokens)
        self._positions.inc(result.num_positions)
        self._last_step.set(self._now_s())

    def waited(self, seconds: float) -> None:
        """Count seconds without rows."""
        self._data_wait.inc(seconds)

    def stood(self, seconds: float) -> None:
        """Count seconds of a checkpoint in which nothing trained."""
        self._stall.inc(seconds)
