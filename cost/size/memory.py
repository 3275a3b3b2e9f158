"""What is trained or served, and the memory of one GPU for it: training_memory, serving_memory.

The defaults of `Training` are those of the trainer (workloads/recipes/train.py); a test compares
the two, and `TRAINED` with the strategies that the trainer can run.
The convention is that of workloads/train: trained weights, their gradients and two AdamW states in
fp32, 16 bytes a trained weight, whatever it computes in. DDP reduces gradients in place
(`gradient_as_bucket_view`), so it adds nothing; where it trains all weights in 16 bits, autocast's
copies of them stay with the activations. Strategies that are not run here hold weights and
gradients in 16 bits, and an fp32 copy beside the states, as DeepSpeed does: 16 bytes as well.
What a forward pass keeps for the backward pass are the tensors that autograd saves in the decoders
of transformers 5.23, not compiled, under torch's varlen kernel or SDPA with an explicit mask, with
peft 0.21 adapters under autocast; tests/workloads/test_plan.py compares the sum with the trainer's
own saved tensors, and test_plan_divided.py with those of ranks that torch divides it over. Letters:
h hidden width, q of the queries, k of the keys, i of the MLP, s bytes of a value.
The working set of serving assumes an engine that reads prompts in pieces of 2,048 tokens, as vLLM
does by default (docs.vllm.ai, max_num_batched_tokens), and keeps fp32 logits of one token a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Final, Literal

from cost.size.shape import LINEAR_MODULES, ModelShape, SizeError, below_one


class Method(StrEnum):
    """What a fine-tuning changes; workloads/train runs each."""

    FULL = "full"
    LORA = "lora"
    QLORA = "qlora"


class Dtype(StrEnum):
    """Type of the weights in a forward pass."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    INT8 = "int8"
    INT4 = "int4"


BITS: Final = {Dtype.FP32: 32, Dtype.BF16: 16, Dtype.FP16: 16, Dtype.INT8: 8, Dtype.INT4: 4}
TRAINED_DTYPES: Final = (Dtype.BF16, Dtype.FP32, Dtype.FP16)
"""Types that workloads/train can run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One fine-tuning, per GPU where a number can differ between GPUs."""

    method: Method = Method.LORA
    dtype: Dtype = Dtype.BF16
    fp32_embeddings: bool = False
    """qlora: embeddings, head, norms and what passes between layers in fp32."""
    rank: int = 16
    dropout: float = 0.0
    """Share of the adapters' inputs that is dropped; above 0 it keeps a mask for each."""
    targets: tuple[str, ...] = LINEAR_MODULES
    sequence_length: int = 4096
    """Tokens of one packed row."""
    micro_batch_size: int = 1
    """Rows per GPU and forward pass."""
    gradient_accumulation: int = 1
    gradient_checkpointing: bool | int = False
    """Layers, the first ones, that keep only their input and compute the rest again in the backward
    pass; True: all."""
    logits_chunk_tokens: int | None = 2048
    """Tokens whose logits exist at once; None: all of a micro batch."""
    attention: Literal["auto", "varlen", "sdpa"] = "auto"
    """sdpa, and auto in fp32: with a dense mask of each row."""

    def __post_init__(self) -> None:
        counts = ("rank", "sequence_length", "micro_batch_size", "gradient_accumulation")
        names = (*counts, "logits_chunk_tokens")
        problems = below_one({name: getattr(self, name) for name in names})
        if self.gradient_checkpointing < 0:
            problems.append(
                f"gradient_checkpointing: got {self.gradient_checkpointing}, expected >= 0"
            )
        if not 0 <= self.dropout < 1:
            problems.append(f"dropout: got {self.dropout}, expected 0 to below 1")
        if self.fp32_embeddings and self.method is not Method.QLORA:
            problems.append(f"fp32_embeddings: got True with method {self.method}; use qlora")
        if BITS[self.dtype] < 16:
            instead = (
                "full training needs gradients of every weight, which 4 or 8 bits cannot hold; "
                "use --method qlora, which keeps the base in 4 bits and trains adapters"
                if self.method is Method.FULL
                else "the base of qlora is in 4 bits by itself; leave --dtype at bf16"
            )
            problems.append(f"dtype: {self.dtype} with method {self.method}: {instead}")
        unknown = [name for name in self.targets if name not in LINEAR_MODULES]
        if unknown or not self.targets:
            problems.append(
                f"targets: {', '.join(unknown) or 'none'}; expected some of "
                f"{', '.join(LINEAR_MODULES)}"
            )
        if problems:
            raise SizeError("\n".join(problems))

    def recomputed_layers(self, layers: int) -> int:
        """How many of a model's `layers`, the first ones, compute their activations again."""
        every = self.gradient_checkpointing is True
        return layers if every else min(layers, int(self.gradient_checkpointing))

    @property
    def tokens(self) -> int:
        """Tokens of one micro batch."""
        return self.sequence_length * self.micro_batch_size

    @property
    def has_adapters(self) -> bool:
        """True where the base is frozen and adapters are trained."""
        return self.method is not Method.FULL

    @property
    def has_dense_mask(self) -> bool:
        """True where attention has a value for each pair of a row's tokens."""
        return self.attention == "sdpa" or self.dtype is Dtype.FP32

    @property
    def value_bytes(self) -> int:
        """Bytes of one value in the forward pass."""
        return BITS[self.dtype] // 8

    @property
    def passed_bytes(self) -> int:
        """Bytes of one value between layers, and of a frozen weight that is in no linear layer."""
        return 4 if self.fp32_embeddings else self.value_bytes


