"""Weights into memory and an engine around them; a checkpoint of a run is put together first.

A checkpoint's slices are read through torch DCP, whatever number of ranks wrote them, and written
as `final/` would be. The optimizer's slices are not read.
"""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from workloads.common import atomic
from workloads.common.exit_codes import ConfigError, DataError
from workloads.common.log import log
from workloads.common.models import load_model, load_tokenizer, torch_dtype
from workloads.common.places import Places
from workloads.common.record import job_id
from workloads.data.chat_template import check_tokenizer
from workloads.data.manifest import read_object
from workloads.evaluate.generate import stop_token_ids
from workloads.recipes.reader import parse
from workloads.recipes.serve import ServeConfig
from workloads.recipes.train import TrainConfig
from workloads.serve.engine import Runner, TransformersEngine
from workloads.serve.rows import RowCache, attach_adapter, bytes_per_row, check_model
from workloads.serve.sampling import Grammars
from workloads.serve.scheduler import Scheduler
from workloads.serve.weights import Weights, forget_cached, stage
from workloads.train.run_folder import CONFIG, FULL_WEIGHTS, Candidate

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
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

    from workloads.train.checkpoint_state import Planner, Reader

    reader = Reader(folder)
    try:
        values: dict[str, Any] = {
            key: torch.empty(entry.size, dtype=entry.properties.dtype)
            for key, entry in reader.read_metadata().state_dict_metadata.items()
            if key.startswith(_PREFIX) and isinstance(entry, TensorStorageMetadata)
        }
        dcp_load(
            values,
            storage_reader=reader,
            planner=Planner(),
            no_dist=True,
        )
    except (CheckpointException, OSError, ValueError) as error:
        raise DataError(f"{folder}: cannot be read: {error}") from error
    return {key.removeprefix(_PREFIX): value for key, value in values.items()}


def _write_adapter(
    target: Path, weights: dict[str, torch.Tensor], *, model_dir: Path, config: TrainConfig
) -> None:

    from workloads.train.model import build_empty_model

    model = build_empty_model(model_dir, config, device=torch.device("cpu"))
    # A model without weights does not know which folder it is of; the adapter must say it.
    model.peft_config["default"].base_model_name_or_path = str(model_dir)
    model.save_pretrained(target, state_dict=weights)


def _write_model(
    target: Path, weights: dict[str, torch.Tensor], *, found: Candidate, config: TrainConfig
) -> None:
    from safetensors.torch import save_file

    dtype = torch_dtype(config.dtype)
    whole = {name: weight.to(dtype).contiguous() for name, weight in weights.items()}
    save_file(whole, target / FULL_WEIGHTS, metadata={"format": "pt"})
    shutil.copyfile(found.path / CONFIG, target / CONFIG)


_RESERVE = 0.1
"""Share of the free device memory left to the passes themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A ready engine."""

    engine: TransformersEngine
    tokenizer: Any
    grammars: Grammars
    metrics: dict[str, float | int]
    device: torch.device


def load(
    config: ServeConfig,
    weights: Weights,
    places: Places,
    *,
    on_lost: Callable[[BaseException], None],
) -> Loaded:
    """Return the engine, not yet started."""
    if config.cpu_threads:
        torch.set_num_threads(config.cpu_threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = load_tokenizer(weights.tokenizer_dir)
    check_tokenizer(tokenizer)
    metrics: dict[str, float | int] = {}
    if config.compare_cold_start:
        forget_cached(weights.model_dir)
        metrics["load_unstaged_s"] = _seconds(lambda: _model(config, weights.model_dir, device))
        gc.collect()
        forget_cached(weights.model_dir)
    folder = weights.model_dir
    metrics["is_staged"] = 0
    if config.stage == "auto":
        staged = stage(folder, places)
        log(staged.text)
        folder = staged.path
        metrics["is_staged"] = int(staged.is_staged)
        if staged.is_staged:
            metrics |= {"stage_copy_s": staged.copy_s, "staged_bytes": staged.num_bytes}
    began = time.monotonic()
    model = _model(config, folder, device)
    metrics["load_s"] = time.monotonic() - began
    if config.compare_cold_start and metrics["is_staged"]:
        log(
            f"weights are read in {metrics['load_s']:.2f} s from the RAM disk (after a copy of "
            f"{metrics['stage_copy_s']:.2f} s) and in {metrics['load_unstaged_s']:.2f} s without it"
        )
    check_model(model.config, context_tokens=config.limits.context_tokens)
    stop_ids = stop_token_ids(model, tokenizer)
    rows = None
    if weights.adapter_dir is not None:
        model, rows = attach_adapter(model, weights.adapter_dir)
    dtype = torch_dtype(config.dtype)
    _check_room(model.config, config, dtype, device)
    cache = RowCache(
        model.config,
        num_rows=config.limits.max_concurrency,
        context_tokens=config.limits.context_tokens,
        dtype=dtype,
        device=device,
    )
    engine = TransformersEngine(
        Runner(model, cache, rows),
        Scheduler(
            num_rows=config.limits.max_concurrency,
            max_queue=config.limits.max_queue,
            prefill_tokens=config.prefill_tokens,
        ),
        tokenizer,
        stop_ids=stop_ids,
        kv_total_tokens=config.limits.max_concurrency * config.limits.context_tokens,
        on_lost=on_lost,
    )
    return Loaded(
        engine=engine,
        tokenizer=tokenizer,
        grammars=Grammars(tokenizer, stop_ids),
        metrics=metrics,
        device=device,
    )


def _model(config: ServeConfig, folder: Path, device: torch.device) -> Any:
    return load_model(folder, dtype=torch_dtype(config.dtype), device=device)


def _seconds(work: Callable[[], Any]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _check_room(
    model_config: Any, config: ServeConfig, dtype: torch.dtype, device: torch.device
) -> None:
    """Refuse a cache that does not fit beside the weights, with the rows that would."""
    if device.type != "cuda":
        return
    limits = config.limits
    row = bytes_per_row(model_config, context_tokens=limits.context_tokens, dtype=dtype)
    free, total = torch.cuda.mem_get_info(device)
    room = free - _RESERVE * total
    if row * limits.max_concurrency > room:
        fits = max(0, int(room // row))
        raise ConfigError(
            f"serve.limits: {limits.max_concurrency} rows of {limits.context_tokens} tokens are "
            f"{row * limits.max_concurrency / 2**30:.1f} GiB of KV cache, {room / 2**30:.1f} GiB "
            f"are free beside the weights; {fits} rows fit: lower max_concurrency or context_tokens"
        )
