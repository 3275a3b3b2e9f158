"""What Prometheus reads of a server, its GPU among it, and the same numbers for the run record.

TTFT: request to first token. TPOT: (last token - first token) / (tokens - 1). GPU memory is the
driver's own count, by torch. Busy is NVML's, by the bindings that torch brings: the share of the
last sample period in which a kernel ran. https://docs.nvidia.com/deploy/nvml-api/ (2026-11-21).
"""

from __future__ import annotations

import contextlib
import importlib
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from workloads.common.log import log
from workloads.serve.scheduler import Load

_GPU_GAUGES = {
    "utilization_ratio": "Share of time in which a kernel ran.",
    "memory_used_bytes": "GPU memory that any process holds.",
    "memory_total_bytes": "GPU memory there is.",
}
GpuUses = Mapping[str, Mapping[str, float]]
"""By GPU and gauge; a part of a GPU (MIG) has no `utilization_ratio`."""


def gpu_reader(device: Any) -> Callable[[], GpuUses]:
    """Return what reads the GPU that serves; nothing is read on a CPU."""
    if device.type != "cuda":
        return dict
    import torch

    index = torch.cuda.current_device() if device.index is None else device.index
    handle, nvml = None, None
    try:
        nvml = importlib.import_module("cuda.bindings.nvml")  # an older torch brings none
        nvml.init_v2()
        uuid = torch.cuda.get_device_properties(index).uuid
        handle = nvml.device_get_handle_by_uuid(f"GPU-{uuid}")
    except Exception as error:  # NvmlError derives from nothing else
        log(f"the use of the GPU is not reported: {error}")

    def read() -> GpuUses:
        free, total = torch.cuda.mem_get_info(index)
        use = {"memory_used_bytes": float(total - free), "memory_total_bytes": float(total)}
        if nvml is not None and handle is not None:
            with contextlib.suppress(nvml.NvmlError):
                use["utilization_ratio"] = nvml.device_get_utilization_rates(handle).gpu / 100
        return {str(index): use}

    return read


_TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_TPOT_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1)
_KEPT = 10_000
"""Requests whose times the run record's percentiles come from: the last ones."""


class ServeMetrics:
    """Counters of one server."""

    def __init__(
        self,
        load: Callable[[], Load],
        memory_bytes: Callable[[], int],
        gpus: Callable[[], GpuUses] = dict,
    ) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._read_gpus = gpus
        options: dict[str, Any] = {"registry": self._registry, "namespace": "serve"}
        self._requests = Counter(
            "requests", "Requests by outcome.", ["model", "outcome"], **options
        )
        self._prompt_tokens = Counter("prompt_tokens", "Prompt tokens.", ["model"], **options)
        self._output_tokens = Counter("output_tokens", "Written tokens.", ["model"], **options)
        self._ttft = Histogram(
            "time_to_first_token_seconds",
            "From the request to its first token.",
            ["model"],
            buckets=_TTFT_BUCKETS,
            **options,
        )
        self._tpot = Histogram(
            "time_per_output_token_seconds",
            "Mean time between the tokens of an answer after its first.",
            ["model"],
            buckets=_TPOT_BUCKETS,
            **options,
        )
        for name, text, read in (
            ("running_requests", "Answers being written.", lambda: load().num_running),
            ("waiting_requests", "Requests that wait for a row.", lambda: load().num_waiting),
            ("kv_cache_used_tokens", "Tokens in the KV cache.", lambda: load().kv_used_tokens),
            ("kv_cache_tokens", "Room of the KV cache.", lambda: load().kv_total_tokens),
            ("memory_bytes", "GPU memory in use; on CPU the process's.", memory_bytes),
        ):
            Gauge(name, text, **options).set_function(read)
        self._ttfts_s: deque[float] = deque(maxlen=_KEPT)
        self._tpots_s: deque[float] = deque(maxlen=_KEPT)
        self.num_finished = self.num_failed = self.num_refused = 0
        self._num_output_tokens = 0

    def text(self) -> bytes:
        """Return the page that Prometheus reads."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges of GPUs, which the registry asks for; none without a GPU."""
        uses = self._read_gpus()
        for name, text in _GPU_GAUGES.items():
            family = GaugeMetricFamily(f"serve_gpu_{name}", text, labels=["gpu"])
            for gpu, use in uses.items():
                if name in use:
                    family.add_metric([gpu], use[name])
            if family.samples:
                yield family

    def refused(self, model: str) -> None:
        """Count a request that got no row."""
        self.num_refused += 1
        self._requests.labels(model, "refused").inc()

    def ended(self, watch: Watch, outcome: str) -> None:
        """Count an answer: finished, failed or cancelled."""
        self._requests.labels(watch.model, outcome).inc()
        self._prompt_tokens.labels(watch.model).inc(watch.num_prompt_tokens)
        self._output_tokens.labels(watch.model).inc(watch.num_tokens)
        self._num_output_tokens += watch.num_tokens
        self.num_finished += outcome == "finished"
        self.num_failed += outcome == "failed"
        if watch.ttft_s is not None:
            self._ttft.labels(watch.model).observe(watch.ttft_s)
            self._ttfts_s.append(watch.ttft_s)
        if watch.tpot_s is not None:
            self._tpot.labels(watch.model).observe(watch.tpot_s)
            self._tpots_s.append(watch.tpot_s)

    def record(self) -> dict[str, float | int]:
        """Return the run record's metrics."""
        values: dict[str, float | int] = {
            "num_answers": self.num_finished,
            "num_failed_answers": self.num_failed,
            "num_refused_requests": self.num_refused,
            "num_output_tokens": self._num_output_tokens,
        }
        for name, seconds in (("ttft", self._ttfts_s), ("tpot", self._tpots_s)):
            if seconds:
                ordered = sorted(seconds)
                values[f"median_{name}_ms"] = 1000 * statistics.median(ordered)
                values[f"p99_{name}_ms"] = 1000 * ordered[math.ceil(0.99 * len(ordered)) - 1]
        return values


class Watch:
    """When the tokens of one answer came."""

    def __init__(self, metrics: ServeMetrics, model: str, num_prompt_tokens: int) -> None:
        self._metrics = metrics
        self.model = model
        self.num_prompt_tokens = num_prompt_tokens
        self.num_tokens = 0
        self._began_s = time.monotonic()
        self._first_s: float | None = None
        self._last_s = self._began_s
        self._is_over = False

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token; None before it."""
        return None if self._first_s is None else self._first_s - self._began_s

    @property
    def tpot_s(self) -> float | None:
        """Seconds a token after the first; None for fewer than two."""
        if self._first_s is None or self.num_tokens < 2:
            return None
        return (self._last_s - self._first_s) / (self.num_tokens - 1)

    def saw(self, num_tokens: int) -> None:
        if num_tokens:
            self._last_s = time.monotonic()
            self._first_s = self._first_s or self._last_s
            self.num_tokens += num_tokens

    def end(self, outcome: str) -> None:
        """Count the answer once."""
        if not self._is_over:
            self._is_over = True
            self._metrics.ended(self, outcome)
