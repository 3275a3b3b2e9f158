"""The suite on this rank, whose own work is made slower where SLOW_RANK names it."""

from __future__ import annotations

import os
import time

from workloads.accept import training
from workloads.accept.benchmark import main
from workloads.job import end

_work = training.Trainer.work


def _slow_work(self: training.Trainer):
    found = _work(self)
    time.sleep(0.2)
    return found


if os.environ["RANK"] == os.environ.get("SLOW_RANK"):
    training.Trainer.work = _slow_work  # type: ignore[method-assign]
end(main())
