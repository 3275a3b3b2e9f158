"""The planned memory of a rank against the bytes that the ranks of a real step hold."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import transformers

from cost.size.memory import Dtype, Method, Sharding, Strategy, Training, training_memory
from tests.gpu.work import KINDS, hf_config
from tests.nightly import at_night
from tests.workloads.ranks import run_ranks
from tests.workloads.test_plan import tiny


@pytest.mark.parametrize(
    ("num_ranks", "strategy", "method", "checkpointing", "vocab"),
    [
        at_night(1, "ddp", "qlora", False, 400),
        (1, "ddp", "qlora", True, 6000),
        at_night(1, "ddp", "qlora fp32", False, 400),
        at_night(1, "ddp", "qlora fp32", True, 6000),
        (2, "ddp", "lora", False, 400),
        at_night(2, "ddp", "full", False, 6000),
        (2, "fsdp", "lora", False, 400),
        at_night(4, "fsdp", "full", True, 6000),
        (2, "fsdp gathered once", "full", False, 400),
        (4, "hsdp", "lora", False, 400),
        at_night(4, "hsdp gathered once", "full", True, 6000),
    ],
)
def test_each_rank_holds_what_is_planned(
    num_ranks: int, strategy: str, method: str, checkpointing: bool, vocab: int, tmp_path: Path
) -> None:
    """With two micro batches in a step: gradients of the first are held through the second."""
    settings: dict[str, Any] = {
        "rank": 8,
        "sequence_length": 256,
        "micro_batch_size": 2,
        "gradient_accumulation": 2,
        "gradient_checkpointing": checkpointing,
        "logits_chunk_tokens": 128,
    }
    shape = tiny("qwen3", vocab=vocab, layers=4)
    model: Any = getattr(transformers, f"{KINDS['qwen3']}ForCausalLM")(hf_config(shape))
    model.save_pretrained(tmp_path / "model")
    strategy, _, once = strategy.partition(" ")
    method, _, fp32 = method.partition(" ")
    settings["fp32_embeddings"] = bool(fp32)
    arguments = settings | {"strategy": strategy, "method": method, "dtype": "bf16", "vocab": vocab}
    arguments["reshards"] = not once
    done = run_ranks(
        *("-m", "tests.workloads.bytes_of_a_rank", json.dumps(arguments), str(tmp_path / "model")),
        num_ranks=num_ranks,
        environment={"OMP_NUM_THREADS": "1"},
    )
    peaks = [int(peak) for peak in re.findall(r"peak (\d+) end", done.stdout)]
    plan = Training(method=Method(method), dtype=Dtype.BF16, **settings)
    replicas = 2 if strategy == "hsdp" else 1
    sharding = Sharding(
        strategy=Strategy(strategy), data=num_ranks, replicas=replicas,
        reshard_after_forward=not once,
    )  # fmt: skip
    planned = training_memory(shape, plan, sharding)
    assert len(peaks) == num_ranks, done.stderr[-2000:]
    assert peaks == [pytest.approx(planned.total, rel=0.05)] * num_ranks, planned.parts
