"""The job inference_trained: the trained model over the test set, into `<results>/trained/`."""

from __future__ import annotations

from functools import partial

from workloads.evaluate.__main__ import run_inference
from workloads.job import end, run_job

main = partial(run_inference, side="trained")

if __name__ == "__main__":
    end(run_job("inference_trained", main))
