"""What Prometheus reads of a server, its GPU among it, and the same numbers for the run record.

TTFT: request to first token. TPOT: (last token - first token) / (tokens - 1). GPU memory is the
driver's own count, by torch. Busy is NVML's: the share of the last sample period in which a kernel
ran, by ctypes, so that no package is needed. https://docs.nvidia.com/deploy/nvml-api/ (2026-11-21).
"""

from __future__ import annotations

import ctypes
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from workloads.common.log import log
from workloads.serve.scheduler import Load

_LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """One GPU at one moment."""

    used_bytes: int
    total_bytes: int
    busy_share: float | None
    """None: the driver does not say, as on a part of a GPU (MIG)."""


class _Utilization(ctypes.Structure):
    """nvmlUtilization_t: percent of time."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Nvml:
    """The driver's management library, opened once."""

    def __init__(self, library: Any) -> None:
        self._library = library
        _check(library.nvmlInit_v2(), "nvmlInit")

    def handle(self, uuid: str) -> ctypes.c_void_p:
        """Return the GPU that has this UUID, `GPU-...`."""
        handle = ctypes.c_void_p()
        code = self._library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle))
        _check(code, f"nvmlDeviceGetHandleByUUID {uuid}")
        return handle

    def busy_share(self, handle: ctypes.c_void_p) -> float | None:
        """Return the share of time that it worked; None where the driver does not say."""
        use = _Utilization()
        code = self._library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(use))
        return use.gpu / 100 if code == _SUCCESS else None


class GpuCollector:
    """What prometheus_client asks when the page is read."""

    def __init__(self, read: Callable[[], Mapping[str, GpuUse]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges; none without a GPU."""
        uses = self._read()
        busy = {name: use.busy_share for name, use in uses.items() if use.busy_share is not None}
        yield from _gauge("utilization_ratio", "Share of time in which a kernel ran.", busy)
        used = {name: float(use.used_bytes) for name, use in uses.items()}
        yield from _gauge("memory_used_bytes", "GPU memory that any process holds.", used)
        total = {name: float(use.total_bytes) for name, use in uses.items()}
        yield from _gauge("memory_total_bytes", "GPU memory there is.", total)


def gpu_reader(device: Any, library: Any = None) -> Callable[[], Mapping[str, GpuUse]]:
    """Return what reads the GPU that serves; nothing is read on a CPU."""
    if device.type != "cuda":
        return dict
    import torch

    index = torch.cuda.current_device() if device.index is None else device.index
    busy_share = _busy_reader(f"GPU-{torch.cuda.get_device_properties(index).uuid}", library)

    def read() -> Mapping[str, GpuUse]:
        free, total = torch.cuda.mem_get_info(index)
        use = GpuUse(used_bytes=total - free, total_bytes=total, busy_share=busy_share())
        return {str(index): use}

    return read


def _busy_reader(uuid: str, library: Any) -> Callable[[], float | None]:
    try:
        nvml = Nvml(ctypes.CDLL(_LIBRARY) if library is None else library)
        handle = nvml.handle(uuid)
    except OSError as error:
        log(f"the use of the GPU is not reported: {error}")
        return lambda: None
    return lambda: nvml.busy_share(handle)


def _gauge(name: str, text: str, values: Mapping[str, float]) -> Iterator[Metric]:
    if values:
        family = GaugeMetricFamily(f"serve_gpu_{name}", text, labels=["gpu"])
        for gpu, value in values.items():
            family.add_metric([gpu], value)
        yield family


def _check(code: int, what: str) -> None:
    if code != _SUCCESS:
        raise OSError(f"{what}: NVML error {code}")


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
        gpus: Callable[[], Mapping[str, GpuUse]] = dict,
    ) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(GpuCollector(gpus))
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

    def watch(self, model: str, num_prompt_tokens: int) -> Watch:
        """Return the clock of one answer."""
        return Watch(self, model, num_prompt_tokens)

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
        """Note tokens that came."""
        if num_tokens:
            self._last_s = time.monotonic()
            self._first_s = self._first_s or self._last_s
            self.num_tokens += num_tokens

    def end(self, outcome: str) -> None:
        """Count the answer once."""
        if not self._is_over:
            self._is_over = True
            self._metrics.ended(self, outcome)
