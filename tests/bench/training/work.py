"""The work that all measured trainers get: model, rows, their order, and the adapters.

One LoRA of SmolLM2-135M-Instruct in fp32 on chats of long-tailed lengths. Rows hold 20 % of the
limit on average; real chats of function calling hold 10 % of 4,096 (tests/bench/data.json), so that
padding to the limit costs less here than there.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.state import Cache

MODEL = "SmolLM2-135M-Instruct"
LIMIT_TOKENS = 256
"""Tokens of a packed row, and what the padded rows are padded to."""
ROWS_A_STEP = 4
SEED = 0
RANK, ALPHA = 16, 32
LEARNING_RATE = 1e-4
MAX_GRAD_NORM = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How much of it."""

    num_rows: int
    num_steps: int


def token_rows(count: int) -> Any:
    """Return `count` chats of random tokens, most of them short; the second half is learned."""
    import numpy as np

    from workloads.data.token_rows import TokenRows

    draw = random.Random(0)
    known = json.loads((model_dir() / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    rows: list[TokenRows] = []
    for _ in range(count):
        length = min(LIMIT_TOKENS, max(8, int(draw.lognormvariate(3.7, 0.7))))
        ids = [draw.randrange(3, min(40_000, known)) for _ in range(length)]
        is_second = np.arange(length) >= length // 2
        rows.append(TokenRows.cut_at(np.array(ids, dtype=np.int32), is_second, [length]))
    return TokenRows.joined(rows)


def rows_in_order(work: Work) -> list[dict[str, list[int]]]:
    """Return the rows of every step in the order of our stream, which the others keep."""
    from workloads.train.loop import Stream

    made = token_rows(work.num_rows)
    order = Stream(packs=range(work.num_rows), seed=SEED, length=lambda row: 0)
    return [
        {
            "input_ids": list(row.input_ids),
            "labels": list(row.labels),
            "attention_mask": [1] * len(row.input_ids),
        }
        for row in (made[index] for index in order.rows(0, work.num_steps * ROWS_A_STEP))
    ]


def model_dir() -> Path:
    """Return the folder of the model that `make setup` brought."""
    return Cache.from_environ().models / MODEL


def lora_model() -> Any:
    """Return the model with the same adapters as ours, made by transformers and peft alone."""
    import peft
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir(), dtype=torch.float32)
    torch.manual_seed(SEED)  # as ours: other first values are other losses, by up to 0.2 %
    return peft.get_peft_model(
        model,
        peft.LoraConfig(
            task_type="CAUSAL_LM", r=RANK, lora_alpha=ALPHA, target_modules="all-linear"
        ),
    )