class Strategy(StrEnum):
    """What is divided between GPUs."""

    DDP = "ddp"
    ZERO1 = "zero-1"
    ZERO2 = "zero-2"
    FSDP = "fsdp"
    HSDP = "hsdp"
    OFFLOAD = "offload"
    TENSOR = "tensor"
    PIPELINE = "pipeline"
    THREE_D = "3d"


ABOUT: Final = {
    Strategy.DDP: "every GPU has all of it and other rows",
    Strategy.ZERO1: "optimizer state divided",
    Strategy.ZERO2: "optimizer state and gradients divided",
    Strategy.FSDP: "weights, gradients and optimizer state divided (ZeRO-3)",
    Strategy.HSDP: "divided as by fsdp inside each node, the same on every node",
    Strategy.OFFLOAD: "as fsdp, kept in the memory of the host",
    Strategy.TENSOR: "each layer divided inside a node",
    Strategy.PIPELINE: "layers divided into stages",
    Strategy.THREE_D: "tensor in a node, pipeline over nodes, rows over the rest",
}
TRAINED: Final = (Strategy.DDP, Strategy.FSDP, Strategy.HSDP, Strategy.OFFLOAD)
"""Strategies that workloads/train can run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """A strategy with its degrees; their product is the number of GPUs."""

    strategy: Strategy = Strategy.DDP
    data: int = 1
    """GPUs that see other rows: the replicas, and what ZeRO divides by."""
    tensor: int = 1
    pipeline: int = 1
    replicas: int = 1
    """Of `data`: nodes that hold the same, and divide it among their own GPUs."""
    reshard_after_forward: bool = True
    """fsdp, hsdp: False keeps gathered layers for the backward pass, so that each moves once."""

    def __post_init__(self) -> None:
        ways = {name: getattr(self, name) for name in ("data", "tensor", "pipeline")}
        if problems := below_one(ways, " GPUs"):
            raise SizeError("\n".join(problems))

    @property
    def gpus(self) -> int:
        """GPUs of the job."""
        return self.data * self.tensor * self.pipeline

    @property
    def parts(self) -> int:
        """GPUs that hold different parts of what is divided."""
        return self.data // self.replicas

    @property
    def label(self) -> str:
        """The strategy and its degrees, such as `3d (tensor 8 x pipeline 2 x data 1)`."""
        if self.strategy in (Strategy.TENSOR, Strategy.PIPELINE, Strategy.THREE_D):
            parts = [f"tensor {self.tensor}"] if self.tensor > 1 else []
            parts += [f"pipeline {self.pipeline}"] if self.pipeline > 1 else []
            parts += [f"data {self.data}"]
            return f"{self.strategy} ({' x '.join(parts)})"
        divided = f"{self.replicas} x {self.parts}" if self.replicas > 1 else f"x {self.data}"
        return f"{self.strategy} {divided}{'' if self.reshard_after_forward else ', gathered once'}"


GIB: Final = 2**30
BYTES_PER_GB: Final = 10**9
USABLE_PERCENT: Final = 92
"""The CUDA context, buffers of NCCL and fragmentation take the rest; measured by nobody here."""

# What CUDA shows of a data sheet's GB ("GPU 0 has a total capacity of ..."), the least reading.
# 48 (L40): github.com/QwenLM/Qwen3-VL/issues/2097, 2026-06-04; L40S shows 44.42 in
# github.com/stepfun-ai/Step-Video-T2V/issues/8, 2025-02-17. 80 (H100): nebius-h100-8gpu-benchmark.
# 141 (H200), 180 (B200): out-of-memory messages in public logs, read 2026-11-21.
_SHOWN_GIB: Final[Mapping[int, float]] = {48: 44.40, 80: 79.19, 141: 139.72, 180: 178.35}


def usable_bytes(gpu_memory_gb: int) -> int:
    """Bytes that tensors may take on a GPU of this many GB; decimal GB where none was read."""
    shown_gib = _SHOWN_GIB.get(gpu_memory_gb)
    shown = gpu_memory_gb * BYTES_PER_GB if shown_gib is None else round(shown_gib * GIB)
    return shown * USABLE_PERCENT // 100


def usable_host_bytes(memory_gib: int) -> int:
    """Bytes that a job may take of a node's own memory."""
    return memory_gib * GIB * USABLE_PERCENT // 100


