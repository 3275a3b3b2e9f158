"""The job train; in its second step, or at its export, a rank meets what TRAIN_FAULT names."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch

from workloads.job import end, run_job
from workloads.train import finish
from workloads.train.run import train

_SIGNALS = {"hang": signal.SIGSTOP, "killed": signal.SIGKILL, "first killed": signal.SIGKILL}
_scale = torch.amp.GradScaler.scale
_open_to_readers = finish._open_to_readers
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


def open_to_readers_slowly(folder: Path) -> None:
    """Do it on the rank that writes, after longer than any collective may take."""
    time.sleep(1.6 * float(os.environ["TRAIN_TIMEOUT_S"]))
    _open_to_readers(folder)


if __name__ == "__main__":
    if os.environ["TRAIN_FAULT"] == "slow export":
        finish._open_to_readers = open_to_readers_slowly
        end(run_job("train", train))
    torch.amp.GradScaler.scale = scale_with_a_fault  # type: ignore[method-assign]
    end(run_job("train", train))
