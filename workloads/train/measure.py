"""What a run measures, in its record, for Prometheus and as TensorBoard events.

Rates count tokens that are not padding, over all ranks, from the end of the first train step of
this process (which pays for warm-up) to the end of the last; what stalls it
(checkpoints, validations) is inside.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

from workloads.common import atomic
from workloads.common.hardware import peak_bf16_flops
from workloads.common.log import log


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One train step over all ranks."""

    step: int
    loss: float
    """Mean cross entropy per label token, in nats."""
    grad_norm: float
    learning_rate: float
    num_tokens: int
    """Tokens that are not padding."""
    num_positions: int
    """Tokens and padding: what the model computed on."""
    num_label_tokens: int


class LossCurve:
    """Loss curve as JSON lines; a resumed run cuts off what came after its checkpoint."""

    def __init__(self, path: Path, *, first_step: int) -> None:
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        # The last line may be cut by a kill; it belongs to a step that is trained again.
        whole = [line for line in lines if line.endswith("}")]
        kept = [f"{line}\n" for line in whole if json.loads(line)["step"] < first_step]
        atomic.write_text(path, "".join(kept))

    def append(self, figures: Mapping[str, float]) -> None:
        """Add a line, or nothing of it where the disk has no room for all of it."""
        line = f"{json.dumps(figures)}\n".encode()
        with self.path.open("ab", buffering=0) as file:
            end = file.tell()
            try:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            except OSError:
                file.truncate(end)
                raise


USES = ("data_wait", "checkpoint", "eval")


@dataclass(slots=True, kw_only=True)
class Ledger:
    """What this process measures from the start of its loop on: steps, and seconds by use."""

    began_s: float = field(default_factory=time.perf_counter)
    began_at_s: float = field(default_factory=time.time)
    """Unix time."""
    seconds: dict[str, list[float]] = field(default_factory=lambda: {use: [] for use in USES})
    """Of each wait for rows, stall for a checkpoint and validation."""
    first: StepResult | None = None
    last: StepResult | None = None
    ended_s: list[float] = field(default_factory=list)
    """When each step ended; no Unix time, which a clock that is set moves."""
    last_ended_at_s: float = 0
    """Unix time of the last step's end; 0 before the first."""
    num_tokens: int = 0
    num_positions: int = 0
    eval_loss: float = math.nan
    """Of the last validation of this process."""

    @contextlib.contextmanager
    def spend(self, use: str) -> Iterator[None]:
        """Count the seconds of the block to `use`."""
        start_s = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[use].append(time.perf_counter() - start_s)

    def add(self, result: StepResult) -> None:
        """Count one finished step."""
        self.ended_s.append(time.perf_counter())
        self.last_ended_at_s = time.time()
        self.first, self.last = self.first or result, result
        self.num_tokens += result.num_tokens
        self.num_positions += result.num_positions

    def shares(self, *, recomputed: float, method: str) -> dict[str, float | int]:
        """Return percents: of time, of positions, of FLOPs for the share `recomputed` of layers."""
        wall_s = time.perf_counter() - self.began_s
        # Forward 2N, backward 4N or, with a frozen base, 2N; checkpointing adds a forward pass.
        passes, again = 6 if method == "full" else 4, 2 * recomputed
        shares: dict[str, float | int] = {
            f"{use}_time_percent": 100 * sum(each) / wall_s for use, each in self.seconds.items()
        }
        shares["train_time_s"] = wall_s
        shares["recompute_flops_percent"] = 100 * again / (passes + again)
        if self.num_positions:
            shares["padding_positions_percent"] = 100 * (1 - self.num_tokens / self.num_positions)
        shares["num_useful_tokens"] = self.num_tokens
        shares["num_computed_positions"] = self.num_positions
        return shares

    def rates(
        self, *, world_size: int, flops_per_token: float, device_name: str
    ) -> dict[str, float | int]:
        """Return the rates after the first step; none when fewer than two steps ran."""
        steps_s = [end - start for start, end in pairwise(self.ended_s)]
        if self.first is None or not steps_s:
            return {}
        wall_s = self.ended_s[-1] - self.ended_s[0]
        num_tokens = self.num_tokens - self.first.num_tokens
        tokens_per_s = num_tokens / wall_s
        padding = 1 - num_tokens / (self.num_positions - self.first.num_positions)
        rates: dict[str, float | int] = {
            "train_tokens_per_s": tokens_per_s,
            "train_tokens_per_s_per_gpu": tokens_per_s / world_size,
            "train_step_s": wall_s / len(steps_s),
            "median_train_step_s": median(steps_s),
            "p99_train_step_s": sorted(steps_s)[math.ceil(0.99 * len(steps_s)) - 1],
            "padding_percent": 100 * padding,
        }
        if peak := peak_bf16_flops(device_name):
            used = tokens_per_s * flops_per_token / (peak * world_size)
            rates["useful_token_mfu_percent"] = 100 * used
        return rates

    def page(
        self, *, step: int, num_steps: int, world_size: int, last_commit_s: float | None
    ) -> bytes:
        """Return the page that Prometheus reads.

        `last_commit_s`: when the newest checkpoint of this process was committed, Unix time.
        """
        from prometheus_client import generate_latest
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

        began_at_s, last = self.began_at_s, self.last
        loss, norm, rate = (last.loss, last.grad_norm, last.learning_rate) if last else (0, 0, 0)
        gauges = {
            "step": ("Train steps done.", step),
            "steps": ("Train steps of the whole run.", num_steps),
            "ranks": ("Ranks that train.", world_size),
            "loss": ("Mean cross entropy per label token, in nats.", loss),
            "eval_loss": ("The same of the held-out rows.", self.eval_loss),
            "grad_norm": ("Norm of the gradient before clipping.", norm),
            "learning_rate": ("Learning rate of the last step.", rate),
            "last_step_timestamp_seconds": (
                "When the last step ended; when the loop started before the first.",
                self.last_ended_at_s or began_at_s,
            ),
            "last_checkpoint_timestamp_seconds": (
                "When the newest checkpoint was committed; when the loop started before the first.",
                last_commit_s or began_at_s,
            ),
        }
        waited_s, stood_s = (sum(self.seconds[use]) for use in ("data_wait", "checkpoint"))
        counters = {
            "tokens": ("Tokens that are not padding, of all ranks.", self.num_tokens),
            "positions": ("Tokens and padding, of all ranks.", self.num_positions),
            "data_wait_seconds": ("Waited for rows.", waited_s),
            "checkpoint_stall_seconds": ("Stood still for checkpoints.", stood_s),
        }

        families: list[Metric] = [GaugeMetricFamily(f"train_{k}", *v) for k, v in gauges.items()]
        for name, (text, value) in counters.items():
            families.append(CounterMetricFamily(f"train_{name}", text, value, created=began_at_s))
        registry: Any = SimpleNamespace(collect=lambda: families)
        return generate_latest(registry)


