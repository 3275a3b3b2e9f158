"""The shape of a causal language model by its name or config.json, and its numbers of weights.

`Qwen/Qwen3-14B` and `SmolLM2-135M-Instruct` are the rows Qwen3-14B and SmolLM2-135M of models.yaml:
a tuned model has the shape of its base. Knows the decoder of Llama, Mistral, Qwen2 and Qwen3:
pre-norm, grouped-query attention, gated MLP. Mixtures of experts, encoders beside the decoder and
other decoders are refused, since a wrong plan is worse than none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from difflib import get_close_matches
from functools import cache
from numbers import Real
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Final, cast

import yaml

from stacks.errors import Level, Problem, UserError
from stacks.files import is_map, read_text
from stacks.spec import StackSpec
from stacks.spec.decode import Decoder


class SizeError(UserError):
    """A model, method or number that cannot be planned, a line for each problem."""


class LayersError(SizeError):
    """Layers to compute activations of again, as no trainer can: too many, or no number of them."""


def below_one(given: Mapping[str, int | None], unit: str = "") -> list[str]:
    """A problem for each number that is there and below 1."""
    return [
        f"{name}: got {value}{unit}, expected 1 or more"
        for name, value in given.items()
        if value is not None and value < 1
    ]


MODEL_TYPES: Final = ("llama", "mistral", "qwen2", "qwen3")
_ENCODERS: Final = ("is_encoder_decoder", "add_cross_attention", "vision_config", "audio_config")
LINEAR_MODULES: Final = (
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"
)  # fmt: skip
"""Linear layers of one decoder layer; `all-linear` in a recipe means all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of one decoder; counts are of weights."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool = False
    """Whether the output head is the input embedding."""
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """Whether queries and keys are normalised per head (Qwen3)."""
    max_positions: int | None = field(default=None, compare=False)
    """Tokens of the longest context that the model was made for; None: its config says none."""

    def context_problem(self, tokens: int) -> str | None:
        """Why so many tokens in one context are too many, or None."""
        if self.max_positions is None or tokens <= self.max_positions:
            return None
        return (
            f"{tokens:,} tokens in one context, but {self.name} was made for "
            f"{self.max_positions:,} (max_position_embeddings); give fewer, or another model"
        )

    @property
    def query_width(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all key heads together."""
        return self.kv_heads * self.head_dim

    def linear(self, module: str) -> tuple[int, int]:
        """Inputs and outputs of one linear layer of a decoder layer."""
        return {
            "q_proj": (self.hidden, self.query_width),
            "k_proj": (self.hidden, self.kv_width),
            "v_proj": (self.hidden, self.kv_width),
            "o_proj": (self.query_width, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }[module]

    @property
    def linear_weights_per_layer(self) -> int:
        """Weights of the linear layers of one decoder layer, without biases."""
        return sum(rows * columns for rows, columns in map(self.linear, LINEAR_MODULES))

    @property
    def other_weights_per_layer(self) -> int:
        """Norms and biases of one decoder layer."""
        biases = self.qkv_bias * (self.query_width + 2 * self.kv_width) + self.o_bias * self.hidden
        biases += self.mlp_bias * (2 * self.intermediate + self.hidden)
        return 2 * self.hidden + self.qk_norm * 2 * self.head_dim + biases

    @property
    def weights_per_layer(self) -> int:
        """All weights of one decoder layer."""
        return self.linear_weights_per_layer + self.other_weights_per_layer

    @property
    def embedding_weights(self) -> int:
        """Weights of the input embedding."""
        return self.vocab * self.hidden

    @property
    def head_weights(self) -> int:
        """Weights of the output head that the embedding does not hold."""
        return 0 if self.tied else self.vocab * self.hidden

    @property
    def outer_weights(self) -> int:
        """Weights outside the decoder layers: embedding, last norm, head."""
        return self.embedding_weights + self.hidden + self.head_weights

    @property
    def parameters(self) -> int:
        """All weights; a tied head counts once."""
        return self.layers * self.weights_per_layer + self.outer_weights

    @property
    def largest_tensor_weights(self) -> int:
        """Weights of the largest single tensor."""
        return max(self.embedding_weights, self.largest_linear_weights)

    @property
    def largest_linear_weights(self) -> int:
        """Weights of the largest linear layer of a decoder layer."""
        return max(rows * columns for rows, columns in map(self.linear, LINEAR_MODULES))

    def adapter_weights(self, *, rank: int, targets: tuple[str, ...] = LINEAR_MODULES) -> int:
        """Weights of LoRA adapters of this rank on these modules of every layer."""
        return self.layers * sum(rank * sum(self.linear(module)) for module in targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Config:
    """What is read of a config.json."""

    model_type: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    num_key_value_heads: int | None = None
    """Without it every head has its own keys."""
    head_dim: int | None = None
    """Without it heads share the hidden size."""
    max_position_embeddings: int | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False


def shape_from_config(config: object, *, name: str, at: str) -> ModelShape:
    """The shape that a config.json declares; every problem is told at once, under `at`."""
    decoder = Decoder(is_json=True)
    found = decoder.record(_Config, config, at)
    if is_map(config):
        _refuse_unknown_forms(config, at, decoder)
    if found is None or decoder.problems:
        raise SizeError("\n".join(decoder.problems))
    hidden, heads = found.hidden_size, found.num_attention_heads
    kv_heads = found.num_key_value_heads or heads
    if heads % kv_heads:
        problem = f"{kv_heads} does not divide num_attention_heads ({heads})"
        decoder.refuse(f"{at}.num_key_value_heads", problem)
    if found.head_dim is None and hidden % heads:
        decoder.refuse(
            f"{at}.hidden_size",
            f"{hidden} is not a multiple of num_attention_heads ({heads}); there is no head_dim",
        )
    if decoder.problems:
        raise SizeError("\n".join(decoder.problems))
    # Qwen2 has biases on queries, keys and values whatever its config says, and none elsewhere.
    has_bias = found.attention_bias and found.model_type in ("llama", "qwen3")
    return ModelShape(
        name=name,
        hidden=hidden,
        layers=found.num_hidden_layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=found.head_dim or hidden // heads,
        intermediate=found.intermediate_size,
        vocab=found.vocab_size,
        tied=found.tie_word_embeddings,
        qkv_bias=has_bias or found.model_type == "qwen2",
        o_bias=has_bias,
        mlp_bias=found.mlp_bias and found.model_type == "llama",
        qk_norm=found.model_type == "qwen3",
        max_positions=_max_positions(cast("Mapping[str, object]", config), found),
    )


def _refuse_unknown_forms(config: Mapping[str, object], at: str, decoder: Decoder) -> None:
    """What makes another model than a decoder that is known by its type."""
    kind = config.get("model_type")
    if isinstance(kind, str) and kind not in MODEL_TYPES:
        reason = f"'{kind}' is not a decoder that this planner knows ({', '.join(MODEL_TYPES)})"
        decoder.refuse(f"{at}.model_type", reason)
    for key, value in config.items():
        if value and ("expert" in key or key.startswith("moe_")):
            reason = f"{value!r}: a mixture of experts cannot be planned"
            decoder.refuse(f"{at}.{key}", f"{reason}; give the config.json of a dense model")
        elif value and key in ("quantization_config", "compression_config"):
            reason = "the weights are quantised already; give the config.json of the model as it"
            decoder.refuse(f"{at}.{key}", f"{reason} was trained, and --dtype")
        elif value and key in _ENCODERS:
            reason = "more than a decoder of text cannot be planned; give the config.json of that"
            decoder.refuse(f"{at}.{key}", f"{reason} alone, such as its text_config")
    given = config.get("architectures") or "ForCausalLM"
    for name in cast("list[object]", given) if isinstance(given, list) else [given]:
        if not str(name).endswith("ForCausalLM"):
            reason = f"{name!r} is no causal language model (...ForCausalLM)"
            decoder.refuse(f"{at}.architectures", reason)


def _max_positions(config: Mapping[str, object], found: _Config) -> int | None:
    """Positions that the model knows, those that its rope scaling adds included."""
    known, scaling = found.max_position_embeddings, config.get("rope_scaling")
    if known is not None and is_map(scaling):
        factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings")
        if isinstance(factor, Real) and isinstance(original, int):
            grown = Decimal(str(factor)) * original
            known = max(known, int(grown)) if grown.is_finite() else known
    return known


MODELS_FILE: Final = Path(__file__).parent / "models.yaml"
_TUNED: Final = ("-instruct", "-chat", "-base", "-hf", "-v0.1")
_NOTES: Final = ("parameters", "licence", "source", "date")


@cache
def rows() -> Mapping[str, Mapping[str, Any]]:
    """Every row of models.yaml by name, with its licence, source, date and number of weights."""
    return MappingProxyType(yaml.safe_load(MODELS_FILE.read_text(encoding="utf-8")))


def load_shape(model: str) -> ModelShape:
    """The shape of a model: a name of the catalog, a config.json, or a folder that holds one."""
    path = Path(model)
    if path.suffix == ".json" or path.is_dir():
        return _read(path / "config.json" if path.is_dir() else path)
    name = base_name(model)
    by_lower = {each.lower(): each for each in rows()}
    known = by_lower.get(name)
    if known is None:
        near = get_close_matches(name, by_lower, n=1, cutoff=0.5)
        hint = f"; did you mean {by_lower[near[0]]}?" if near else ""
        raise SizeError(
            f"model: {model!r} is not in the catalog{hint} "
            f"(has: {', '.join(rows())}; or give the path of a config.json)"
        )
    values = {key: value for key, value in rows()[known].items() if key not in _NOTES}
    return ModelShape(name=known, **values)


def chat_problems(spec: StackSpec) -> tuple[Problem, ...]:
    """Refuse a reference chat that the catalog's model cannot read; warn where it cannot answer."""
    chat = spec.chat
    try:
        shape = load_shape(base_name(chat.model))
    except SizeError:  # no stack must name a model of the catalog
        return ()
    answered = chat.context_tokens - (-chat.output_tokens // chat.turns)
    for tokens, level in ((chat.context_tokens, Level.ERROR), (answered, Level.WARNING)):
        if problem := shape.context_problem(tokens):
            what = problem if level is Level.ERROR else f"with its answer {problem}"
            return (Problem(level=level, path=f"{spec.name}.chat.context_tokens", message=what),)
    return ()


def base_name(model: str) -> str:
    """`Qwen/Qwen3-14B-Instruct` as qwen3-14b: the hub takes names in any case."""
    name = PurePosixPath(model).name.lower()
    for ending in _TUNED * 2:
        name = name.removesuffix(ending)
    return name


def _read(path: Path) -> ModelShape:
    try:
        config: object = json.loads(read_text(path))
    except OSError as error:
        raise SizeError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SizeError(f"{path}: not JSON: {error}") from error
    return shape_from_config(config, name=path.resolve().parent.name, at=str(path))
