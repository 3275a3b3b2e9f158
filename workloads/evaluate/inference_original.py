"""The job inference_original: the recipe's model over the test set, into `<results>/original/`."""

from __future__ import annotations

from functools import partial

from workloads.evaluate.__main__ import run_inference
from workloads.job import end, run_job

main = partial(run_inference, side="original")

if __name__ == "__main__":
    end(run_job("inference_original", main))
