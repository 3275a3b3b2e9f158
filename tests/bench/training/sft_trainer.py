"""TRL's SFTTrainer, from tests/bench/trainers.lock."""

from __future__ import annotations

import tempfile

from tests.bench.training import others, work
from tests.bench.training.contest import Turns
from tests.bench.training.work import Work


def train(turns: Turns, *, size: Work) -> float:
    """Train on rows padded to the longest of their batch."""
    import datasets  # pyright: ignore[reportMissingImports]
    import transformers
    import trl  # pyright: ignore[reportMissingImports]

    count = others.Count(turns)
    with tempfile.TemporaryDirectory() as folder:
        trainer = trl.SFTTrainer(
            model=work.lora_model(),
            args=trl.SFTConfig(max_length=work.LIMIT_TOKENS, **others.options(size, folder)),
            train_dataset=datasets.Dataset.from_list(work.rows_in_order(size)),
            processing_class=transformers.AutoTokenizer.from_pretrained(work.model_dir()),
            callbacks=[count.callback()],
        )
        trainer.data_collator = count.collator(trainer.data_collator)
        return trainer.train().training_loss
