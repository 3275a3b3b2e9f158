"""Rows and tiny models that are made here: an encoder, a T5 and a vision transformer.

Every rule can be learned in a few steps on one CPU, so a run that does not learn is broken.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from workloads.train.config import TrainConfig

NUM_ROWS, VOCABULARY, CLASSES = 64, 32, 4
FIRST_WORD = 8
"""Ids below it are special: padding, end, and one mark per class."""


def rows(config: TrainConfig) -> list[Any]:
    """Return the rows of a task: the same ones for the same seed."""
    from workloads.train.tasks.small import Row

    draw = random.Random(config.seed)
    made: list[Any] = []
    for index in range(NUM_ROWS):
        kind = index % CLASSES
        length = draw.randint(4, min(12, config.sequence_length - 1))
        words = tuple(draw.randrange(FIRST_WORD, VOCABULARY) for _ in range(length))
        if config.task == "text_classification":
            made.append(Row(inputs=(2 + kind, *words), labels=(kind,)))
        elif config.task == "text_to_text":
            made.append(Row(inputs=(2 + kind, *words, 1), labels=(2 + kind, 2 + kind, 1)))
        else:
            made.append(Row(inputs=_image(kind, draw), labels=(kind,)))
    return made


def _image(quadrant: int, draw: random.Random) -> Any:
    import numpy as np

    noise = np.random.default_rng(draw.randrange(2**32))
    pixels = noise.normal(0, 0.1, (3, 8, 8)).astype(np.float32)
    top, left = 4 * (quadrant // 2), 4 * (quadrant % 2)
    pixels[:, top : top + 4, left : left + 4] += 1
    return pixels


def _bert(num_classes: int) -> Any:
    from transformers import BertConfig

    options: dict[str, Any] = {"num_labels": num_classes}
    return BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        **options,
    )


def _t5(num_classes: int) -> Any:
    from transformers import T5Config

    del num_classes
    options: dict[str, Any] = {"decoder_start_token_id": 0}
    return T5Config(
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        **options,
    )


def _vit(num_classes: int) -> Any:
    from transformers import ViTConfig

    options: dict[str, Any] = {"num_labels": num_classes}
    return ViTConfig(
        image_size=8,
        patch_size=4,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        **options,
    )


MODELS: dict[str, Callable[[int], Any]] = {
    "generated/bert": _bert,
    "generated/t5": _t5,
    "generated/vit": _vit,
}
