"""The job train; in its second step, or at its export, a rank meets what TRAIN_FAULT names."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from workloads.common import atomic
from workloads.job import end, run_job
from workloads.train.inputs import train

_SIGNALS = {"hang": signal.SIGSTOP, "killed": signal.SIGKILL, "first killed": signal.SIGKILL}
_scale = torch.amp.GradScaler.scale
_new_directory = atomic.new_directory
_steps = 0


def scale_with_a_fault(self: torch.amp.GradScaler, loss: Any) -> Any:
    """Do what a step does before its backward pass; on the chosen rank, fail in the second."""
    global _steps
    _steps += 1
    fault = os.environ["TRAIN_FAULT"]
    if (os.environ["RANK"], _steps) == ("0" if fault == "first killed" else "1", 2):
        if fault == "out of memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        # In one piece, so that who waits for the file reads a whole number.
        written = Path(os.environ["SOPERATOR_PLACE_RESULTS"], "faulty.partial")
        written.write_text(str(os.getpid()), encoding="ascii")
        written.rename(written.with_suffix(".pid"))
        os.kill(os.getpid(), _SIGNALS[fault])
    return _scale(self, loss)


@contextlib.contextmanager
def new_directory_slowly(path: Path, **options: bool) -> Iterator[Path]:
    """Take longer on the rank that writes than any collective may take."""
    with _new_directory(path, **options) as partial:
        yield partial
        time.sleep(1.6 * float(os.environ["TRAIN_TIMEOUT_S"]))


if __name__ == "__main__":
    if os.environ["TRAIN_FAULT"] == "slow export":
        atomic.new_directory = new_directory_slowly
        end(run_job("train", train))
    torch.amp.GradScaler.scale = scale_with_a_fault  # type: ignore[method-assign]
    end(run_job("train", train))
