"""The planned memory of a model that is divided by width or by stages, against ranks of torch.

The trainer divides neither, so the ranks here are of a test's own (divided_rank.py): the trainer's
models and losses under torch's parallelize_module and torch.distributed.pipelining. The degrees
are those that the planner proposes.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from cost.size.choice import Gpus, verdicts
from cost.size.memory import (
    Dtype,
    Method,
    Sharding,
    Strategy,
    Training,
    layer_kept,
    training_memory,
)
from cost.size.shape import ModelShape
from tests.gpu.work import KINDS, hf_config, kind_of
from tests.nightly import at_night
from tests.workloads.ranks import run_ranks
from tests.workloads.test_plan import tiny

SETTINGS: dict[str, Any] = {
    "method": "full",
    "dtype": "bf16",
    "rank": 8,
    "sequence_length": 128,
    "micro_batch_size": 4,
    "gradient_accumulation": 2,
    "gradient_checkpointing": False,
    "logits_chunk_tokens": 128,
}


def shape_of(kind: str, *, vocab: int, layers: int) -> ModelShape:
    """Returns a small shape whose heads and key heads can be divided by four."""
    shape = tiny(kind, vocab=vocab, layers=layers)
    return dataclasses.replace(shape, heads=8, kv_heads=4, head_dim=12)


def proposed(shape: ModelShape, plan: Training, strategy: str, gpus: Gpus) -> Sharding:
    """Returns the planner's degrees of a strategy on these GPUs."""
    (found,) = (
        each.sharding
        for each in verdicts(shape, plan, gpus)
        if each.sharding.strategy is Strategy(strategy)
    )
    return found


def ranks_of(
    shape: ModelShape, settings: dict[str, Any], sharding: Sharding, folder: Path
) -> list[dict[str, Any]]:
    """Returns what each rank of a divided model holds in a train step, and its losses."""
    model: Any = getattr(transformers, f"{KINDS[kind_of(shape)]}ForCausalLM")(hf_config(shape))
    model.save_pretrained(folder)
    ways = {name: getattr(sharding, name) for name in ("data", "pipeline", "tensor")}
    arguments = settings | ways | {"vocab": shape.vocab}
    arguments["divides_state"] = sharding.strategy is Strategy.THREE_D
    command = ("-m", "tests.workloads.divided_rank", json.dumps(arguments), str(folder))
    done = run_ranks(*command, num_ranks=sharding.gpus)
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(said) == sharding.gpus, done.stderr[-3000:]
    return sorted(said, key=lambda each: each["rank"])


ONE_NODE = Gpus(nodes=1, per_node=2, usable=2**30)
FOUR_IN_A_ROW = Gpus(nodes=4, per_node=1, usable=2**30)
FOUR_PAIRS = Gpus(nodes=4, per_node=2, usable=2**30)
CHECKPOINTED = {"gradient_checkpointing": True}
FOUR_BATCHES = {"gradient_accumulation": 4}
FP32 = {"dtype": "fp32"}
ADAPTERS = {"method": "lora"}
WHOLE_LOGITS = {"logits_chunk_tokens": None}


@pytest.mark.feature("S004-19", "S004-21")
@pytest.mark.parametrize(
    ("kind", "vocab", "changes"),
    [
        at_night("qwen2", 400, {}),
        at_night("llama", 6000, CHECKPOINTED),
        at_night("llama", 400, FP32),
        at_night("qwen2", 6000, WHOLE_LOGITS),
        ("qwen3", 400, ADAPTERS),
        at_night("qwen2", 400, ADAPTERS | CHECKPOINTED),
        ("llama", 400, {"gradient_checkpointing": 2}),
    ],
)
def test_ranks_that_share_each_layer_hold_what_is_planned(
    kind: str, vocab: int, changes: dict[str, Any], tmp_path: Path
) -> None:
    compare(shape_of(kind, vocab=vocab, layers=3), changes, "tensor", ONE_NODE, tmp_path)


