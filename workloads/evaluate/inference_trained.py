"""The job inference_trained: the trained model over the test set, into `<results>/trained/`."""

from __future__ import annotations

from workloads.evaluate.__main__ import run_inference
from workloads.job import Job, end, run_job


def main(job: Job) -> None:
    """Answer every held-out row."""
    run_inference(job, "trained")


if __name__ == "__main__":
    end(run_job("inference_trained", main))
