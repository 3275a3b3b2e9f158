"""Measures the training loop against others: `make bench-train`, or python -m tests.bench.train.

Our loop with and without packing against a bare PyTorch loop over our packed rows, transformers'
Trainer with PEFT on rows padded to the longest of their batch and to the limit, and TRL's
SFTTrainer. Two at a time step in turn over the same work (tests/bench/training); a ratio is one of
useful tokens per CPU second. Writes tests/bench/train.json.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from tests.bench.training import bare, compare, ours, peft_trainer, sft_trainer
from tests.bench.training.compare import Pair
from tests.bench.training.contest import Trainer
from tests.bench.training.work import Work

RESULT = Path(__file__).with_name("train.json")
PAIRS = {
    "packed_vs_bare_pytorch": Pair(ours="ours_packed", theirs="bare_pytorch", least=0.97),
    "unpacked_vs_trainer_peft": Pair(ours="ours_unpacked", theirs="trainer_peft", least=1.0),
    "unpacked_vs_trl_sft": Pair(ours="ours_unpacked", theirs="trl_sft", least=1.0),
    "packed_vs_padded_trainer_peft": Pair(
        ours="ours_packed", theirs="trainer_peft_padded", least=2.0, same_rows=False
    ),
    "packed_vs_trainer_peft": Pair(ours="ours_packed", theirs="trainer_peft", same_rows=False),
}


def main() -> int:
    """Measures, prints, writes; 0 when every ratio keeps its bound."""
    options = _parser().parse_args()
    size = Work(num_rows=options.rows, num_steps=options.steps)
    return compare.measure(
        {name: PAIRS[name] for name in options.only or PAIRS},
        trainers(size),
        size=size,
        path=RESULT if options.write else None,
        command=f"python -m tests.bench.train {' '.join(sys.argv[1:])}".strip(),
        packages=("torch", "transformers", "peft", "accelerate", "trl"),
    )


def trainers(size: Work) -> dict[str, Trainer]:
    """Return who is measured."""
    return {
        "ours_packed": partial(ours.train, size=size, packing=True),
        "ours_unpacked": partial(ours.train, size=size, packing=False),
        "bare_pytorch": partial(bare.train, size=size),
        "trainer_peft": partial(peft_trainer.train, size=size, pads_to_limit=False),
        "trainer_peft_padded": partial(peft_trainer.train, size=size, pads_to_limit=True),
        "trl_sft": partial(sft_trainer.train, size=size),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.train", description=__doc__)
    parser.add_argument("--rows", type=int, default=96, help="chats of the data set")
    parser.add_argument(
        "--steps", type=int, default=10, help="train steps; the first does not count"
    )
    parser.add_argument("--only", nargs="+", choices=PAIRS, help="leave the other ratios alone")
    parser.add_argument("--no-write", dest="write", action="store_false")
    return parser


if __name__ == "__main__":
    sys.exit(main())