_ADAM_STATES: Final = 2 * 4
_MASTER: Final = 4
_STATE: Final = ("optimizer", "gradients", "weights")
_DIVIDED: Final[Mapping[Strategy, tuple[str, ...]]] = {
    Strategy.ZERO1: _STATE[:1],
    Strategy.ZERO2: _STATE[:2],
    **dict.fromkeys((Strategy.FSDP, Strategy.HSDP, Strategy.OFFLOAD), _STATE),
    Strategy.THREE_D: _STATE[:1],
}
"""What a strategy divides between the GPUs that see other rows."""

# QLoRA, https://arxiv.org/abs/2305.14314 section 3 (2023-05-23): NF4 in blocks of 64 weights with
# one constant each, itself in 8 bits in blocks of 256 with an fp32 constant each.
_NF4_BLOCK: Final = 64
_NF4_CONSTANTS_BLOCK: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on the fullest GPU of a job; `host` is beside them, in the memory of the node."""

    weights: int
    gradients: int = 0
    optimizer: int = 0
    gathered: int = 0
    """Weights of the layers in work that are put together, or unpacked, from their parts."""
    activations: int = 0
    """Kept by the forward pass for the backward pass."""
    working: int = 0
    """The greatest of: logits with gradients, the backward pass of a layer, the last gradient."""
    kv_cache: int = 0
    host: int = 0
    """Bytes a GPU of the node's own memory, where the strategy moves state there."""

    @property
    def total(self) -> int:
        """Bytes on the GPU."""
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, int]:
        """Bytes on the GPU by part, in the order of the tables."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "host"}


def trained_weights(shape: ModelShape, training: Training) -> int:
    """Number of weights that training changes."""
    if training.has_adapters:
        return shape.adapter_weights(rank=training.rank, targets=training.targets)
    return shape.parameters


def quantised_bytes(weights: int) -> int:
    """Bytes of one tensor in NF4 with doubly quantised constants: 4.127 bits a weight."""
    blocks = _up(weights, _NF4_BLOCK)
    return _up(weights, 2) + blocks + 4 * _up(blocks, _NF4_CONSTANTS_BLOCK)


def base_bytes(shape: ModelShape, training: Training) -> int:
    """Bytes of the model's own weights, without adapters."""
    outer = shape.outer_weights * training.passed_bytes
    return shape.layers * _layer_bytes(shape, training) + outer


