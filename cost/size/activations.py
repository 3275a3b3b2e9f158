"""What a forward pass keeps for the backward pass, term by term.

The terms are the tensors that autograd saves in the decoders of transformers 5.23 under SDPA with
an explicit mask, with peft 0.21 adapters in fp32; tests/workloads/test_plan.py compares the sum
with the trainer's own saved tensors. Letters: h hidden width, q of the queries, k of the keys,
i of the MLP, s bytes of a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cost.size.shape import ModelShape
from cost.size.training import Training

FP32: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """Bytes that one decoder layer keeps, by what tensor parallelism does with them."""

    whole: int
    """On every GPU: of the hidden width."""
    split: int
    """Divided: of the width of heads or of the MLP."""

    @property
    def total(self) -> int:
        """Bytes on a GPU that holds whole layers."""
        return self.whole + self.split


def layer_saved(shape: ModelShape, training: Training) -> LayerBytes:
    """Bytes that one layer saves when nothing is computed again."""
    tokens, s = training.tokens, training.value_bytes
    h, q, k, i = shape.hidden, shape.query_width, shape.kv_width, shape.intermediate
    # RMSNorm: its input in fp32 and one scale a token, twice.
    whole = 2 * (FP32 * tokens * h + FP32 * tokens)
    # Queries, keys and values with one copy per query head, the result, one scale a head.
    split = 4 * s * tokens * q + FP32 * tokens * shape.heads
    # Gate, up, and the activated gate.
    split += 3 * s * tokens * i
    # SDPA turns the boolean mask into numbers, once a layer.
    whole += s * training.micro_batch_size * training.sequence_length**2
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


def _adapter_inputs(shape: ModelShape, training: Training) -> LayerBytes:
    """Inputs of the adapters: each module has an fp32 copy of its own, and the low-rank result."""
    tokens = training.tokens
    # Without a cast or a dropout the modules of one input share it, and o_proj's is attention's.
    is_shared = training.value_bytes == FP32 and not training.dropout
    bytes_each = FP32 + (1 if training.dropout else 0)
    whole, split = 0, 0
    for module in training.targets:
        width, _ = shape.linear(module)
        whole += FP32 * tokens * training.rank
        if module in ("o_proj", "down_proj"):
            split += 0 if is_shared and module == "o_proj" else bytes_each * tokens * width
        elif not is_shared or module in _first_of_input(training.targets):
            whole += bytes_each * tokens * width
    return LayerBytes(whole=whole, split=split)


def _first_of_input(targets: tuple[str, ...]) -> set[str]:
    groups = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
    return {
        next(name for name in group if name in targets) for group in groups if {*group} & {*targets}
    }


def layer_kept(shape: ModelShape, training: Training) -> LayerBytes:
    """Bytes that one layer keeps until its backward pass."""
    if training.gradient_checkpointing:
        kept = training.value_bytes * training.tokens * shape.hidden
        return LayerBytes(whole=kept, split=0)
    return layer_saved(shape, training)


def layer_backward(shape: ModelShape, training: Training) -> LayerBytes:
    """Bytes that the backward pass of one layer needs beside what was kept: its peak is the MLP."""
    tokens, s = training.tokens, training.value_bytes
    again = layer_saved(shape, training)
    if not training.gradient_checkpointing:
        again = LayerBytes(whole=0, split=0)
    gradients = (FP32 + s if training.has_adapters else 2 * s) * tokens * shape.intermediate
    hidden = 2 * s * tokens * shape.hidden
    return LayerBytes(whole=again.whole + hidden, split=again.split + gradients)


def outside_layers(shape: ModelShape, training: Training) -> int:
    """Bytes kept outside the layers: token ids, mask, last norm and, where trained, head input."""
    tokens, h = training.tokens, shape.hidden
    ids = 4 * 8 * tokens  # tokens, labels, positions and documents are 64-bit numbers
    mask = training.micro_batch_size * training.sequence_length**2
    norm = FP32 * tokens * h + FP32 * tokens
    trained = 0 if training.has_adapters else 2 * training.value_bytes * tokens * h
    return ids + mask + norm + trained


def logits(shape: ModelShape, training: Training) -> int:
    """Bytes at the peak of the loss: log-probabilities and two gradients of them, in fp32."""
    tokens = min(training.tokens, training.logits_chunk_tokens or training.tokens)
    return 3 * FP32 * tokens * shape.vocab
