"""What the fork server of ranks.py imports once, instead of each rank that it starts."""

import gc
import importlib
import os

# A pool of OpenBLAS's threads would be here, in no process that is forked off.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
gc.disable()  # an eighth of the time of the imports is a search for garbage that there is not
for name in (
    "peft",
    "torch.distributed.fsdp",
    "transformers.models.llama.modeling_llama",
    "workloads.train.inputs",
    "workloads.train.checkpoint",
    "workloads.train.finish",
    "workloads.train.strategy",
    "workloads.train.tasks",
    "workloads.evaluate.__main__",
):
    importlib.import_module(name)
gc.enable()
gc.freeze()  # else the first collection of each rank makes its own copy of all these pages
