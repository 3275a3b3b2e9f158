"""How a run is spread over ranks: DDP, or FSDP2 with optional shards in the node's memory.

Owns the wrapping, the sync of gradients on the last micro batch of a step only, clipping over all
shards and the gathering of whole weights. Which of them runs is plan.py's choice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workloads.common.dist import World
from workloads.common.exit_codes import ConfigError
from workloads.common.log import log
from workloads.common.models import torch_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """The wrapped module of one rank."""

    kind: Literal["ddp", "fsdp"]
    module: Any
    """What a forward pass calls; returns the summed loss of a batch."""
    model: Any
    """The model inside it: what is saved."""

    @property
    def trained(self) -> list[nn.Parameter]:
        """Weights that are trained; under FSDP2 this rank's shards of them."""
        return [weight for weight in self.model.parameters() if weight.requires_grad]

    @property
    def num_weights_here(self) -> int:
        """Weights that this rank holds."""
        return sum(getattr(w, "_local_tensor", w).numel() for w in self.model.parameters())

    @contextlib.contextmanager
    def accumulate(self, *, last: bool) -> Iterator[None]:
        """Reduce gradients over ranks in the last micro batch of a step only."""
        if self.kind == "fsdp":
            self.module.set_requires_gradient_sync(last)
            yield
        elif last or not isinstance(self.module, DistributedDataParallel):
            yield
        else:
            with self.module.no_sync():
                yield

    def clip(self, max_norm: float) -> float:
        """Bound the gradient's norm over all weights of all ranks; return it as it was."""
        norm: Any = torch.nn.utils.clip_grad_norm_(self.trained, max_norm)
        return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)

    def whole_weights(self, *, only_trained: bool) -> dict[str, torch.Tensor]:
        """Return weights by name on the CPU, whole, on rank 0; every rank calls it."""
        keep = not dist.is_initialized() or dist.get_rank() == 0
        whole: dict[str, torch.Tensor] = {}
        # Tied weights come once: whoever loads the file ties them again.
        named = dict(self.model.named_parameters())
        wanted = {name: weight for name, weight in named.items() if weight.requires_grad}
        if not only_trained:
            known = dict(self.model.named_parameters(remove_duplicate=False))
            buffers = {k: v for k, v in self.model.state_dict().items() if k not in known}
            wanted = {**named, **buffers}
        for name, weight in wanted.items():
            value = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
            if keep:
                whole[name] = value.detach().cpu()
        return whole


def spread_ddp(module: nn.Module, model: Any, here: World) -> Strategy:
    """Return the strategy with all weights on every rank."""
    wrapped: Any = module
    if here.is_distributed:
        wrapped = DistributedDataParallel(
            module,
            device_ids=[here.local_rank] if here.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            forward_sync_buffers=False,
        )
    return Strategy(kind="ddp", module=wrapped, model=model)


def settle(module: Any, blank_loss: Callable[[], torch.Tensor]) -> None:
    """Let DDP lay out its gradient buckets for good; call it before a checkpoint is loaded.

    DDP orders them anew after its first backward, which changes how sums over three or more ranks
    are rounded: after this one a resumed run rounds as the run that was not interrupted.
    """
    if isinstance(module, DistributedDataParallel):
        blank_loss().backward()
        module.zero_grad(set_to_none=True)


def spread_fsdp(
    empty: Any,
    to_loss: Callable[[Any], nn.Module],
    source: Any | None,
    here: World,
    *,
    dtype: str,
    offload: bool = False,
) -> Strategy:
    """Return the strategy that divides weights, gradients and optimizer state over all ranks.

    `empty` is the model on the meta device; `source`, on rank 0 only, has the values. No rank but 0
    ever holds the whole model.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        CPUOffloadPolicy,
        MixedPrecisionPolicy,
        OffloadPolicy,
        fully_shard,
    )

    if not here.is_distributed:
        raise ConfigError(
            "train.strategy fsdp: got 1 rank, expected 2 or more; start the job with torchrun, or "
            "use strategy ddp"
        )
    module: Any = to_loss(empty)
    options = {
        "mesh": init_device_mesh(here.device.type, (here.world_size,)),
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=torch_dtype(dtype), reduce_dtype=torch.float32
        ),
        "offload_policy": CPUOffloadPolicy() if offload else OffloadPolicy(),
    }
    layers = repeated_layers(empty)
    kind = type(layers[0]).__name__
    for layer in layers:
        fully_shard(layer, **options)
    fully_shard(module, **options)
    module.to_empty(device=torch.device("cpu") if offload else here.device)
    empty.tie_weights()
    _fill(empty, source, here)
    spread = Strategy(kind="fsdp", module=module, model=empty)
    total = sum(weight.numel() for weight in empty.parameters())
    log(
        f"fsdp: {len(layers)} x {kind} and what is around them divided over "
        f"{here.world_size} ranks; {spread.num_weights_here:,} of {total:,} weights on rank 0"
        + (", in the node's memory" if offload else "")
    )
    return spread


def repeated_layers(model: nn.Module) -> Sequence[nn.Module]:
    """Return the layers of the model's longest list of modules: what is divided one by one."""
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part)]
    if not lists:
        raise ConfigError(
            f"train.strategy fsdp: {type(model).__name__} has no list of layers to divide; use ddp"
        )
    longest = max(lists, key=lambda part: (len(part), sum(p.numel() for p in part.parameters())))
    return [*longest]


@torch.no_grad()
def _fill(model: Any, source: Any | None, here: World) -> None:
    """Give every shard its values from rank 0, one whole tensor at a time."""
    from torch.distributed.tensor import distribute_tensor

    values = dict(source.named_parameters(remove_duplicate=False)) if source is not None else {}
    for name, shard in model.named_parameters():
        if here.is_main:
            whole = values[name].detach().to(here.device, shard.dtype).contiguous()
        else:
            whole = torch.empty(shard.shape, dtype=shard.dtype, device=here.device)
        dist.broadcast(whole, src=0)
        local = distribute_tensor(whole, shard.device_mesh, shard.placements, src_data_rank=None)
        shard.to_local().copy_(local.to_local())
    buffers = dict(source.named_buffers()) if source is not None else {}
    for name, buffer in model.named_buffers():
        whole = torch.empty(buffer.shape, dtype=buffer.dtype, device=here.device)
        if here.is_main:
            whole.copy_(buffers[name])
        dist.broadcast(whole, src=0)
        buffer.copy_(whole)
