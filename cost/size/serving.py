"""Memory of one GPU that answers chats: weights, keys and values of every stream, working set.

The working set assumes an engine that reads prompts in pieces of 2,048 tokens, as vLLM does by
default (docs.vllm.ai, max_num_batched_tokens), and keeps fp32 logits of one token a stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cost.size.errors import SizeError
from cost.size.memory import Memory
from cost.size.shape import ModelShape
from cost.size.training import BITS, Dtype

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
        problems = [
            f"{name}: got {getattr(self, name)}, expected 1 or more"
            for name in ("streams", "context_tokens", "tensor")
            if getattr(self, name) < 1
        ]
        if problems:
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
    from cost.size.batch import greatest

    return greatest(
        lambda streams: (
            serving_memory(
                shape,
                Serving(
                    dtype=serving.dtype,
                    streams=streams,
                    context_tokens=serving.context_tokens,
                    tensor=serving.tensor,
                ),
            ).total
            <= usable
        )
    )
