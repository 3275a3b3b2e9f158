"""A PyTorch loop over our packed rows: what is left without everything but the arithmetic."""

from __future__ import annotations

from statistics import fmean

from tests.bench.training import ours, work
from tests.bench.training.contest import Turns
from tests.bench.training.work import Work


def train(turns: Turns, *, size: Work) -> float:
    """Train on the rows that our packed run sees; rows are put together while nothing computes."""
    import torch

    trainer = ours.loop(size, turns=None, settings={})
    module, optimizer = trainer.strategy.module, trainer.state.optimizer
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, size.num_steps)
    losses: list[float] = []
    for step in range(size.num_steps):
        batch = trainer.task.collate(trainer.stream.rows(step, 1))
        loss = module(batch) / batch.num_label_tokens
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainer.strategy.trained, work.MAX_GRAD_NORM)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        turns.step(batch.num_tokens)
    return fmean(losses)
