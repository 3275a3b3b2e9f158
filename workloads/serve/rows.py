"""The rows of a batch in the model: keys and values of each, and which of them are tuned.

A token's keys lie at row r, position p, in one block a layer that is taken once at the start; a
pass sees the first rows as views. Base and tuned rows share a batch: each adapted layer changes the
tuned rows only. peft's own way hooks every layer anew for each forward pass; here the hooks stay.
Shapes: R rows, H key-value heads, T tokens of the pass, S tokens seen, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from workloads.common.exit_codes import ConfigError, DataError

_ALIGNMENT = 8
"""Masks of CUDA's memory-efficient attention want lengths in steps of 8."""


@dataclass(slots=True, kw_only=True)
class Spot:
    """Where the tokens of the next pass go and how much of the cache it sees."""

    rows: slice | torch.Tensor = field(default_factory=lambda: slice(0, 0))
    is_decode: bool = True
    positions_R: torch.Tensor | None = None
    """Decode: the position of each row's new token."""
    writes: Sequence[tuple[int, int, int]] = ()
    """Prefill: row, first position and number of tokens, by row of the batch."""
    num_seen: int = 0


class _Layer(CacheLayerMixin):
    """One layer's block; `update` is what attention calls."""

    def __init__(self, shape: tuple[int, ...], *, options: dict[str, Any], spot: Spot) -> None:
        super().__init__()
        # Zeros, as uninitialised memory can be NaN, which a masked position would still spread.
        self.keys = torch.zeros(shape, **options)
        self.values = torch.zeros(shape, **options)
        self.is_initialized = True
        self._spot = spot
        self._numbers = torch.arange(shape[0], device=options["device"])

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        """Nothing: the block is there from the start."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new tokens and return all that the pass may see: R x H x S x D."""
        spot, keys, values = self._spot, self.keys, self.values
        assert keys is not None
        assert values is not None
        if spot.is_decode:
            rows_R = self._numbers[: key_states.shape[0]]
            keys[rows_R, :, spot.positions_R] = key_states[:, :, 0]
            values[rows_R, :, spot.positions_R] = value_states[:, :, 0]
        else:
            for index, (row, start, count) in enumerate(spot.writes):
                keys[row, :, start : start + count] = key_states[index, :, :count]
                values[row, :, start : start + count] = value_states[index, :, :count]
        return keys[spot.rows, :, : spot.num_seen], values[spot.rows, :, : spot.num_seen]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return what a mask must cover: tokens seen, from the first."""
        return self._spot.num_seen, 0

    def get_seq_length(self) -> int:
        """Return how many tokens the pass sees."""
        return self._spot.num_seen

    def get_max_length(self) -> int:
        """Return the length of a row."""
        assert self.keys is not None
        return self.keys.shape[2]


class RowCache(Cache):
    """The cache of one engine; set `spot` by `prefill` or `decode` before each pass."""

    def __init__(
        self,
        config: Any,
        *,
        num_rows: int,
        context_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.length = -(-context_tokens // _ALIGNMENT) * _ALIGNMENT
        self._spot = Spot()
        self._device = device
        num_heads, head_size = _heads(config)
        shape = (num_rows, num_heads, self.length, head_size)
        options = {"dtype": dtype, "device": device}
        self._blocks = [
            _Layer(shape, options=options, spot=self._spot) for _ in range(config.num_hidden_layers)
        ]
        super().__init__(layers=[*self._blocks])

    def decode(self, num_rows: int, lengths: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Aim at one new token a row behind `lengths`; return its positions and the mask."""
        positions_R = torch.tensor(lengths, device=self._device)
        seen = self._rounded(max(lengths) + 1)
        spot = self._spot
        spot.rows, spot.is_decode, spot.positions_R = slice(0, num_rows), True, positions_R
        spot.num_seen = seen
        seen_S = torch.arange(seen, device=self._device)
        return positions_R[:, None], (seen_S <= positions_R[:, None])[:, None, None]

    def prefill(
        self, writes: Sequence[tuple[int, int, int]]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Aim at chunks (row, start, count); return positions B x T and the mask B x 1 x T x S.

        Chunks that all begin their prompts need no mask: they attend causally among themselves, the
        padding lies behind them, and kernels do half the work without one.
        """
        longest = max(count for _, _, count in writes)
        spot = self._spot
        rows = [row for row, _, _ in writes]
        one = len(rows) == 1
        spot.rows = slice(rows[0], rows[0] + 1) if one else torch.tensor(rows, device=self._device)
        spot.is_decode, spot.writes = False, writes
        is_first = all(start == 0 for _, start, _ in writes)
        seen = longest if is_first else self._rounded(max(at + count for _, at, count in writes))
        spot.num_seen = seen
        starts_B = torch.tensor([start for _, start, _ in writes], device=self._device)
        offsets_T = torch.arange(longest, device=self._device)
        # The padding behind a short chunk is computed and thrown away; its position must exist.
        positions_BT = (starts_B[:, None] + offsets_T).clamp(max=self.length - 1)
        if is_first:
            return positions_BT, None
        seen_S = torch.arange(seen, device=self._device)
        return positions_BT, (seen_S <= positions_BT[:, :, None])[:, None]

    def move(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first tokens of one row over another."""
        for block in self._blocks:
            for tensor in (block.keys, block.values):
                assert tensor is not None
                tensor[target, :, :num_tokens] = tensor[source, :, :num_tokens]

    def _rounded(self, num_tokens: int) -> int:
        return min(-(-num_tokens // _ALIGNMENT) * _ALIGNMENT, self.length)


def bytes_per_row(config: Any, *, context_tokens: int, dtype: torch.dtype) -> int:
    """Return the bytes of keys and values of one row."""
    per_token = 2 * config.num_hidden_layers * math.prod(_heads(config))
    return per_token * context_tokens * dtype.itemsize


def check_model(config: Any, *, context_tokens: int) -> None:
    """Refuse a model whose layers or positions do not reach over the whole context."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"]) - {"full_attention"}
    window = getattr(config, "sliding_window", None)
    if kinds == {"sliding_attention"} and window and context_tokens <= window:
        kinds = set()
    if kinds:
        raise ConfigError(
            f"serve.engine: transformers serves layers that see the whole context, and this model "
            f"has {', '.join(sorted(kinds))}; set it to vllm"
            + (f", or lower serve.limits.context_tokens to {window}" if window else "")
        )
    longest = getattr(config, "max_position_embeddings", None)
    if longest and context_tokens > longest:
        raise ConfigError(
            f"serve.limits.context_tokens: {context_tokens}, but the model has {longest} positions "
            f"(max_position_embeddings); lower it to {longest}"
        )


def _heads(config: Any) -> tuple[int, int]:
    """Return how many heads have keys and values, and the size of one."""
    all_heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // all_heads
    return getattr(config, "num_key_value_heads", None) or all_heads, size


def split_rows(layer: Any, adapter: str, tuned: Callable[[], Sequence[int] | None]) -> None:
    """Let `layer` adapt only the rows that `tuned` returns before each pass; None: all of them."""
    base = layer.base_layer
    if not isinstance(base, torch.nn.Linear):
        raise DataError(
            f"DoRA on a {type(base).__name__} layer is not served beside its base; merge it "
            "(train.export merged) and serve that with --merged"
        )
    scaling = layer.scaling[adapter]
    down, up = layer.lora_A[adapter], layer.lora_B[adapter]
    factor_O = _factor(layer, adapter)

    def forward(x_BTI: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        out_BTO = base(x_BTI)
        rows = tuned()
        if rows is None:
            return adapted(x_BTI, out_BTO)
        if rows:
            out_BTO[rows] = adapted(x_BTI[rows], out_BTO[rows])
        return out_BTO

    def adapted(x_BTI: torch.Tensor, out_BTO: torch.Tensor) -> torch.Tensor:
        product_BTO = up(down(x_BTI.to(down.weight.dtype))) * scaling
        if base.bias is None:
            return (factor_O * (out_BTO + product_BTO)).to(out_BTO.dtype)
        plain_BTO = out_BTO - base.bias
        return (factor_O * (plain_BTO + product_BTO) + base.bias).to(out_BTO.dtype)

    layer.forward = forward


def _factor(layer: Any, adapter: str) -> torch.Tensor:
    """Return m / |W + s B A| of each output, with the norm in fp32."""
    weight_OI = layer.base_layer.weight.detach()
    up_OR, down_RI = (each[adapter].weight.detach() for each in (layer.lora_B, layer.lora_A))
    product_OI = up_OR.float() @ down_RI.float()
    norm_O = (weight_OI.float() + layer.scaling[adapter] * product_OI).norm(dim=1)
    magnitude_O = layer.lora_magnitude_vector[adapter].weight.detach().float()
    return (magnitude_O / norm_O).to(weight_OI.dtype)


_ADAPTER, _BASE = "default", "__base__"


class AdapterRows:
    """Says for the next forward pass which rows the adapter answers."""

    def __init__(self, model: Any) -> None:
        from peft.tuners.lora import LoraLayer
        from peft.utils.other import AuxiliaryTrainingWrapper

        self._names: list[str] = []
        self._tuned: list[int] | None = None
        for module in model.modules():
            if isinstance(module, LoraLayer) and module.use_dora.get(_ADAPTER):
                split_rows(module, _ADAPTER, lambda: self._tuned)
            # DoRA keeps its magnitudes in a layer of that kind; no pass goes through it.
            elif isinstance(module, (LoraLayer, AuxiliaryTrainingWrapper)):
                layer: Any = module
                layer.register_forward_pre_hook(self._tell, with_kwargs=True)

    def choose(self, is_tuned: Sequence[bool]) -> None:
        """Set the rows of the next pass."""
        self._names = [_ADAPTER if each else _BASE for each in is_tuned]
        rows = [row for row, each in enumerate(is_tuned) if each]
        # All rows tuned: the plain path, without splitting the batch.
        self._tuned = None if len(rows) == len(is_tuned) else rows

    def _tell(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._tuned is None:
            return args, kwargs
        return args, {**kwargs, "adapter_names": self._names}


def attach_adapter(model: Any, adapter_dir: Path) -> tuple[Any, AdapterRows]:
    """Return `model` with the adapter beside its weights, and the choice of rows."""
    import peft

    try:
        config = peft.PeftConfig.from_pretrained(str(adapter_dir))
        if not isinstance(config, peft.LoraConfig):
            raise DataError(
                f"{adapter_dir}: {config.peft_type} cannot answer beside its base in one batch; "
                "merge it (train.export merged) and serve that with --merged"
            )
        tuned = peft.PeftModel.from_pretrained(model, adapter_dir, is_trainable=False).eval()
    except (RuntimeError, OSError, ValueError) as error:
        raise DataError(f"{adapter_dir}: adapter cannot be loaded: {error}") from error
    # The wrapped model without peft's wrapper: its own forward, its adapted layers inside.
    return tuned.get_base_model(), AdapterRows(tuned)
