"""What a checkpoint holds, as torch DCP takes it, and its copy in host memory.

Keys of the flat mapping: `model.<name>`, `optimizer.<name>.<field>`, `scalars`, `scaler`,
`rng.<rank>`. Tensors are the live ones, DTensors under FSDP2, so a load fills them in place at any
world size.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.staging import BlockingAsyncStager

from workloads.common.dist import PlainUnpickler, World
from workloads.common.exit_codes import ConfigError, DataError
from workloads.common.hardware import available_bytes
from workloads.common.log import log
from workloads.train.loop import TrainState


class Reader(FileSystemReader):
    """Reads a checkpoint that others may have made: what is no description of it is refused."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return what the checkpoint holds; DataError names what else `.metadata` holds."""
        path = Path(self.path) / ".metadata"
        try:
            with path.open("rb") as file:
                found = PlainUnpickler(file).load()
        except (OSError, EOFError, pickle.UnpicklingError, TypeError, ValueError) as error:
            raise DataError(f"{path}: {error}; name a checkpoint that train wrote") from error
        if not isinstance(found, Metadata):
            raise DataError(f"{path}: is no metadata of a checkpoint; name one that train wrote")
        found.storage_meta = found.storage_meta or StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


class Planner(DefaultLoadPlanner):
    """Loads values of a checkpoint under the names that they have, and no programs."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Take values that are no tensors; torch's own planner would run what is pickled there."""
        name = read_item.dest_index.fqn
        try:
            self.state_dict[name] = torch.load(value, weights_only=True)
        except pickle.UnpicklingError as error:
            what = re.search(r"GLOBAL (\S+)", str(error))
            raise pickle.UnpicklingError(
                f"{name} holds {what[1] if what else 'no plain values'}, which may run a program; "
                "name a checkpoint that train wrote"
            ) from None


SCALARS, SCALER = "scalars", "scaler"


def trained_weights(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return the weights that training changes, by name."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def capture(state: TrainState) -> dict[str, Any]:
    """Return what a checkpoint of `state` holds on this rank; tensors are not copied."""
    values: dict[str, Any] = {**_model_tensors(state.model)}
    scalars: dict[str, dict[str, float]] = {}
    for name, weight in trained_weights(state.model).items():
        for key, value in state.optimizer.state.get(weight, {}).items():
            if isinstance(value, torch.Tensor):
                values[f"optimizer.{name}.{key}"] = value.detach()
            else:
                scalars.setdefault(name, {})[key] = value
    values[SCALARS] = scalars
    if state.scaler is not None:
        values[SCALER] = state.scaler.state_dict()
    values[f"rng.{state.world.rank}"] = rng_state(state.world.device)
    return values


def places_for(state: TrainState, metadata: Metadata, *, with_rng: bool) -> dict[str, Any]:
    """Return the mapping that a load fills: live weights, and new tensors for the optimizer."""
    saved = metadata.state_dict_metadata
    values: dict[str, Any] = {**_model_tensors(state.model)}
    held = {key for key in saved if key.startswith("model.")}
    if held != values.keys():
        different = sorted(held ^ values.keys())
        raise ConfigError(
            f"the checkpoint holds other weights than this recipe trains: {different[0]} and "
            f"{len(different) - 1} more; use the recipe it was made with"
        )
    weights = trained_weights(state.model)
    for key, entry in saved.items():
        if key.startswith("optimizer.") and isinstance(entry, TensorStorageMetadata):
            name, _, _ = key.removeprefix("optimizer.").rpartition(".")
            values[key] = _empty_like(weights[name], entry)
    values[SCALARS] = None
    if state.scaler is not None and SCALER in saved:
        values[SCALER] = None
    if with_rng:
        values[f"rng.{state.world.rank}"] = None
    return values


def restore(state: TrainState, values: dict[str, Any]) -> None:
    """Put loaded values that are not live tensors where they belong."""
    weights = trained_weights(state.model)
    fields: dict[str, dict[str, Any]] = {name: dict(kept) for name, kept in values[SCALARS].items()}
    for key, value in values.items():
        if key.startswith("optimizer."):
            name, _, kind = key.removeprefix("optimizer.").rpartition(".")
            fields.setdefault(name, {})[kind] = value
    for name, kept in fields.items():
        if "weight_fp32" in kept:  # runs in bf16 up to 2026-11 kept their fp32 weights here
            with torch.no_grad():
                weights[name].copy_(kept.pop("weight_fp32"))
            kept["step"] = torch.tensor(float(kept["step"]), device=weights[name].device)
        state.optimizer.state[weights[name]] = kept
    if state.scaler is not None and values.get(SCALER):
        state.scaler.load_state_dict(values[SCALER])
    random_state = values.get(f"rng.{state.world.rank}")
    if random_state is not None:
        restore_rng(random_state, state.world.device)


def rng_state(device: torch.device) -> dict[str, Any]:
    """Return the random state of this rank."""
    return {
        # One text: the copy that stalls training visits each of 625 numbers otherwise.
        "python": json.dumps(random.getstate()),
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device).cpu() if device.type == "cuda" else None,
    }


def restore_rng(state: dict[str, Any], device: torch.device) -> None:
    """Set the random state of this rank."""
    version, internal, gauss = json.loads(state["python"])
    random.setstate((version, tuple(internal), gauss))
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)


def num_local_bytes(values: dict[str, Any]) -> int:
    """Return the bytes of this rank's slices of all tensors."""
    return sum(
        local.numel() * local.element_size()
        for value in values.values()
        if isinstance(value, torch.Tensor)
        for local in [_local(value)]
    )


def _local(tensor: Any) -> torch.Tensor:
    """This rank's slice under FSDP2, else the tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _model_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    tensors = {name: weight.detach() for name, weight in trained_weights(model).items()}
    tensors |= {name: buffer.detach() for name, buffer in _persistent_buffers(model)}
    return {f"model.{name}": tensor for name, tensor in tensors.items()}


def _persistent_buffers(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Buffers that belong to the state of the model, such as running means."""
    for prefix, module in model.named_modules():
        temporary = module._non_persistent_buffers_set
        for name, buffer in module.named_buffers(prefix, recurse=False):
            if name.rpartition(".")[2] not in temporary:
                yield name, buffer


def _empty_like(weight: torch.Tensor, entry: TensorStorageMetadata) -> torch.Tensor:
    dtype = entry.properties.dtype
    if entry.size == weight.shape:
        return torch.zeros_like(weight, dtype=dtype, requires_grad=False)
    return torch.zeros(entry.size, dtype=dtype, device=weight.device)


class Staging:
    """The copy of a run's state in host memory, written while training goes on; one at most."""

    def __init__(self, ranks: World, *, on_gpu: bool) -> None:
        self._ranks, self._on_gpu = ranks, on_gpu
        self._stager: BlockingAsyncStager | None = None

    def stager(self) -> BlockingAsyncStager:
        """Return what makes the copy."""
        if self._stager is None:
            # DefaultStager of torch 2.11 serves one save only. A cached copy is in pinned memory.
            self._stager = BlockingAsyncStager(cache_staged_state_dict=self._on_gpu)
        return self._stager

    def has_room(self, values: dict[str, Any]) -> bool:
        """Whether the host memory of every node takes the copies of its ranks."""
        if self._stager is not None:
            return True
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        need, free = num_local_bytes(values) * ranks, available_bytes()
        fits = not any(self._ranks.gather(need > 0.8 * free))
        if not fits:
            log(
                f"a copy of the state takes {need / 2**30:.1f} GiB of host memory, "
                f"{free / 2**30:.1f} GiB are available: saves block training"
            )
        return fits
