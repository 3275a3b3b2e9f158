"""How a run computes: over which ranks (DDP, FSDP2), in which number types, by which optimizer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workloads.common.dist import World
from workloads.common.exit_codes import ConfigError, DataError
from workloads.common.log import log
from workloads.common.models import torch_dtype
from workloads.recipes.train import TrainConfig
from workloads.train.inputs import Run, compiles_layers
from workloads.train.model import (
    build_outline,
    low_activations,
    num_parameters,
    recomputed_layers,
    use_liger,
)


def autocast(config: TrainConfig, device: torch.device, *, kind: str = "ddp") -> torch.autocast:
    """Return the context of a forward pass: the number types of a run whose strategy is of `kind`.

    bf16, fp16: frozen weights in 16 bits, trained ones in fp32, which compute in 16 under autocast;
    FSDP2 gathers its fp32 shards in bf16 instead. fp32: all in fp32.
    """
    mixed = config.dtype != "fp32" and (config.has_adapters or kind == "ddp")
    # Each weight is used once: a cache would hold those of checkpointed layers for nothing.
    types = {"dtype": torch_dtype(config.dtype), "enabled": mixed, "cache_enabled": False}
    return torch.autocast(device.type, **types)


def build_scaler(config: TrainConfig, device: torch.device) -> torch.amp.GradScaler:
    """Return the scaler of the loss for fp16, which loses small gradients; else it does nothing."""
    return torch.amp.GradScaler(device.type, enabled=config.dtype == "fp16")


def build_optimizer(
    trained: Sequence[torch.Tensor], *, lr: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Return AdamW over `trained`, which have 32 bits.

    At lr 2e-5 the update of a bf16 weight is below its rounding step: most would be lost.
    """
    assert all(weight.dtype == torch.float32 for weight in trained)
    return torch.optim.AdamW(trained, lr=lr, weight_decay=weight_decay, fused=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """The wrapped module of one rank."""

    kind: Literal["ddp", "fsdp"]
    module: Any
    """What a forward pass calls; returns the summed loss of a batch."""
    model: Any
    """The model inside it: what is saved."""
    has_names_of_files: bool = False
    """Whether each weight was read as a tensor of a file, under its own name."""

    @property
    def trained(self) -> list[nn.Parameter]:
        """Weights that are trained; under FSDP2 this rank's shards of them."""
        return [*trained_weights(self.model).values()]

    @property
    def num_weights_here(self) -> int:
        """Weights that this rank holds."""
        return sum(getattr(w, "_local_tensor", w).numel() for w in self.model.parameters())

    def train(self) -> None:
        """Go back to training after forward passes that no backward pass followed."""
        from torch.distributed.fsdp import FSDPModule

        self.module.train()
        for part in self.module.modules():
            if isinstance(part, FSDPModule):  # else what was not divided again stays gathered
                part.reshard()

    def accumulate(self, *, last: bool) -> contextlib.AbstractContextManager[None]:
        """Under DDP reduce gradients over ranks in the last micro batch of a step only.

        FSDP2 divides them in each: kept whole until the last, they are 4 bytes of every weight on
        every rank, 55 GiB of a 14B model.
        """
        no_sync = isinstance(self.module, DistributedDataParallel) and not last
        return self.module.no_sync() if no_sync else contextlib.nullcontext()

    def zero_gradients(self) -> None:
        """Clear the gradients; DDP's stay in its buckets, or new ones would lie beside those."""
        self.module.zero_grad(set_to_none=not isinstance(self.module, DistributedDataParallel))

    def clip(self, max_norm: float) -> torch.Tensor:
        """Bound the gradient's norm over all weights of all ranks; return it as it was, unread."""
        norm: Any = torch.nn.utils.clip_grad_norm_(self.trained, max_norm)
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def trained_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights that training changes, by name."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def all_weights(model: nn.Module) -> dict[str, Any]:
    """Return weights and saved buffers by name, as this rank has them: whole, or a shard."""
    # Tied weights come once: whoever loads the file ties them again.
    named, known = (dict(model.named_parameters(remove_duplicate=each)) for each in (True, False))
    return {**named, **{k: v for k, v in model.state_dict().items() if k not in known}}


def whole_weights(
    weights: Mapping[str, Any], *, keep: bool, dtype: torch.dtype | None = None
) -> dict[str, torch.Tensor]:
    """Return copies on the CPU, whole and in `dtype`, where `keep` is true; every rank calls it."""
    whole: dict[str, torch.Tensor] = {}
    for name, weight in weights.items():
        # One at a time: on a GPU only one whole weight exists beside the shards.
        value = weight.detach() if dtype is None else weight.detach().to(dtype)
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        if keep:
            whole[name] = value.to("cpu", copy=True).contiguous()
    return whole


def spread_ddp(module: Any, model: Any, here: World) -> Strategy:
    """Return the strategy with all weights on every rank."""
    if here.is_distributed:
        devices = [here.local_rank] if here.device.type == "cuda" else None
        module = DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=True)
        module.broadcast_buffers = False  # an option has no name that torch 2.11 and 2.15 share
    return Strategy(kind="ddp", module=module, model=model)