def _layer_bytes(shape: ModelShape, training: Training) -> int:
    """Bytes of the base weights of one layer."""
    if training.method is not Method.QLORA:
        return shape.weights_per_layer * training.value_bytes
    packed = sum(
        quantised_bytes(rows * columns) for rows, columns in map(shape.linear, LINEAR_MODULES)
    )
    return packed + shape.other_weights_per_layer * training.passed_bytes


def training_memory(shape: ModelShape, training: Training, sharding: Sharding) -> Memory:
    """Memory of the fullest GPU at the peak of a train step."""
    last = sharding.pipeline - 1
    # Of stages alike, in all that they keep, the first has the most micro batches in flight.
    mixed = training.recomputed_layers(shape.layers) // _up(shape.layers, sharding.pipeline)
    stages = {0, min(mixed, last), min(mixed + 1, last), last}
    found = [_stage_memory(shape, training, sharding, stage=stage) for stage in sorted(stages)]
    return max(found, key=lambda memory: memory.total)


def _stage_memory(
    shape: ModelShape, training: Training, sharding: Sharding, *, stage: int
) -> Memory:
    """Memory of one pipeline stage."""
    layers = _up(shape.layers, sharding.pipeline)
    again = min(layers, max(0, training.recomputed_layers(shape.layers) - stage * layers))
    is_first, is_last = stage == 0, stage == sharding.pipeline - 1
    outer = (shape.embedding_weights if is_first else 0) + (shape.hidden if is_last else 0)
    if is_last:
        # A tied head on another stage than the embedding is a copy of it.
        outer += shape.head_weights if is_first else shape.embedding_weights
    s, t = training.value_bytes, sharding.tensor
    held = FP32 if training.has_adapters or sharding.strategy in TRAINED else s
    trained = _up(layers * shape.weights_per_layer + outer, t)
    weights = trained * held
    if training.has_adapters:
        trained = layers * _adapters(shape, training).on_each(t)
        frozen = layers * _layer_bytes(shape, training) + outer * training.passed_bytes
        weights = trained * held + _up(frozen, t)
    state = {
        "weights": weights,
        "gradients": trained * held,
        "optimizer": trained * (_ADAM_STATES + (_MASTER if held < FP32 else 0)),
    }
    for part in _DIVIDED.get(sharding.strategy, ()):
        state[part] = _up(state[part], sharding.parts)

    inputs, whole = (layer_kept(shape, training, recomputed=r).on_each(t) for r in (True, False))
    # One micro batch is in flight for each later stage, and no more than there are.
    in_flight = min(sharding.pipeline - stage, training.gradient_accumulation)
    mask = training.micro_batch_size * training.sequence_length**2 * training.has_dense_mask
    saved = in_flight * (again * inputs + (layers - again) * whole + mask)
    # The backward pass of the layers begins when that around them has ended.
    around = outside_layers(shape, training) if is_last else 0
    saved += around + 4 * 8 * training.tokens * is_last  # ids, labels, positions, documents
    # After the loss comes the backward pass of the last norm: four times its input in fp32.
    loss = max(logits(shape, training, sharding), 4 * FP32 * training.tokens * shape.hidden)
    # The last gradient, that of the embedding, before it is added to the micro batches' before it.
    largest = shape.largest_tensor_weights
    if training.has_adapters:
        largest = training.rank * max(max(shape.linear(module)) for module in training.targets)
    scratch = _up(FP32 * largest, t) - saved
    # Ranks that share a layer add up their parts of two gradients, of the whole hidden width.
    parts = 2 * training.passed_bytes * training.tokens * shape.hidden * (t > 1)

    def backward(recomputed: bool) -> int:
        layer = layer_backward(shape, training, recomputed=recomputed)
        return layer.on_each(t) + parts - around

    working = max(loss if is_last else 0, backward(again == layers))
    gathered = _gathered(shape, training, sharding, recomputed=again)
    if 0 < again < layers:
        # They come last in the backward pass: what the layers after them had kept is free by then.
        freed = (layers - again) * whole
        freed += gathered - _gathered(shape, training, sharding, recomputed=layers)
        working = max(working, backward(True) - freed)
    memory = Memory(
        **state,
        gathered=gathered,
        activations=saved,
        working=max(working, scratch),
    )
    if sharding.strategy is not Strategy.OFFLOAD:
        return memory
    return replace(memory, **dict.fromkeys(state, 0), working=working, host=sum(state.values()))


