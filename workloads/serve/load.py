"""Weights into memory and an engine around them, with the seconds that each part took."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from workloads.common.exit_codes import ConfigError
from workloads.common.log import log
from workloads.common.models import load_model, load_tokenizer, torch_dtype
from workloads.common.places import Places
from workloads.data.chat_template import check_tokenizer
from workloads.evaluate.generate import stop_token_ids
from workloads.serve import adapter_rows, kv_cache, stage
from workloads.serve.config import ServeConfig
from workloads.serve.engine import TransformersEngine
from workloads.serve.grammar import Grammars
from workloads.serve.kv_cache import RowCache
from workloads.serve.runner import Runner
from workloads.serve.scheduler import Scheduler
from workloads.serve.weights import Weights

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
        stage.forget_cached(weights.model_dir)
        metrics["load_unstaged_s"] = _seconds(lambda: _model(config, weights.model_dir, device))
        gc.collect()
        stage.forget_cached(weights.model_dir)
    folder = weights.model_dir
    metrics["is_staged"] = 0
    if config.stage == "auto":
        staged = stage.stage(folder, places)
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
    kv_cache.check_model(model.config, context_tokens=config.limits.context_tokens)
    stop_ids = stop_token_ids(model, tokenizer)
    rows = None
    if weights.adapter_dir is not None:
        model, rows = adapter_rows.attach(model, weights.adapter_dir)
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
    row = kv_cache.bytes_per_row(model_config, context_tokens=limits.context_tokens, dtype=dtype)
    free, total = torch.cuda.mem_get_info(device)
    room = free - _RESERVE * total
    if row * limits.max_concurrency > room:
        fits = max(0, int(room // row))
        raise ConfigError(
            f"serve.limits: {limits.max_concurrency} rows of {limits.context_tokens} tokens are "
            f"{row * limits.max_concurrency / 2**30:.1f} GiB of KV cache, {room / 2**30:.1f} GiB "
            f"are free beside the weights; {fits} rows fit: lower max_concurrency or context_tokens"
        )