@pytest.mark.feature("S004-18", "S004-21")
@pytest.mark.parametrize(
    ("gpus", "kind", "vocab", "changes"),
    [
        (ONE_NODE, "qwen2", 400, FOUR_BATCHES),
        at_night(ONE_NODE, "qwen3", 6000, ADAPTERS),
        at_night(ONE_NODE, "llama", 6000, WHOLE_LOGITS),
        at_night(FOUR_IN_A_ROW, "llama", 400, FOUR_BATCHES | FP32 | CHECKPOINTED),
        at_night(ONE_NODE, "qwen2", 400, {"gradient_accumulation": 1}),
        (ONE_NODE, "llama", 400, {"gradient_checkpointing": 2}),
        at_night(
            FOUR_IN_A_ROW, "llama", 400, ADAPTERS | FOUR_BATCHES | {"gradient_checkpointing": 3}
        ),
    ],
)
def test_the_fullest_stage_of_a_pipeline_holds_what_is_planned(
    gpus: Gpus, kind: str, vocab: int, changes: dict[str, Any], tmp_path: Path
) -> None:
    shape = shape_of(kind, vocab=vocab, layers=3 * gpus.count)
    compare(shape, changes, "pipeline", gpus, tmp_path)


@pytest.mark.feature("S004-18", "S004-19", "S004-21", "S004-23")
def test_ranks_of_layers_of_stages_and_of_rows_hold_what_is_planned(tmp_path: Path) -> None:
    """Two ways each: eight ranks, of which two divide the optimizer's state."""
    sharding = compare(shape_of("qwen2", vocab=400, layers=6), {}, "3d", FOUR_PAIRS, tmp_path)
    assert (sharding.tensor, sharding.pipeline, sharding.data) == (2, 2, 2)


def compare(
    shape: ModelShape, changes: dict[str, Any], strategy: str, gpus: Gpus, folder: Path
) -> Sharding:
    """Holds the ranks of a strategy against its plan; stages of three layers. Its degrees."""
    settings = SETTINGS | changes
    method, dtype = Method(settings["method"]), Dtype(settings["dtype"])
    plan = Training(**settings | {"method": method, "dtype": dtype})
    sharding = proposed(shape, plan, strategy, gpus)
    ranks = ranks_of(shape, settings, sharding, folder)

    # Every replica has a loss of its own, which the ranks of its last stage have.
    last = [each for each in ranks if each["stage"] == sharding.pipeline - 1]
    assert len(last) == sharding.gpus // sharding.pipeline
    losses = [
        sum(step) / sharding.tensor for step in zip(*(r["losses"] for r in last), strict=True)
    ]
    rounding = 1e-5 if dtype is Dtype.FP32 else 1e-3
    assert losses == pytest.approx(ranks[0]["whole_losses"], rel=rounding)

    recomputed = plan.recomputed_layers(shape.layers)
    kept = [  # by the second layer of each stage
        layer_kept(shape, plan, recomputed=3 * each["stage"] + 1 < recomputed) for each in ranks
    ]
    assert [each["layer"] for each in ranks] == [each.on_each(sharding.tensor) for each in kept]

    planned = training_memory(shape, plan, sharding)
    fullest = max(ranks, key=lambda each: each["total"])
    for part in ("weights", "gradients", "optimizer"):
        assert fullest[part] == pytest.approx(getattr(planned, part), rel=0.01), part
    # Planned is the head's input too, of which a loss in chunks keeps the gradient alone.
    head_input = plan.value_bytes * plan.tokens * shape.hidden
    bound = max(0.05 * planned.activations, head_input)
    assert fullest["activations"] == pytest.approx(planned.activations, abs=bound)
    assert fullest["total"] == pytest.approx(planned.total, rel=0.05), (planned.parts, fullest)

    if not plan.gradient_checkpointing:
        in_flight = [round(each["activations"] / (3 * each["layer"])) for each in ranks]
        assert in_flight == [
            min(sharding.pipeline - each["stage"], plan.gradient_accumulation) for each in ranks
        ]
    return sharding
