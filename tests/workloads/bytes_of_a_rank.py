"""Prints the peak of live bytes of each rank in a train step; arguments: settings, model folder."""

from __future__ import annotations

import json
import os
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cost.size.memory import Dtype, Method, Training
from tests.workloads import varlen_kernel
from tests.workloads.test_plan import batch_of, config_of, tiny
from workloads.common.dist import world
from workloads.train.inputs import Run
from workloads.train.model import AssistantLoss, build_model
from workloads.train.strategy import autocast, build_optimizer, build_strategy


class Storages(TorchDispatchMode):
    """The bytes of all storages that are alive, as large as they are now: FSDP2 resizes them."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, Any] = {}
        self.peak = 0

    def add(self, tensor: torch.Tensor) -> None:
        """Count the storage behind `tensor`."""
        storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
        key = storage._cdata
        if key not in self.alive:
            self.alive[key] = weakref.ref(storage)
            weakref.finalize(storage, self.alive.pop, key, None)

    def look(self) -> None:
        """Take note of what there is now."""
        held = [each() for each in list(self.alive.values())]
        self.peak = max(self.peak, sum(each.nbytes() for each in held if each is not None))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, result)):
            if isinstance(leaf, torch.Tensor):
                self.add(leaf)
        self.look()
        return result


def main() -> None:
    """Train two steps; print the peak of the second."""
    settings, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    strategy, vocab, reshards = (settings.pop(k) for k in ("strategy", "vocab", "reshards"))
    os.environ["LOCAL_WORLD_SIZE"] = "2"  # four ranks, as of two nodes
    settings |= {"method": Method(settings["method"]), "dtype": Dtype(settings["dtype"])}
    plan = Training(**settings)
    config, shape = config_of(plan), tiny("qwen3", vocab=vocab, layers=4)
    varlen_kernel.as_on_a_gpu()
    with world() as here:
        planned: Any = SimpleNamespace(strategy=strategy, reshard_after_forward=reshards)
        job: Any = None
        run = Run(
            job=job,
            config=config,
            model_dir=folder,
            strategy=strategy,
            plan=planned,
            task=SimpleNamespace(
                build=lambda device, **more: build_model(folder, config, device=device, **more),
                loss=lambda model, _: AssistantLoss(model, chunk_tokens=plan.logits_chunk_tokens),
            ),
        )
        spread = build_strategy(run, here)
        optimizer = build_optimizer(spread.trained, lr=0.001, weight_decay=0.0)
        batch = batch_of(plan, shape)

        def step() -> None:
            for index in range(plan.gradient_accumulation):
                with spread.accumulate(last=index == plan.gradient_accumulation - 1):
                    with autocast(config, torch.device("cpu")):
                        loss = spread.module(batch)
                    loss.backward()
            optimizer.step()
            spread.zero_gradients()

        step()
        storages = Storages()
        for tensor in [*spread.model.parameters(), *tree_leaves(optimizer.state_dict()["state"])]:
            if isinstance(tensor, torch.Tensor):
                storages.add(tensor)
        with storages:
            step()
        print(f"\nrank {here.rank} peak {storages.peak} end", flush=True)


if __name__ == "__main__":
    main()
