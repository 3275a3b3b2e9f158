"""Base and tuned rows in one batch: each LoRA layer adds its product to the tuned rows only.

peft's own way hooks every layer anew for each forward pass; here the hooks stay and read which rows
are tuned. The layers' arithmetic is peft's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workloads.common.exit_codes import DataError

_ADAPTER, _BASE = "default", "__base__"


class AdapterRows:
    """Says for the next forward pass which rows the adapter answers."""

    def __init__(self, model: Any) -> None:
        from peft.tuners.lora import LoraLayer
        from peft.utils.other import AuxiliaryTrainingWrapper

        self._names: list[str] = []
        for module in model.modules():
            if isinstance(module, (LoraLayer, AuxiliaryTrainingWrapper)):
                layer: Any = module
                layer.register_forward_pre_hook(self._tell, with_kwargs=True)

    def choose(self, is_tuned: Sequence[bool]) -> None:
        """Set the rows of the next pass."""
        self._names = [_ADAPTER if each else _BASE for each in is_tuned]

    def _tell(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # All rows tuned: peft's plain path, without splitting the batch.
        if all(name == _ADAPTER for name in self._names):
            return args, kwargs
        return args, {**kwargs, "adapter_names": self._names}


def attach(model: Any, adapter_dir: Path) -> tuple[Any, AdapterRows]:
    """Return `model` with the adapter beside its weights, and the choice of rows."""
    import peft

    try:
        config = peft.PeftConfig.from_pretrained(str(adapter_dir))
        if not isinstance(config, peft.LoraConfig) or config.use_dora:
            kind = "DoRA" if isinstance(config, peft.LoraConfig) else str(config.peft_type)
            raise DataError(
                f"{adapter_dir}: {kind} cannot answer beside its base in one batch; merge it "
                "(train.export merged) and serve that with --merged"
            )
        tuned = peft.PeftModel.from_pretrained(model, adapter_dir, is_trainable=False).eval()
    except (RuntimeError, OSError, ValueError) as error:
        raise DataError(f"{adapter_dir}: adapter cannot be loaded: {error}") from error
    # The wrapped model without peft's wrapper: its own forward, its LoRA layers inside.
    return tuned.get_base_model(), AdapterRows(tuned)
