"""The training loop: DDP over gloo or NCCL, one optimizer step per train step.

Owns the order of a step: rows, global token count, forward and backward, clip, update. The gradient
of a step is the sum over label tokens divided by the number of label tokens of all ranks and micro
batches, so results do not depend on how rows are dealt.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from workloads.common.dist import World
from workloads.common.exit_codes import NonFiniteLossError, PreemptedError
from workloads.common.log import log
from workloads.data.packing import Batch, collate
from workloads.train import checkpoint
from workloads.train.config import TrainConfig
from workloads.train.metrics import LossCurve, StepResult, Throughput
from workloads.train.model import AssistantLoss
from workloads.train.optimizer import AdamW, learning_rate_factor
from workloads.train.order import Stream
from workloads.train.run_folder import RunFolder
from workloads.train.signals import StopRequest


@dataclass(slots=True, kw_only=True)
class Trainer:
    """Everything one rank needs to train."""

    config: TrainConfig
    world: World
    model: Any
    stream: Stream
    pad_id: int
    num_steps: int
    folder: RunFolder
    progress: checkpoint.Progress

    optimizer: AdamW
    curve: LossCurve | None
    """On rank 0 only."""
    stop: StopRequest

    def run(self) -> Throughput:
        """Train to the last step; a stop request saves and raises PreemptedError."""
        module = self._distributed()
        throughput = Throughput()
        every = self.config.checkpoint_every
        saved = self.progress.step
        while self.progress.step < self.num_steps:
            result, stop = self._step(module)
            throughput.add(result)
            if self.curve:
                self.curve.append(result)
            log(
                f"step {result.step + 1}/{self.num_steps} loss {result.loss:.4f} "
                f"grad norm {result.grad_norm:.3f} lr {result.learning_rate:.2e} "
                f"tokens {result.num_tokens}"
            )
            done = self.progress.step == self.num_steps
            if stop or done or (every and self.progress.step % every == 0):
                before_s = time.perf_counter()
                self.save()
                throughput.stalls_s.append(time.perf_counter() - before_s)
                saved = self.progress.step
            if stop and not done:
                raise PreemptedError(
                    f"stopped by a signal after step {saved} of {self.num_steps}; saved in "
                    f"{self.folder.path}; run the job again with --resume auto to continue"
                )
        return throughput

    def save(self) -> None:
        """Commit a checkpoint of this moment; every rank calls it."""
        checkpoint.save(
            self.folder.path,
            model=self.model,
            optimizer=self.optimizer,
            progress=self.progress,
            world=self.world,
            keep_last=self.config.keep_last,
        )

    def _distributed(self) -> Any:
        module = AssistantLoss(self.model)
        if not self.world.is_distributed:
            return module
        return DistributedDataParallel(
            module,
            device_ids=[self.world.local_rank] if self.world.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            forward_sync_buffers=False,
        )

    def _step(self, module: Any) -> tuple[StepResult, bool]:
        config, world = self.config, self.world
        batches = self._batches()
        num_labels, num_tokens, num_positions, num_stops = world.sum(
            [
                float(sum(batch.num_label_tokens for batch in batches)),
                float(sum(batch.num_tokens for batch in batches)),
                float(sum(batch.input_ids_BT.numel() for batch in batches)),
                float(bool(self.stop)),
            ]
        )
        # DDP averages over ranks; the factor turns that into the sum over ranks.
        scale = world.world_size / max(1.0, num_labels)
        total = torch.zeros((), dtype=torch.float64, device=world.device)
        for index, batch in enumerate(batches):
            with _sync_on(module, last=index == len(batches) - 1):
                loss = module(batch.to(world.device))
                (loss * scale).backward()
            total += loss.detach()
        (loss_sum,) = world.sum([float(total)])
        grad_norm = float(
            torch.nn.utils.clip_grad_norm_(
                [w for w in self.model.parameters() if w.requires_grad], config.max_grad_norm
            )
        )
        step = self.progress.step
        if not (math.isfinite(loss_sum) and math.isfinite(grad_norm)):
            raise NonFiniteLossError(
                f"step {step + 1}: loss {loss_sum}, gradient norm {grad_norm}; lower "
                f"train.learning_rate ({config.learning_rate}) or raise train.warmup_steps"
            )
        rate = config.learning_rate * learning_rate_factor(
            step, config=config, num_steps=self.num_steps
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        rows = config.micro_batch_size * config.gradient_accumulation * world.world_size
        self.progress = replace(
            self.progress, step=step + 1, position=self.progress.position + rows
        )
        result = StepResult(
            step=step,
            loss=loss_sum / max(1.0, num_labels),
            grad_norm=grad_norm,
            learning_rate=rate,
            num_tokens=int(num_tokens),
            num_positions=int(num_positions),
            num_label_tokens=int(num_labels),
        )
        return result, num_stops > 0

    def _batches(self) -> list[Batch]:
        micro_batches = self.stream.micro_batches(
            self.progress.position,
            rank=self.world.rank,
            world_size=self.world.world_size,
            micro_batch_size=self.config.micro_batch_size,
            num_micro=self.config.gradient_accumulation,
        )
        return [collate(packs, pad_id=self.pad_id) for packs in micro_batches]


@contextlib.contextmanager
def _sync_on(module: Any, *, last: bool) -> Iterator[None]:
    """Reduce gradients over ranks in the last micro batch only."""
    if last or not isinstance(module, DistributedDataParallel):
        yield
    else:
        with module.no_sync():
            yield
