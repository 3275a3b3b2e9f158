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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

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


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """One validation over all ranks, after `step`."""

    step: int
    eval_loss: float
    """Mean cross entropy per label token of the held-out rows, in nats."""


class LossCurve:
    """Loss curve as JSON lines; a resumed run cuts off what came after its checkpoint."""

    def __init__(self, path: Path, *, first_step: int) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        kept: list[str] = []
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                # The last line may be cut by a kill; it belongs to a step that is trained again.
                if line.endswith("}") and json.loads(line)["step"] < first_step:
                    kept.append(line)
        path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")

    def append(self, result: StepResult | EvalResult) -> None:
        """Add a line, or nothing of it where the disk has no room for all of it."""
        line = f"{json.dumps(asdict(result))}\n".encode()
        with self.path.open("ab", buffering=0) as file:
            end = file.tell()
            try:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            except OSError:
                file.truncate(end)
                raise


@dataclass(slots=True)
class Throughput:
    """Tokens and time after the first step of this process."""

    num_steps: int = 0
    num_tokens: int = 0
    num_positions: int = 0
    started_s: float | None = None
    ended_s: float = 0.0
    steps_s: list[float] = field(default_factory=list)
    """Seconds of each step, stalls included."""
    losses: list[float] = field(default_factory=list)
    stalls_s: list[float] = field(default_factory=list)
    """Seconds that training stood still for each checkpoint."""

    def add(self, result: StepResult) -> None:
        """Count one finished step."""
        now = time.perf_counter()
        self.losses.append(result.loss)
        if self.started_s is None:
            self.started_s = now
            return
        self.steps_s.append(now - (self.ended_s or self.started_s))
        self.num_steps += 1
        self.num_tokens += result.num_tokens
        self.num_positions += result.num_positions
        self.ended_s = now

    def metrics(
        self, *, world_size: int, flops_per_token: float, device_name: str
    ) -> dict[str, float | int]:
        """Return the rates; none when fewer than two steps ran."""
        if not self.num_steps or self.started_s is None:
            return {}
        tokens_per_s = self.num_tokens / (self.ended_s - self.started_s)
        rates: dict[str, float | int] = {
            "train_tokens_per_s": tokens_per_s,
            "train_tokens_per_s_per_gpu": tokens_per_s / world_size,
            "train_step_s": (self.ended_s - self.started_s) / self.num_steps,
            "median_train_step_s": median(self.steps_s),
            "p99_train_step_s": sorted(self.steps_s)[math.ceil(0.99 * self.num_steps) - 1],
            "padding_percent": 100 * (1 - self.num_tokens / self.num_positions),
        }
        peak = peak_bf16_flops(device_name)
        if peak:
            rates["useful_token_mfu_percent"] = (
                100 * tokens_per_s * flops_per_token / (peak * world_size)
            )
        return rates


SHARES = ("data_wait", "checkpoint", "eval")


@dataclass(slots=True, kw_only=True)
class Ledger:
    """Seconds by use and positions by use, from the start of the loop on this rank."""

    began_s: float = field(default_factory=time.perf_counter)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SHARES, 0.0))
    num_tokens: int = 0
    num_positions: int = 0

    @contextlib.contextmanager
    def spend(self, use: str) -> Iterator[None]:
        """Count the seconds of the block to `use`."""
        start_s = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[use] += time.perf_counter() - start_s

    def add(self, *, num_tokens: int, num_positions: int) -> None:
        """Count the tokens of a step, and the positions that the model computed on."""
        self.num_tokens += num_tokens
        self.num_positions += num_positions

    def metrics(self, *, recomputed: float, method: str) -> dict[str, float | int]:
        """Return percents: of time, of positions, of FLOPs for the share `recomputed` of layers."""
        wall_s = time.perf_counter() - self.began_s
        # Forward 2N, backward 4N or, with a frozen base, 2N; checkpointing adds a forward pass.
        passes, again = 6 if method == "full" else 4, 2 * recomputed
        shares: dict[str, float | int] = {
            f"{use}_time_percent": 100 * seconds / wall_s for use, seconds in self.seconds.items()
        }
        shares["train_time_s"] = wall_s
        shares["recompute_flops_percent"] = 100 * again / (passes + again)
        if self.num_positions:
            shares["padding_positions_percent"] = 100 * (1 - self.num_tokens / self.num_positions)
        shares["num_useful_tokens"] = self.num_tokens
        shares["num_computed_positions"] = self.num_positions
        return shares


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
        from prometheus_client import CollectorRegistry, Counter, Gauge

        began_s = now_s()
        self._now_s = now_s
        self._registry = CollectorRegistry()
        options: dict[str, Any] = {"registry": self._registry, "namespace": "train"}
        self._step = Gauge("step", "Train steps done.", **options)
        Gauge("steps", "Train steps of the whole run.", **options).set(num_steps)
        Gauge("ranks", "Ranks that train.", **options).set(world_size)
        self._loss = Gauge("loss", "Mean cross entropy per label token, in nats.", **options)
        self._eval_loss = Gauge("eval_loss", "The same of the held-out rows.", **options)
        self._eval_loss.set(math.nan)  # until the first validation
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
        from prometheus_client import generate_latest

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

    def validated(self, result: EvalResult) -> None:
        """Note one validation."""
        self._eval_loss.set(result.eval_loss)

    def waited(self, seconds: float) -> None:
        """Count seconds without rows."""
        self._data_wait.inc(seconds)

    def stood(self, seconds: float) -> None:
        """Count seconds of a checkpoint in which nothing trained."""
        self._stall.inc(seconds)


class Events:
    """Scalars of a run as TensorBoard events, and in Weights & Biases where that is asked for."""

    def __init__(self, folder: Path) -> None:
        """`folder`: of one run; its name is the run's id in Weights & Biases."""
        self.folder = folder
        self._writer: Any = None
        self._wandb = _wandb_run(folder)

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


def _wandb_run(folder: Path) -> Any:
    """The run in Weights & Biases; None without its package, or where its variables are not set."""
    asked = any(os.environ.get(name) for name in ("WANDB_API_KEY", "WANDB_MODE"))
    if not asked or find_spec("wandb") is None:
        return None
    import wandb  # pyright: ignore[reportMissingImports]

    try:
        return wandb.init(dir=folder.parents[1], id=folder.name, name=folder.name, resume="allow")
    except Exception as error:  # of its own kinds: a service that is away costs curves, not the run
        log(f"Weights & Biases: {error}; the run goes on without it")
        return None
