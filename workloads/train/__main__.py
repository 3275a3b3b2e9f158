"""The fine-tuning job, on the ranks that torchrun started.

Usage: torchrun --nproc-per-node=2 -m workloads.train --recipe smollm2_135m_lora_2xcpu
       [--set train.max_steps=8] [--resume auto] [--plan]
"""

from __future__ import annotations

import sys

from workloads.common.job import end, run_job
from workloads.train import describe
from workloads.train.run import main

if __name__ == "__main__":
    if describe.FLAG in sys.argv[1:]:
        end(describe.main())
    end(run_job("train", main))
