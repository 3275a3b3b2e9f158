"""transformers' Trainer with PEFT."""

from __future__ import annotations

import tempfile

from tests.bench.training import others, work
from tests.bench.training.contest import Turns
from tests.bench.training.work import Work


def train(turns: Turns, *, size: Work, pads_to_limit: bool) -> float:
    """Train on rows padded to the limit, or to the longest of their batch."""
    import transformers

    count = others.Count(turns)
    collate = transformers.DataCollatorForSeq2Seq(
        transformers.AutoTokenizer.from_pretrained(work.model_dir()),
        padding="max_length" if pads_to_limit else True,
        max_length=work.LIMIT_TOKENS if pads_to_limit else None,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = transformers.Trainer(
            model=work.lora_model(),
            args=transformers.TrainingArguments(**others.options(size, folder)),
            train_dataset=work.rows_in_order(size),  # type: ignore[arg-type]
            data_collator=count.collator(collate),
            callbacks=[count.callback()],
        )
        return trainer.train().training_loss
