"""What a run measures: loss curve, tokens per second, useful-token MFU.

Rates count tokens that are not padding, over all ranks, from the end of the first train step of
this process (which pays for warm-up) to the end of the last; checkpoint stalls are inside.
"""

from __future__ import annotations

import errno
import json
import math
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from workloads.common.hardware import peak_bf16_flops


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

    def to_line(self) -> str:
        """Return the line of the loss curve."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(values)


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

    def append(self, result: StepResult) -> None:
        """Add one step, or nothing of it where the disk has no room for all of it."""
        line = f"{result.to_line()}\n".encode()
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
    """Seconds of each step, stalls for checkpoints included."""
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
