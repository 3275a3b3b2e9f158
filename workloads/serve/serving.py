"""Loads what a job serves and puts engine, routes and uvicorn together."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable
from pathlib import Path

import torch

from workloads.common import publish
from workloads.common.job import Job
from workloads.serve import gpu
from workloads.serve.app import ChatServer, make_app
from workloads.serve.config import ServeConfig
from workloads.serve.load import Loaded, load
from workloads.serve.metrics import ServeMetrics
from workloads.serve.server import Serving
from workloads.serve.weights import Weights


def serve(
    job: Job,
    config: ServeConfig,
    weights: Weights,
    key: str | None,
    listener: socket.socket,
    ready: Callable[[], None],
) -> None:
    """Serve until a signal; the record gets what was measured, however it ends."""
    running: list[Serving] = []
    loaded = load(config, weights, job.places, on_lost=lambda error: running[0].lost(error))
    job.record.metrics |= loaded.metrics
    metrics = ServeMetrics(
        loaded.engine.load, lambda: memory_bytes(loaded), gpu.reader(loaded.device)
    )
    names = {name: name == weights.tuned_name for name in weights.names}
    chat = ChatServer(loaded.engine, loaded.tokenizer, config, names, metrics, loaded.grammars)
    running.append(Serving(make_app(chat, api_key=key), chat, loaded.engine, config, listener))
    job.record.artifacts["metrics"] = str(job.results_dir / publish.FILE_NAME)
    try:
        with publish.Publisher(metrics.text, results_dir=job.results_dir, kind="serve"):
            running[0].run(ready)
    finally:
        job.record.metrics |= metrics.record() | {"max_memory_bytes": _peak_bytes(loaded)}


def memory_bytes(loaded: Loaded) -> int:
    """Return the memory in use: the GPU's, on CPU this process's."""
    if loaded.device.type == "cuda":
        return torch.cuda.memory_allocated(loaded.device)
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


def _peak_bytes(loaded: Loaded) -> int:
    if loaded.device.type == "cuda":
        return torch.cuda.max_memory_allocated(loaded.device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
