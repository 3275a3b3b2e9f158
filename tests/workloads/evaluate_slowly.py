"""The job evaluate or lm_eval; rank 0 works alone for longer than ranks wait for each other."""

from __future__ import annotations

import importlib
import sys
import time
import types
from functools import partial
from typing import Any

from workloads.common.dist import world
from workloads.evaluate import generate
from workloads.job import end, run_job

_WAIT_S, _WORK_S = 4, 9


def slowly(result: Any) -> Any:
    """Returns a function that gives `result` of its arguments, late."""

    def work(*args: Any, **options: Any) -> Any:
        time.sleep(_WORK_S)
        return result(*args, **options)

    return work


if __name__ == "__main__":
    kind, *arguments = sys.argv[1:]
    harness: Any = types.ModuleType("lm_eval")
    harness.__spec__ = types.SimpleNamespace(name="lm_eval")
    harness.simple_evaluate = slowly(lambda **_: {"results": {"arc": {"acc,none": 0.5}}})
    tasks: Any = types.ModuleType("lm_eval.tasks")
    tasks.TaskManager = partial(types.SimpleNamespace, load=lambda names: None)
    sys.modules |= {"lm_eval": harness, "lm_eval.tasks": tasks}
    generate.measure_speed = slowly(generate.measure_speed)
    name = "lm_eval_job" if kind == "lm_eval" else "__main__"
    job: Any = importlib.import_module(f"workloads.evaluate.{name}")
    job.world = partial(world, timeout_s=_WAIT_S)
    end(run_job(kind, job.main, arguments))
