"""The training loop: one optimizer step per train step, the same for every method and strategy.

Owns the order of a step: rows, global label count, forward and backward, clip, update. The gradient
of a step is the sum over label tokens divided by the number of label tokens of all ranks and micro
batches, so results do not depend on how rows are dealt.
"""

from __future__ import annotations

import math
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from workloads.common.exit_codes import NonFiniteLossError, PreemptedError
from workloads.common.log import log
from workloads.train.config import TrainConfig
from workloads.train.exporter import TrainMetrics
from workloads.train.faults import Watchdog
from workloads.train.ledger import Ledger
from workloads.train.metrics import LossCurve, StepResult, Throughput
from workloads.train.order import Stream
from workloads.train.precision import Precision
from workloads.train.schedule import learning_rate_factor
from workloads.train.signals import StopRequest
from workloads.train.state import Checkpoints, TrainState
from workloads.train.strategy import Strategy
from workloads.train.tasks import Task
from workloads.train.tensorboard import EventWriter

MIN_LOSS_SCALE = 2.0**-10
"""Below it fp16 gradients overflow at any scale: the run has diverged."""


@dataclass(slots=True, kw_only=True)
class Trainer:
    """Everything one rank needs to train."""

    config: TrainConfig
    task: Task
    stream: Stream
    strategy: Strategy
    precision: Precision
    state: TrainState
    num_steps: int
    checkpoints: Checkpoints
    stop: StopRequest
    curve: LossCurve | None
    """On rank 0 only."""
    events: EventWriter | None
    """On rank 0 only."""
    metrics: TrainMetrics | None
    """On rank 0 only."""
    watchdog: Watchdog
    ledger: Ledger = field(default_factory=Ledger)
    has_lost_figures: bool = False
    """Whether the last step's figures could not be written."""

    def run(self) -> Throughput:
        """Train to the last step; a stop request saves and raises PreemptedError."""
        throughput, state = Throughput(), self.state
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="rows") as worker:
            waiting = self._ask(worker, state.progress.position)
            while state.progress.step < self.num_steps:
                before_s = self.ledger.seconds["data_wait"]
                with self.ledger.spend("data_wait"):
                    batches = waiting.result()
                if self.metrics:
                    self.metrics.waited(self.ledger.seconds["data_wait"] - before_s)
                # The next step's rows are put together while this one computes.
                waiting = self._ask(worker, state.progress.position + self._rows_per_step)
                result, stop = self._step(batches)
                throughput.add(result)
                self._report(result)
                done = state.progress.step == self.num_steps
                self.watchdog.beat(f"the step or save after step {state.progress.step}")
                if stop or done or self._is_due(result):
                    before_s = self.ledger.seconds["checkpoint"]
                    with self.ledger.spend("checkpoint"):
                        self.checkpoints.save(state, state.progress.step, loss=result.loss)
                        if stop or done:
                            self.checkpoints.wait()
                    stall_s = self.ledger.seconds["checkpoint"] - before_s
                    throughput.stalls_s.append(stall_s)
                    if self.metrics:
                        self.metrics.stood(stall_s)
                if stop and not done:
                    raise PreemptedError(
                        f"stopped by a signal after step {state.progress.step} of "
                        f"{self.num_steps}; saved; run the job again with --resume auto to continue"
                    )
        return throughput

    @property
    def _rows_per_step(self) -> int:
        return self.state.progress.rows_per_step

    def _is_due(self, result: StepResult) -> bool:
        """Whether a checkpoint falls on the step that has just ended."""
        step = result.step + 1
        if self.checkpoints.due(step):
            return True
        if self.config.checkpoint_every_epochs is None:
            return bool(self.config.checkpoint_every) and step % self.config.checkpoint_every == 0
        rows = self.config.checkpoint_every_epochs * len(self.stream.packs)
        position = self.state.progress.position
        return position // rows > (position - self._rows_per_step) // rows

    def _ask(self, worker: ThreadPoolExecutor, position: int) -> Future[list[Any]]:
        return worker.submit(self._batches, position)

    def _batches(self, position: int) -> list[Any]:
        world = self.state.world
        micro_batches = self.stream.micro_batches(
            position,
            rank=world.rank,
            world_size=world.world_size,
            micro_batch_size=self.config.micro_batch_size,
            num_rows=self._rows_per_step,
        )
        return [self.task.collate(rows) for rows in micro_batches]

    def _step(self, batches: list[Any]) -> tuple[StepResult, bool]:
        config, world, state = self.config, self.state.world, self.state
        num_labels, num_tokens, num_positions, num_stops = world.sum(
            [
                float(sum(batch.num_label_tokens for batch in batches)),
                float(sum(batch.num_tokens for batch in batches)),
                float(sum(self.task.num_positions(batch) for batch in batches)),
                float(bool(self.stop)),
            ]
        )
        # DDP and FSDP2 average over ranks; the factor turns that into the sum over ranks.
        scale = world.world_size / max(1.0, num_labels)
        total = torch.zeros((), dtype=torch.float64, device=world.device)
        for index, batch in enumerate(batches):
            with self.strategy.accumulate(last=index == len(batches) - 1):
                with self.precision.forward():
                    loss = self.strategy.module(batch.to(world.device))
                self.precision.backward(loss * scale)
            total += loss.detach()
        (loss_sum,) = world.sum([float(total)])
        self.precision.unscale(state.optimizer)
        grad_norm = self.strategy.clip(config.max_grad_norm)
        step = state.progress.step
        self._check_finite(step, loss_sum, grad_norm)
        rate = config.learning_rate * learning_rate_factor(
            step, config=config, num_steps=self.num_steps
        )
        for group in state.optimizer.param_groups:
            group["lr"] = rate
        self.precision.step(state.optimizer)
        state.optimizer.zero_grad(set_to_none=True)
        position = state.progress.position + self._rows_per_step
        if self.stream.end is not None:  # the last step may be short, and the run be prolonged
            position = min(position, self.stream.end)
        state.progress = replace(state.progress, step=step + 1, position=position)
        self.ledger.add(num_tokens=int(num_tokens), num_positions=int(num_positions))
        result = StepResult(
            step=step,
            loss=loss_sum / max(1.0, num_labels),
            # fp16 gradients overflow now and then; the step is left out and the scale halved.
            grad_norm=grad_norm if math.isfinite(grad_norm) else 0.0,
            learning_rate=rate,
            num_tokens=int(num_tokens),
            num_positions=int(num_positions),
            num_label_tokens=int(num_labels),
        )
        return result, num_stops > 0

    def _check_finite(self, step: int, loss_sum: float, grad_norm: float) -> None:
        scaler = self.precision.scaler
        bearable = scaler is not None and scaler.get_scale() > MIN_LOSS_SCALE
        if math.isfinite(loss_sum) and (math.isfinite(grad_norm) or bearable):
            return
        raise NonFiniteLossError(
            f"step {step + 1}: loss {loss_sum}, gradient norm {grad_norm}; lower "
            f"train.learning_rate ({self.config.learning_rate}) or raise train.warmup_steps"
        )

    def _report(self, result: StepResult) -> None:
        self._note(result)
        if self.metrics:
            self.metrics.ended_step(result)
        log(
            f"step {result.step + 1}/{self.num_steps} loss {result.loss:.4f} "
            f"grad norm {result.grad_norm:.3f} lr {result.learning_rate:.2e} "
            f"tokens {result.num_tokens}"
        )

    def _note(self, result: StepResult) -> None:
        """Write the step's figures; a disk that is full costs their lines, not the run."""
        try:
            if self.curve:
                self.curve.append(result)
            if self.events:
                self.events.add(
                    result.step + 1,
                    {
                        "train/loss": result.loss,
                        "train/grad_norm": result.grad_norm,
                        "train/learning_rate": result.learning_rate,
                        "train/useful_tokens": float(result.num_tokens),
                    },
                )
        except OSError as error:
            if not self.has_lost_figures:
                log(f"figures of step {result.step + 1} are not written: {error}; the run goes on")
            self.has_lost_figures = True
        else:
            self.has_lost_figures = False
