"""Our loop with attention as plain products instead of the fused kernel."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from tests.bench.training import ours
from tests.bench.training.contest import Turns
from tests.bench.training.work import Work


def train(turns: Turns, *, size: Work) -> float:
    """Train as ours does; the mask is added to the scores there, so it becomes numbers."""
    import torch

    trainer = ours.loop(size, turns=turns, settings={})
    model = trainer.strategy.model
    model.set_attn_implementation("eager")

    def with_numbers(_module: Any, arguments: Any, named: dict[str, Any]) -> Any:
        mask = named["attention_mask"]
        added = torch.zeros(mask.shape).masked_fill_(~mask, torch.finfo(torch.float32).min)
        return arguments, {**named, "attention_mask": added}

    model.get_base_model().get_decoder().register_forward_pre_hook(with_numbers, with_kwargs=True)
    trainer.run()
    return fmean(result.loss for result in trainer.curve.results)