def _gathered(shape: ModelShape, training: Training, sharding: Sharding, *, recomputed: int) -> int:
    """Bytes of weights put together for work: two layers, one fetched ahead, and the outer ones.

    All layers where they are not divided again between forward and backward pass.
    """
    s = training.value_bytes
    unpacked = s * shape.largest_linear_weights if training.method is Method.QLORA else 0
    is_split = sharding.strategy in (Strategy.FSDP, Strategy.HSDP) and sharding.parts > 1
    if not is_split and sharding.strategy is not Strategy.OFFLOAD:
        if sharding.strategy in TRAINED and not training.has_adapters and s < FP32:
            return s * max(1, shape.layers - recomputed) * shape.linear_weights_per_layer
        return _up(unpacked, sharding.tensor)
    adapters, layers = 0, min(2, shape.layers) if sharding.reshard_after_forward else shape.layers
    if training.has_adapters:  # and the gradients of two layers'
        adapters = s * (layers + 2) * trained_weights(shape, training) // shape.layers
    return unpacked + adapters + layers * _layer_bytes(shape, training) + shape.outer_weights * s


def _up(amount: int, parts: int) -> int:
    """Bytes of the largest of `parts` equal parts."""
    return -(-amount // parts)


FP32: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """Bytes or weights of one decoder layer, by what tensor parallelism does with them."""

    whole: int
    """On every GPU: of the hidden width."""
    split: int
    """Divided: of the width of heads or of the MLP."""

    def on_each(self, tensor: int) -> int:
        """Those on each of `tensor` GPUs that share the layer."""
        return self.whole + _up(self.split, tensor)


def layer_saved(shape: ModelShape, training: Training) -> LayerBytes:
    """Bytes that one layer saves when nothing is computed again."""
    tokens, s = training.tokens, training.value_bytes
    h, q, k, i = shape.hidden, shape.query_width, shape.kv_width, shape.intermediate
    # RMSNorm: its input in fp32 and one scale a token, twice.
    whole = 2 * (FP32 * tokens * h + FP32 * tokens)
    # Queries, keys, values, the result, and one scale a head.
    split = 2 * s * tokens * (q + k) + FP32 * tokens * shape.heads
    if training.has_dense_mask:
        # SDPA copies keys and values for each query head and turns the boolean mask into numbers.
        split += 2 * s * tokens * (q - k)
        whole += s * training.micro_batch_size * training.sequence_length**2
    else:
        whole += 2 * 8  # two seeds, for a dropout that it does not have
    # Gate, up, and the activated gate: a 4-bit layer gives the type that it is given.
    split += 3 * training.passed_bytes * tokens * i
    if shape.qk_norm:
        split += FP32 * tokens * (q + k) + FP32 * tokens * (shape.heads + shape.kv_heads)
    if training.has_adapters:
        adapters = _adapter_inputs(shape, training)
        return LayerBytes(whole=whole + adapters.whole, split=split + adapters.split)
    # Weights of norms and linear layers are trained: their inputs stay as well.
    whole += 2 * s * tokens * h + 2 * s * tokens * h
    split += s * tokens * i
    if shape.qk_norm:
        split += s * tokens * (q + k)
    return LayerBytes(whole=whole, split=split)


def _adapters(shape: ModelShape, training: Training) -> LayerBytes:
    """Weights of the adapters of one layer: of two matrices one side is of the hidden width."""
    whole = training.rank * shape.hidden * len(training.targets)
    return LayerBytes(whole=whole, split=trained_weights(shape, training) // shape.layers - whole)


def _adapter_inputs(shape: ModelShape, training: Training) -> LayerBytes:
    """Inputs of the adapters and their low-rank results; their weights in the model's type."""
    tokens, s = training.tokens, training.value_bytes
    # Without a dropout the modules of one input share it, unless each makes 16 bits of it, and
    # o_proj's is attention's.
    is_shared, is_one = not training.dropout, training.passed_bytes == s
    bytes_each = s + (1 if training.dropout else 0)
    # Autocast keeps the copies of a forward pass for its backward pass.
    copied, weights = s * (s < FP32), _adapters(shape, training)
    whole, split = copied * weights.whole, copied * weights.split
    for module in training.targets:
        width, _ = shape.linear(module)
        whole += s * tokens * training.rank
        if module in ("o_proj", "down_proj"):
            split += 0 if is_shared and module == "o_proj" else bytes_each * tokens * width
        elif not (is_shared and is_one) or module in _first_of_input(training.targets):
            whole += bytes_each * tokens * width
    return LayerBytes(whole=whole, split=split)


def _first_of_input(targets: tuple[str, ...]) -> set[str]:
    groups = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
    return {
        next(name for name in group if name in targets) for group in groups if {*group} & {*targets}
    }


def layer_kept(shape: ModelShape, training: Training, *, recomputed: bool) -> LayerBytes:
    """Bytes that one layer keeps until its backward pass."""
    if recomputed:
        kept = training.passed_bytes * training.tokens * shape.hidden
        return LayerBytes(whole=kept, split=0)
    return layer_saved(shape, training)


def layer_backward(shape: ModelShape, training: Training, *, recomputed: bool) -> LayerBytes:
    """Bytes that the backward pass of one layer needs beside what was kept: its peak is the MLP."""
    tokens, s = training.tokens, training.passed_bytes
    again = layer_saved(shape, training)
    if not recomputed:
        again = LayerBytes(whole=0, split=0)
    elif s == FP32:  # the norm's input in fp32 is what was kept
        again = replace(again, whole=again.whole - FP32 * tokens * shape.hidden)
    gradients = 2 * s * tokens * shape.intermediate
    hidden = 2 * s * tokens * shape.hidden
    return LayerBytes(whole=again.whole + hidden, split=again.split + gradients)


def outside_layers(shape: ModelShape, training: Training) -> int:
    """Bytes kept outside the layers: last norm and, where trained, head input."""
    tokens, h = training.tokens, shape.hidden
    norm = FP32 * tokens * h + FP32 * tokens
    trained = 0 if training.has_adapters else 2 * training.value_bytes * tokens * h
    return norm + trained


def logits(shape: ModelShape, training: Training, sharding: Sharding) -> int:
    """Bytes at the peak of the loss, with a label at each token; tensor divides the words.

    Whole: log-probabilities and two gradients of them in fp32, three of divided words, and what the
    last of several stages returned. In chunks: the logits of one, in the model's type and in fp32,
    the head's input, its positions with a label and their gradient, and the gradient of a trained
    head: the sum in fp32, and that in the head's type. A copy computes where the head is fp32:
    under DDP, or by fp32_embeddings.
    """
    chunk, s = training.logits_chunk_tokens, training.value_bytes
    words, is_ddp = _up(shape.vocab, sharding.tensor), sharding.strategy is Strategy.DDP
    head = 0 if training.has_adapters else words * shape.hidden
    frozen_copy = s * words * shape.hidden * training.fp32_embeddings
    if chunk is None:
        copy = s * head * (s < FP32 and is_ddp) + frozen_copy
        each = (3 + (sharding.tensor > 1)) * FP32 + s * (sharding.pipeline > 1)
        return each * training.tokens * words + copy
    each = FP32 if s == FP32 else FP32 + s
    inputs = 3 * training.passed_bytes * training.tokens * shape.hidden + frozen_copy
    held = FP32 if is_ddp else s
    return each * min(chunk, training.tokens) * words + (FP32 + held) * head + inputs


PROMPT_PIECE_TOKENS: Final = 2048
_CACHE_BYTES: Final = 2
"""Keys and values stay in 16 bits when the weights have fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """One serving process, on `tensor` GPUs."""

    dtype: Dtype = Dtype.BF16
    streams: int = 1
    """Conversations at once."""
    context_tokens: int = 4096
    """Tokens of one conversation, prompt and answer."""
    tensor: int = 1
    """GPUs that share each layer."""

    def __post_init__(self) -> None:
        names = ("streams", "context_tokens", "tensor")
        if problems := below_one({name: getattr(self, name) for name in names}):
            raise SizeError("\n".join(problems))


def cache_bytes_per_token(shape: ModelShape, dtype: Dtype = Dtype.BF16) -> int:
    """Bytes of keys and values that one token of one stream takes in all layers."""
    return 2 * shape.layers * shape.kv_width * max(_CACHE_BYTES, BITS[dtype] // 8)


def serving_memory(shape: ModelShape, serving: Serving) -> Memory:
    """Memory of one GPU with all streams at their full length."""
    bits = BITS[serving.dtype]
    inner = shape.layers * shape.linear_weights_per_layer
    # Quantised models keep embedding, norms and head in 16 bits.
    outer_bits = max(16, bits)
    weights = (inner * bits + (shape.parameters - inner) * outer_bits) // 8
    cache = cache_bytes_per_token(shape, serving.dtype) * serving.streams * serving.context_tokens
    piece = min(PROMPT_PIECE_TOKENS, serving.streams * serving.context_tokens)
    widths = 2 * shape.hidden + 2 * shape.intermediate + shape.query_width + 2 * shape.kv_width
    working = piece * widths * outer_bits // 8 + serving.streams * shape.vocab * 4
    # A cache cannot be divided further than its heads: they are copied beyond.
    cache_ways = min(serving.tensor, shape.kv_heads)
    return Memory(
        weights=-(-weights // serving.tensor),
        kv_cache=-(-cache // cache_ways),
        working=-(-working // serving.tensor),
    )


def most_streams(shape: ModelShape, serving: Serving, *, usable: int) -> int:
    """The most streams of that length on `usable` bytes; 0 where not even one fits."""
    return greatest(
        lambda streams: serving_memory(shape, replace(serving, streams=streams)).total <= usable
    )


def largest_micro_batch(
    shape: ModelShape, training: Training, sharding: Sharding, *, usable: int
) -> int:
    """Rows per GPU and forward pass that fit on `usable` bytes; 0 where one row does not."""
    return greatest(
        lambda rows: (
            training_memory(shape, replace(training, micro_batch_size=rows), sharding).total
            <= usable
        )
    )


def greatest(fits: Callable[[int], bool]) -> int:
    """The greatest whole number from 1 that fits, 0 for none; `fits` never turns true again."""
    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
