"""Memory of one GPU in training, part by part: training_memory(shape, training, sharding).

The convention is that of workloads/train: AdamW with two fp32 states a trained weight and an fp32
copy of a trained weight that is not fp32; gradients in the type of their weight; adapters in fp32.
That is 16 bytes a trained weight, whatever its type. DDP reduces gradients in place
(`gradient_as_bucket_view`), so it adds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from cost.size import activations
from cost.size.shape import LINEAR_MODULES, ModelShape
from cost.size.sharding import Sharding, Strategy
from cost.size.training import Dtype, Method, Training

_ADAM_STATES: Final = 2 * 4
_MASTER: Final = 4
_DIVIDED: Final[Mapping[Strategy, tuple[str, ...]]] = MappingProxyType(
    {
        Strategy.ZERO1: ("optimizer",),
        Strategy.ZERO2: ("optimizer", "gradients"),
        Strategy.FSDP: ("optimizer", "gradients", "weights"),
        Strategy.OFFLOAD: ("optimizer", "gradients", "weights"),
        Strategy.THREE_D: ("optimizer",),
    }
)
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
    """The greatest of: logits with gradients, the backward pass of a layer, an optimizer step."""
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
        names = (
            "weights",
            "gradients",
            "optimizer",
            "gathered",
            "activations",
            "working",
            "kv_cache",
        )
        return {name: getattr(self, name) for name in names}


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
    s = training.value_bytes
    if training.method is not Method.QLORA:
        return shape.parameters * s
    return shape.layers * _layer_bytes(shape, training) + shape.outer_weights * s


def _layer_bytes(shape: ModelShape, training: Training) -> int:
    """Bytes of the base weights of one layer."""
    s = training.value_bytes
    if training.method is not Method.QLORA:
        return shape.weights_per_layer * s
    packed = sum(
        quantised_bytes(rows * columns) for rows, columns in map(shape.linear, LINEAR_MODULES)
    )
    return packed + shape.other_weights_per_layer * s


def training_memory(shape: ModelShape, training: Training, sharding: Sharding) -> Memory:
    """Memory of the fullest GPU at the peak of a train step."""
    stages = [
        _stage_memory(shape, training, sharding, stage=stage)
        for stage in sorted({0, sharding.pipeline - 1})
    ]
    return max(stages, key=lambda memory: memory.total)


def _stage_memory(
    shape: ModelShape, training: Training, sharding: Sharding, *, stage: int
) -> Memory:
    """Memory of one pipeline stage; the fullest is the first or the last."""
    layers = _up(shape.layers, sharding.pipeline)
    is_first, is_last = stage == 0, stage == sharding.pipeline - 1
    outer = (shape.embedding_weights if is_first else 0) + (shape.hidden if is_last else 0)
    if is_last:
        # A tied head on another stage than the embedding is a copy of it.
        outer += shape.head_weights if is_first else shape.embedding_weights
    s, t = training.value_bytes, sharding.tensor
    adapters = trained_weights(shape, training) * layers // shape.layers * training.has_adapters
    trained = adapters or layers * shape.weights_per_layer + outer
    base = _up(layers * _layer_bytes(shape, training) + outer * s, t)
    adapter_bytes = _up(adapters * activations.FP32, t)
    needs_master = not training.has_adapters and training.dtype is not Dtype.FP32
    gradient_bytes = _up(trained * (activations.FP32 if training.has_adapters else s), t)
    optimizer_bytes = _up(trained * (_ADAM_STATES + (_MASTER if needs_master else 0)), t)

    kept, backward = (
        activations.layer_kept(shape, training),
        activations.layer_backward(shape, training),
    )
    # One micro batch is in flight for each later stage, and no more than there are.
    in_flight = min(sharding.pipeline - stage, training.gradient_accumulation)
    saved = in_flight * layers * (kept.whole + _up(kept.split, t))
    saved += activations.outside_layers(shape, training) if is_last else 0
    loss = _up(activations.logits(shape, training), t) if is_last else 0
    # A step works on one tensor at a time, when the activations are gone: two fp32 temporaries,
    # and an fp32 copy of a gradient that is not fp32.
    scratch = (3 if needs_master else 2) * activations.FP32 * _largest_trained(shape, training)
    divided = _DIVIDED.get(sharding.strategy, ())
    weights = _up(base + adapter_bytes, sharding.data if "weights" in divided else 1)
    gradients = _up(gradient_bytes, sharding.data if "gradients" in divided else 1)
    ways_of_optimizer = sharding.data if "optimizer" in divided else 1
    optimizer = _up(optimizer_bytes, ways_of_optimizer)
    working = max(
        loss,
        backward.whole + _up(backward.split, t),
        _up(scratch, t * ways_of_optimizer) - saved,
    )
    gathered = _gathered(shape, training, sharding)
    if sharding.strategy is Strategy.OFFLOAD:
        return Memory(
            weights=0,
            gathered=gathered,
            activations=saved,
            working=max(loss, backward.total),
            host=weights + gradients + optimizer,
        )
    return Memory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        gathered=gathered,
        activations=saved,
        working=working,
    )


def _gathered(shape: ModelShape, training: Training, sharding: Sharding) -> int:
    """Bytes of weights put together for work: two layers, one fetched ahead, and the outer ones."""
    s = training.value_bytes
    unpacked = s * shape.largest_linear_weights if training.method is Method.QLORA else 0
    is_split = sharding.strategy is Strategy.FSDP and sharding.data > 1
    if not is_split and sharding.strategy is not Strategy.OFFLOAD:
        return _up(unpacked, sharding.tensor)
    adapters = 0
    if training.has_adapters:
        adapters = 2 * activations.FP32 * trained_weights(shape, training) // shape.layers
    layers = min(2, shape.layers) * _layer_bytes(shape, training)
    return unpacked + adapters + layers + shape.outer_weights * s


def _largest_trained(shape: ModelShape, training: Training) -> int:
    if not training.has_adapters:
        return shape.largest_tensor_weights
    return training.rank * max(max(shape.linear(module)) for module in training.targets)


def _up(amount: int, parts: int) -> int:
    """Bytes of the largest of `parts` equal parts."""
    return -(-amount // parts)
