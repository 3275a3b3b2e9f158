"""Measures the trainer's settings one by one: part of `make bench-train`.

Each setting against our packed run without it, in the same way and on the same rows as
tests/bench/train.py, which also shows that it leaves the loss as it is. On one CPU thread: what
compiling, checkpointing and chunks are for (launches, memory of a GPU) is not what counts here.
FlexAttention trains on a GPU only, and Liger's kernels run nowhere else. Writes
tests/bench/train_options.json.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from tests.bench.training import compare, eager, ours
from tests.bench.training.compare import Pair
from tests.bench.training.contest import Trainer
from tests.bench.training.work import Work

RESULT = Path(__file__).with_name("train_options.json")
SETTINGS = {
    "packing_off": {"packing": False},
    "compile": {"compile": True},
    "gradient_checkpointing": {"gradient_checkpointing": True},
    "loss_in_chunks_of_64": {"loss_chunk_tokens": 64},
}
EAGER = "eager_attention"


def main() -> int:
    """Measures, prints, writes; 0 unless a setting changed the loss."""
    options = _parser().parse_args()
    size = Work(num_rows=options.rows, num_steps=options.steps)
    trainers: dict[str, Trainer] = {
        "plain": partial(ours.train, size=size),
        EAGER: partial(eager.train, size=size),
    } | {name: partial(ours.train, size=size, **values) for name, values in SETTINGS.items()}
    chosen = options.only or [name for name in trainers if name != "plain"]
    return compare.measure(
        {name: Pair(ours=name, theirs="plain", same_rows=name != "packing_off") for name in chosen},
        trainers,
        size=size,
        path=RESULT if options.write else None,
        command=f"python -m tests.bench.train_options {' '.join(sys.argv[1:])}".strip(),
        packages=("torch", "transformers", "peft"),
        in_one_process=True,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.train_options", description=__doc__
    )
    parser.add_argument("--rows", type=int, default=96, help="chats of the data set")
    parser.add_argument("--steps", type=int, default=8, help="train steps; the first is left out")
    parser.add_argument("--only", nargs="+", choices=[*SETTINGS, EAGER], help="these alone")
    parser.add_argument("--no-write", dest="write", action="store_false")
    return parser


if __name__ == "__main__":
    sys.exit(main())