def settle(module: Any, blank_loss: Callable[[], torch.Tensor]) -> None:
    """Let DDP lay out its gradient buckets for good; call it before a checkpoint is loaded.

    DDP orders them anew after its first backward, and divides a gradient in them by the ranks where
    it multiplies one beside them: after this a resumed run rounds as one without interruption.
    """
    if isinstance(module, DistributedDataParallel):
        blank_loss().backward()
        module.zero_grad(set_to_none=False)


def spread_fsdp(run: Run, here: World) -> Strategy:
    """Return the strategy that divides weights, gradients and optimizer state over ranks.

    Over all of them, or (hsdp) over those of each node.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        CPUOffloadPolicy,
        FSDPModule,
        MixedPrecisionPolicy,
        OffloadPolicy,
        fully_shard,
    )

    if not here.is_distributed:
        raise ConfigError(
            "train.strategy fsdp: got 1 rank, expected 2 or more; start the job with torchrun, or "
            "use strategy ddp"
        )
    config, task, offload = run.config, run.task, run.strategy == "offload"
    empty = use_liger(task.build(here.device, empty=True), config, here.device)
    compile_layers(empty, config, here.device)
    module: Any = task.loss(empty, here.device)
    parts = here.world_size
    if run.strategy == "hsdp":
        parts = int(os.environ.get("LOCAL_WORLD_SIZE", parts))
    first = int(parts == here.world_size)  # of the mesh's dimensions: no nodes beside each other
    shape, names = (here.world_size // parts, parts), ("nodes", "parts")
    mesh = init_device_mesh(here.device.type, shape[first:], mesh_dim_names=names[first:])
    options = {
        "mesh": mesh,
        # By itself FSDP2 keeps what is around the layers gathered, which comes next anyway.
        "reshard_after_forward": False if run.keeps_gathered else None,
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=torch_dtype(config.dtype), reduce_dtype=torch.float32
        ),
        "offload_policy": CPUOffloadPolicy() if offload else OffloadPolicy(),
    }
    layers = repeated_layers(empty)
    kind = type(layers[0]).__name__
    for each in (*layers, module):
        fully_shard(each, **options)
    module.to_empty(device=torch.device("cpu") if offload else here.device)
    empty.tie_weights()
    is_direct = _fill(empty, run, here)
    spread = Strategy(kind="fsdp", module=module, model=empty, has_names_of_files=is_direct)
    log(
        f"fsdp: {sum(isinstance(each, FSDPModule) for each in layers)} x {kind} and what is around "
        f"them divided over {parts} of {here.world_size} ranks"
        f"{', gathered once a micro batch' if run.keeps_gathered else ''}; "
        f"{spread.num_weights_here:,} of {sum(map(torch.numel, empty.parameters())):,} weights on "
        f"rank 0, trained ones as {spread.trained[0].dtype}"
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
def _fill(model: Any, run: Run, here: World) -> bool:
    """Give shards their values, from files or one by one from rank 0; return if it was files."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    values: dict[str, torch.Tensor] = {}

    def build() -> dict[str, tuple[Path, str]]:
        outline = build_outline(run.model_dir, run.config, device=here.device)
        source, files = outline or (run.task.build(torch.device("cpu")), {})
        values.update([*source.named_parameters(remove_duplicate=False), *source.named_buffers()])
        return files

    apart = here.apart()  # to read a whole model takes longer than a step may
    files = apart.agree(build)
    log(f"fsdp: {'each rank reads its part' if files else 'rank 0 reads all'} of the model")
    if problems := [each for each in apart.gather(_read_parts(model, files)) if each]:
        raise DataError("; ".join(dict.fromkeys(problems)))
    for name, own in (*model.named_parameters(), *model.named_buffers()):
        if name in files:
            continue
        whole = torch.empty(own.shape, dtype=own.dtype, device=here.device)
        if here.is_main:
            whole.copy_(values[name])
        dist.broadcast(whole, src=0)
        if isinstance(own, DTensor):
            part = distribute_tensor(whole, own.device_mesh, own.placements, src_data_rank=None)
            own, whole = own.to_local(), part.to_local()
        own.copy_(whole)
    return bool(files)


