"""A checkpoint of the training loop as a folder that every engine loads.

Owns that only a whole checkpoint is served: its slices are read through torch DCP, whatever number
of ranks wrote them, and written as `final/` would be. The optimizer's slices are not read.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads.common import atomic
from workloads.common.exit_codes import ConfigError, DataError
from workloads.common.log import log
from workloads.common.places import Places
from workloads.common.recipe import parse
from workloads.common.record import job_id
from workloads.evaluate.header import read_object
from workloads.train.checkpoint_format import CONFIG, FULL_WEIGHTS, Candidate
from workloads.train.config import TrainConfig

if TYPE_CHECKING:
    import torch

_PREFIX = "model."


def consolidated(found: Candidate, *, model_dir: Path, places: Places) -> Path:
    """Return a new folder with the weights of a checkpoint: an adapter, or a whole model."""
    if problem := found.problem():
        raise DataError(f"{found.path}: {problem}; name another checkpoint, or the run's final/")
    config = _settings(found, places)
    weights = _weights(found.path)
    target = places.path("results") / job_id() / f"served-{found.path.name}"
    with atomic.new_directory(target, replace=True) as partial:
        if config.has_adapters:
            _write_adapter(partial, weights, model_dir=model_dir, config=config)
        else:
            _write_model(partial, weights, found=found, config=config)
    log(f"weights of {found.path} put together in {target}")
    return target


def _settings(found: Candidate, places: Places) -> TrainConfig:
    """Return the train settings of the run; a second run of one job id is called `12-2`."""
    run = found.path.parent.name
    for name in dict.fromkeys((run, run.partition("-")[0])):
        path = places.path("results") / name / "config.json"
        if path.is_file():
            try:
                return parse(TrainConfig, read_object(path).get("train"), at=f"{path}: train")
            except ConfigError as error:
                raise DataError(f"{error}; the run was made by another version") from error
    raise DataError(
        f"{found.path}: the settings of its run are not in "
        f"{places.path('results') / run}/config.json; pull them there, or serve the run's final/"
    )


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return every trained weight whole, in host memory, by its name in the model."""
    import torch
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

    reader = FileSystemReader(folder)
    try:
        values: dict[str, Any] = {
            key: torch.empty(entry.size, dtype=entry.properties.dtype)
            for key, entry in reader.read_metadata().state_dict_metadata.items()
            if key.startswith(_PREFIX) and isinstance(entry, TensorStorageMetadata)
        }
        dcp_load(
            values,
            storage_reader=reader,
            planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
            no_dist=True,
        )
    except (CheckpointException, OSError, ValueError) as error:
        raise DataError(f"{folder}: cannot be read: {error}") from error
    return {key.removeprefix(_PREFIX): value for key, value in values.items()}


def _write_adapter(
    target: Path, weights: dict[str, torch.Tensor], *, model_dir: Path, config: TrainConfig
) -> None:
    import torch

    from workloads.train.model import build_empty_model

    model = build_empty_model(model_dir, config, device=torch.device("cpu"))
    # A model without weights does not know which folder it is of; the adapter must say it.
    model.peft_config["default"].base_model_name_or_path = str(model_dir)
    model.save_pretrained(target, state_dict=weights)


def _write_model(
    target: Path, weights: dict[str, torch.Tensor], *, found: Candidate, config: TrainConfig
) -> None:
    from safetensors.torch import save_file

    from workloads.common.models import torch_dtype

    dtype = torch_dtype(config.dtype)
    whole = {name: weight.to(dtype).contiguous() for name, weight in weights.items()}
    save_file(whole, target / FULL_WEIGHTS, metadata={"format": "pt"})
    shutil.copyfile(found.path / CONFIG, target / CONFIG)