class Events:
    """Scalars of a run as TensorBoard events, and in Weights & Biases where that is asked for."""

    def __init__(self, folder: Path) -> None:
        """`folder`: of one run; its name is the run's id in Weights & Biases."""
        self.folder = folder
        self._writer: Any = None
        self._wandb: Any = None
        asked = any(os.environ.get(name) for name in ("WANDB_API_KEY", "WANDB_MODE"))
        if asked and find_spec("wandb") is not None:
            import wandb  # pyright: ignore[reportMissingImports]

            named = {"id": folder.name, "name": folder.name, "resume": "allow"}
            try:
                self._wandb = wandb.init(dir=folder.parents[1], **named)
            except Exception as error:  # of its own kinds: a service that is away costs curves
                log(f"Weights & Biases: {error}; the run goes on without it")

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write `scalars` of `step`, in a thread; OSError where an earlier write failed."""
        if self._wandb is not None:
            self._wandb.log(dict(scalars), step=step)
        try:
            if self._writer is None:
                from torch.utils.tensorboard import SummaryWriter

                # Steps that an earlier file has from here on are trained again.
                self._writer = SummaryWriter(self.folder, purge_step=step)
            for tag, value in scalars.items():
                self._writer.add_scalar(tag, value, step)
        except OSError:
            # Its thread ended with the write that failed: the next step begins another file.
            self._writer = None
            raise

    def close(self) -> None:
        """Write what is left."""
        if self._wandb is not None:
            self._wandb.finish()
        try:
            if self._writer is not None:
                self._writer.close()
        except OSError as error:
            log(f"figures of the last steps are not in {self.folder}: {error}")
