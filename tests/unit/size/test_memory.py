"""Laws of memory: sums, growth, what sharding may do, and what cannot be trained."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.size.choice import Gpus, least_recomputed, verdicts
from cost.size.memory import (
    Dtype,
    Method,
    Serving,
    Sharding,
    Strategy,
    Training,
    base_bytes,
    cache_bytes_per_token,
    greatest,
    largest_micro_batch,
    most_streams,
    quantised_bytes,
    serving_memory,
    trained_weights,
    training_memory,
)
from cost.size.shape import LINEAR_MODULES, ModelShape, SizeError, load_shape
from tests.nightly import law

KV_HEADS = st.sampled_from([1, 2, 4])
SHAPES = st.builds(
    lambda kv, groups, layers, dim, width, vocab, tied, norm: ModelShape(
        name="any",
        hidden=dim * kv * groups,
        layers=layers,
        heads=kv * groups,
        kv_heads=kv,
        head_dim=dim,
        intermediate=width,
        vocab=vocab,
        tied=tied,
        qk_norm=norm,
    ),
    KV_HEADS,
    st.integers(1, 4),
    st.sampled_from([1, 2, 4, 6, 8, 12]),
    st.sampled_from([8, 32, 64]),
    st.integers(1, 400),
    st.integers(1, 5000),
    st.booleans(),
    st.booleans(),
)
TRAININGS = st.builds(
    Training,
    method=st.sampled_from(Method),
    dtype=st.sampled_from([Dtype.FP32, Dtype.BF16, Dtype.FP16]),
    rank=st.integers(1, 64),
    dropout=st.sampled_from([0.0, 0.05]),
    targets=st.lists(st.sampled_from(LINEAR_MODULES), min_size=1, unique=True).map(tuple),
    sequence_length=st.integers(1, 4096),
    micro_batch_size=st.integers(1, 8),
    gradient_accumulation=st.integers(1, 8),
    gradient_checkpointing=st.booleans() | st.integers(0, 8),
    logits_chunk_tokens=st.none() | st.integers(1, 4096),
)
ZERO = st.sampled_from([Strategy.ZERO1, Strategy.ZERO2, Strategy.FSDP, Strategy.OFFLOAD])
ALONE = Sharding()


@given(SHAPES, TRAININGS)
def test_the_total_is_the_sum_of_the_parts_and_no_part_is_negative(
    shape: ModelShape, training: Training
) -> None:
    memory = training_memory(shape, training, ALONE)
    assert memory.total == sum(memory.parts.values())
    assert min(memory.parts.values()) >= 0


@given(
    SHAPES,
    TRAININGS,
    st.sampled_from(["micro_batch_size", "sequence_length", "rank", "gradient_accumulation"]),
)
def test_more_rows_longer_rows_and_a_higher_rank_never_need_less(
    shape: ModelShape, training: Training, name: str
) -> None:
    more = replace(training, **{name: getattr(training, name) + 1})
    for sharding in (ALONE, Sharding(strategy=Strategy.FSDP, data=4)):
        before = training_memory(shape, training, sharding).total
        assert training_memory(shape, more, sharding).total >= before


@given(SHAPES, TRAININGS, ZERO, st.integers(2, 16))
def test_dividing_by_more_gpus_never_raises_the_memory_of_one(
    shape: ModelShape, training: Training, strategy: Strategy, gpus: int
) -> None:
    few = training_memory(shape, training, Sharding(strategy=strategy, data=gpus))
    many = training_memory(shape, training, Sharding(strategy=strategy, data=gpus + 1))
    assert many.total <= few.total
    assert many.host <= few.host


@pytest.mark.feature("S004-22")
@given(SHAPES, TRAININGS, st.integers(2, 16))
def test_each_stage_of_zero_needs_no_more_than_the_one_before(
    shape: ModelShape, training: Training, gpus: int
) -> None:
    totals = [
        training_memory(shape, training, Sharding(strategy=strategy, data=gpus))
        for strategy in (Strategy.DDP, Strategy.ZERO1, Strategy.ZERO2, Strategy.FSDP)
    ]
    assert totals[0].total >= totals[1].total >= totals[2].total
    # fsdp gathers layers for work: without those it holds the least.
    assert totals[2].total >= totals[3].total - totals[3].gathered


@pytest.mark.feature("S004-18", "S004-19", "S004-21")
@given(SHAPES, TRAININGS)
def test_tensor_and_pipeline_never_raise_the_memory_of_one_gpu(
    shape: ModelShape, training: Training
) -> None:
    whole = training_memory(shape, training, ALONE).total
    divided = [Sharding(strategy=Strategy.TENSOR, tensor=shape.kv_heads)]
    divided += [
        Sharding(strategy=Strategy.PIPELINE, pipeline=stages)
        for stages in range(1, shape.layers + 1)
        if shape.layers % stages == 0
    ]
    for sharding in divided:
        more = 8  # parts are rounded up one by one, to a byte each
        if sharding.pipeline > 1 and training.logits_chunk_tokens is None:
            more += training.value_bytes * training.tokens * shape.vocab  # held by the schedule
        if training.has_dense_mask:  # one of each micro batch in flight
            mask = training.micro_batch_size * training.sequence_length**2
            more += (min(sharding.pipeline, training.gradient_accumulation) - 1) * mask
        assert training_memory(shape, training, sharding).total <= whole + more


@pytest.mark.feature("S004-22")
def test_each_stage_of_zero_divides_one_part_more() -> None:
    shape, training = load_shape("Qwen2-7B"), Training(method=Method.FULL)
    parts = ("optimizer", "gradients", "weights")

    def state(strategy: Strategy) -> list[int]:
        memory = training_memory(shape, training, Sharding(strategy=strategy, data=8))
        return [getattr(memory, part) for part in parts]

    # As DeepSpeed holds them: weights and gradients in bf16, the fp32 copy with the states.
    halves = [bytes_each * shape.parameters for bytes_each in (12, 2, 2)]
    for stage, strategy in enumerate((Strategy.ZERO1, Strategy.ZERO2), start=1):
        assert state(strategy) == [-(-each // 8) for each in halves[:stage]] + halves[stage:]
    whole = state(Strategy.DDP)
    assert whole == [bytes_each * shape.parameters for bytes_each in (8, 4, 4)]
    assert state(Strategy.FSDP) == [-(-each // 8) for each in whole]
    offload = training_memory(shape, training, Sharding(strategy=Strategy.OFFLOAD, data=8))
    assert offload.host == sum(-(-each // 8) for each in whole), "all of it, in the node's memory"


@pytest.mark.feature("S004-24")
@pytest.mark.parametrize("part", ["weights", "gradients", "optimizer"])
def test_fsdp_leaves_each_of_eight_gpus_an_eighth(part: str) -> None:
    shape, training = load_shape("Qwen2-7B"), Training(method=Method.FULL)
    ddp, fsdp = (
        getattr(training_memory(shape, training, Sharding(strategy=strategy, data=8)), part)
        for strategy in (Strategy.DDP, Strategy.FSDP)
    )
    assert fsdp == ddp / 8


@given(SHAPES, TRAININGS)
def test_ddp_costs_a_gpu_the_same_however_many_there_are(
    shape: ModelShape, training: Training
) -> None:
    assert training_memory(shape, training, Sharding(data=64)) == training_memory(
        shape, training, ALONE
    )


@pytest.mark.parametrize("dtype", [Dtype.BF16, Dtype.FP32])
def test_full_training_takes_16_bytes_a_weight_in_every_type(dtype: Dtype) -> None:
    """2 + 2 + 12 with an fp32 copy, 4 + 4 + 8 without."""
    shape = load_shape("SmolLM2-135M")
    memory = training_memory(shape, Training(method=Method.FULL, dtype=dtype), ALONE)
    assert memory.weights + memory.gradients + memory.optimizer == 16 * 134_515_008


def test_adapters_take_16_bytes_a_weight_beside_a_frozen_base() -> None:
    shape = load_shape("Qwen2-7B")
    training = Training(rank=64)
    memory = training_memory(shape, training, ALONE)
    assert trained_weights(shape, training) == 161_480_704
    assert memory.weights == 2 * 7_615_616_512 + 4 * 161_480_704
    assert (memory.gradients, memory.optimizer) == (4 * 161_480_704, 8 * 161_480_704)


def test_nf4_with_its_constants_takes_4_127_bits_a_weight() -> None:
    """0.127 bits for the constants: QLoRA, section 3."""
    assert 8 * quantised_bytes(4096 * 4096) / 4096**2 == pytest.approx(4.127, abs=0.0005)
    shape = load_shape("Qwen3-8B")
    base = base_bytes(shape, Training(method=Method.QLORA))
    outer = 2 * shape.outer_weights + 2 * shape.layers * shape.other_weights_per_layer
    packed = shape.layers * shape.linear_weights_per_layer
    assert 8 * (base - outer) / packed == pytest.approx(4.127, abs=0.0005)


def test_logits_in_chunks_cap_what_the_loss_needs() -> None:
    shape = load_shape("Qwen3-14B")
    whole = Training(gradient_checkpointing=True, sequence_length=8192, logits_chunk_tokens=None)
    chunked = replace(whole, logits_chunk_tokens=512)
    saved = (
        training_memory(shape, whole, ALONE).total - training_memory(shape, chunked, ALONE).total
    )
    assert saved > 8 * 2**30


@pytest.mark.feature("S003-38")
@given(SHAPES, TRAININGS, st.integers(1, 8), st.floats(0.3, 1.1))
def test_as_few_layers_are_computed_again_as_the_memory_asks_for(
    shape: ModelShape, training: Training, gpus: int, share: float
) -> None:
    most, least = (
        training_memory(shape, replace(training, gradient_checkpointing=each), ALONE).total
        for each in (False, True)
    )
    on = Gpus(nodes=1, per_node=gpus, usable=int(least + share * (most - least)))

    def fits(layers: int) -> bool:
        ddp = verdicts(shape, replace(training, gradient_checkpointing=layers), on)[0]
        return ddp.usable_here

    chosen = least_recomputed(shape, training, on, Strategy.DDP)
    assert fits(chosen) or not any(map(fits, range(shape.layers + 1)))
    assert not any(map(fits, range(chosen)))


@pytest.mark.feature("S003-39")
def test_checkpointing_keeps_an_input_a_layer() -> None:
    shape = load_shape("Qwen3-14B")
    kept = [
        training_memory(
            shape, Training(sequence_length=2048, gradient_checkpointing=on), ALONE
        ).activations
        for on in (True, False)
    ]
    assert kept[0] < kept[1] / 20


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"micro_batch_size": 0}, r"micro_batch_size: got 0, expected 1 or more"),
        ({"sequence_length": -1}, r"sequence_length: got -1"),
        ({"rank": 0}, r"rank: got 0"),
        ({"fp32_embeddings": True}, r"fp32_embeddings: got True with method lora; use qlora"),
        ({"gradient_checkpointing": -1}, r"gradient_checkpointing: got -1, expected >= 0"),
        ({"method": Method.FULL, "dtype": Dtype.INT4}, r"int4 with method full.*--method qlora"),
        ({"method": Method.QLORA, "dtype": Dtype.INT4}, r"leave --dtype at bf16"),
        ({"targets": ("lm_head",)}, r"targets: lm_head; expected some of q_proj"),
        ({"dropout": 1.0}, r"dropout: got 1.0"),
    ],
)
def test_what_cannot_be_trained_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(SizeError, match=message):
        Training(**values)  # type: ignore[arg-type]


def test_every_wrong_number_of_a_training_is_told_at_once() -> None:
    with pytest.raises(SizeError) as refusal:
        Training(rank=0, micro_batch_size=0, sequence_length=0)
    assert len(str(refusal.value).splitlines()) == 3


@given(st.integers(0, 10_000))
def test_the_greatest_number_that_fits_is_found(limit: int) -> None:
    assert greatest(lambda number: number <= limit) == limit


@law(30)
@given(SHAPES, TRAININGS, st.integers(0, 2**34))
def test_the_largest_batch_fits_and_one_row_more_does_not(
    shape: ModelShape, training: Training, usable: int
) -> None:
    rows = largest_micro_batch(shape, training, ALONE, usable=usable)
    if rows:
        fitting = replace(training, micro_batch_size=rows)
        assert training_memory(shape, fitting, ALONE).total <= usable
    more = replace(training, micro_batch_size=rows + 1)
    assert training_memory(shape, more, ALONE).total > usable


def test_keys_and_values_of_qwen3_14b_take_160_kib_a_token() -> None:
    assert cache_bytes_per_token(load_shape("Qwen3-14B")) == 2 * 40 * 8 * 128 * 2


@given(SHAPES, st.sampled_from(Dtype), st.integers(1, 64), st.integers(1, 9000))
def test_more_streams_and_longer_chats_never_need_less(
    shape: ModelShape, dtype: Dtype, streams: int, tokens: int
) -> None:
    serving = Serving(dtype=dtype, streams=streams, context_tokens=tokens)
    memory = serving_memory(shape, serving)
    assert memory.total == sum(memory.parts.values())
    for more in (
        replace(serving, streams=streams + 1),
        replace(serving, context_tokens=tokens + 1),
    ):
        assert serving_memory(shape, more).total >= memory.total
    assert serving_memory(shape, replace(serving, tensor=2)).total <= memory.total


def test_the_most_streams_fit_and_one_more_does_not() -> None:
    shape, serving = load_shape("Qwen3-8B"), Serving(context_tokens=10_000)
    most = most_streams(shape, serving, usable=40 * 2**30)
    assert serving_memory(shape, replace(serving, streams=most)).total <= 40 * 2**30
    assert serving_memory(shape, replace(serving, streams=most + 1)).total > 40 * 2**30


def test_a_serving_of_no_streams_is_refused() -> None:
    with pytest.raises(SizeError, match="streams: got 0, expected 1 or more"):
        Serving(streams=0)
