"""Base and tuned rows in one batch: each adapted layer changes the tuned rows only.

peft's own way hooks every layer anew for each forward pass; here the hooks stay and read which rows
are tuned. LoRA's arithmetic is peft's, DoRA's is in dora_rows.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workloads.common.exit_codes import DataError
from workloads.serve.dora_rows import split_rows

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


def attach(model: Any, adapter_dir: Path) -> tuple[Any, AdapterRows]:
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
