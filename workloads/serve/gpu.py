"""How busy and how full the GPU of a server is, for its page of metrics.

Memory is the driver's own count (what every process on the GPU holds), by torch. Busy is NVML's:
the share of the last sample period in which a kernel ran, by ctypes, so that no package is needed.
https://docs.nvidia.com/deploy/nvml-api/ (2026-11-21).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from workloads.common.log import log

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


def reader(device: Any, library: Any = None) -> Callable[[], Mapping[str, GpuUse]]:
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
