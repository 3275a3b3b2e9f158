"""How busy a server says it is: GPU, memory, answers; read from its Prometheus page.

Knows the names of workloads.serve and of vLLM; a server that tells less is shown with less.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_GPU = re.compile(r'gpu="([^"]*)"')
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU of the server."""

    busy_share: float | None = None
    used_bytes: float | None = None
    total_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLoad:
    """What one page of metrics said; None: it did not say."""

    gpus: Mapping[str, Gpu]
    memory_bytes: float | None
    num_running: float | None
    num_waiting: float | None
    kv_share: float | None
    num_ended: float | None = None
    """Requests since its start that came to an end, whatever it was."""


def read_metrics(text: str) -> ServerLoad:
    """Return what the page says; lines that it should not have are passed over."""
    sums: dict[str, float] = {}
    gpus: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        found = _SAMPLE.match(line)
        if found is None:
            continue
        name, labels, number = found.groups()
        try:
            value = float(number)
        except ValueError:
            continue
        gpu = _GPU.search(labels or "")
        if name.startswith("serve_gpu_") and gpu is not None:
            gpus.setdefault(gpu[1], {})[name.removeprefix("serve_gpu_")] = value
        else:
            sums[name] = sums.get(name, 0.0) + value
    room = sums.get("serve_kv_cache_tokens")
    used = sums.get("serve_kv_cache_used_tokens")
    return ServerLoad(
        gpus={
            name: Gpu(
                busy_share=values.get("utilization_ratio"),
                used_bytes=values.get("memory_used_bytes"),
                total_bytes=values.get("memory_total_bytes"),
            )
            for name, values in sorted(gpus.items())
        },
        memory_bytes=sums.get("serve_memory_bytes"),
        num_running=sums.get("serve_running_requests", sums.get("vllm:num_requests_running")),
        num_waiting=sums.get("serve_waiting_requests", sums.get("vllm:num_requests_waiting")),
        num_ended=sums.get("serve_requests_total", sums.get("vllm:request_success_total")),
        kv_share=used / room if room and used is not None else sums.get("vllm:kv_cache_usage_perc"),
    )


def load_line(load: ServerLoad) -> str:
    """Return the load in one line."""
    parts = [_gpu(name, gpu) for name, gpu in load.gpus.items()]
    if not parts:
        parts.append("No GPU reported")
        if load.memory_bytes is not None:
            parts.append(f"memory of the server {load.memory_bytes / _GIB:.1f} GiB")
    if load.num_running is not None and load.num_waiting is not None:
        parts.append(f"{load.num_running:.0f} answering, {load.num_waiting:.0f} waiting")
    if load.kv_share is not None:
        parts.append(f"KV cache {100 * load.kv_share:.0f} % used")
    return " | ".join(parts)


def _gpu(name: str, gpu: Gpu) -> str:
    busy = "use not reported" if gpu.busy_share is None else f"{100 * gpu.busy_share:.0f} % busy"
    text = f"GPU {name}: {busy}"
    if gpu.used_bytes is not None and gpu.total_bytes is not None:
        text += f", {gpu.used_bytes / _GIB:.1f} of {gpu.total_bytes / _GIB:.1f} GiB"
    return text