def _read_parts(model: Any, files: Mapping[str, tuple[Path, str]]) -> str:
    """Fill this rank's shards of weights in `files`; return what stopped it, else nothing.

    DCP's HuggingFaceStorageReader reads every safetensors file of a folder (torch 2.15), also a
    second copy of the weights that no index names.
    """
    from safetensors import SafetensorError, safe_open

    opened: dict[Path, Any] = {}
    for name, shard in model.named_parameters():
        part = shard.to_local()
        if name not in files or not part.numel():  # fewer rows than ranks
            continue
        (path, tensor), (chunk,) = files[name], shard.__create_chunk_list__()
        first = chunk.offsets[0]
        try:
            if path not in opened:
                opened[path] = safe_open(path, framework="pt")
            part.copy_(opened[path].get_slice(tensor)[first : first + len(part)])
        except (OSError, SafetensorError) as error:
            return f"{path}: {tensor}: {error}"
    return ""


def build_strategy(run: Run, here: World) -> Strategy:
    """Return the model, spread over ranks as `run.strategy` says."""
    config, task = run.config, run.task
    if run.strategy == "ddp":
        model = use_liger(low_activations(task.build(here.device), config), config, here.device)
        compile_layers(model, config, here.device)
        return spread_ddp(task.loss(model, here.device), model, here)
    return spread_fsdp(run, here)


def compile_layers(model: Any, config: TrainConfig, device: torch.device) -> None:
    """Have each layer of `model` compiled at its first forward pass, where the recipe wants it."""
    if compiles_layers(config, has_gpu=device.type == "cuda"):
        layers = repeated_layers(model)
        log(f"compile: {len(layers)} layers, at their first step")
        for layer in layers:
            layer.compile()


def say_what_is_trained(run: Run, strategy: Strategy, here: World) -> None:
    """Log how many weights are trained and how they are spread; the record gets the numbers."""
    num_all, num_trained = num_parameters(strategy.model)
    config, metrics = run.config, run.job.record.metrics
    recomputed, num_layers = recomputed_layers(strategy.model)
    metrics |= {
        "num_layers": num_layers,
        "num_recomputed_layers": recomputed,
        "num_parameters": num_all,
        "num_trained_parameters": num_trained,
        "num_rows": len(run.task.rows),
        "num_dropped_examples": run.task.num_dropped,
    }
    if strategy.kind == "fsdp":
        metrics["num_weights_on_rank_0"] = strategy.num_weights_here
    dora = " with DoRA" if config.has_adapters and config.lora.dora else ""
    log(
        f"{run.job.recipe.model}: {num_all:,} parameters, {num_trained:,} trained "
        f"({config.method}{dora}, {config.dtype}); activations of {recomputed} of {num_layers} "
        f"layers recomputed; {run.strategy}, world size {here.world_size} on {here.device.type}; "
        f"{len(run.task.rows)} rows, {run.task.num_dropped} too long"
    )
