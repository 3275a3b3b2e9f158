"""What the metrics page says of a GPU, with the driver's library and torch as stand-ins."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from workloads.load.client import Gpu, read_metrics
from workloads.serve import metrics
from workloads.serve.metrics import ServeMetrics

GIB = 2**30
UUID = "f3c5e3a2-0000-1111-2222-333344445555"


class Driver:
    """NVML with one GPU; `code` is what it answers about its use."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.asked: list[bytes] = []

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        self.asked.append(uuid)
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: Any, use: Any) -> int:
        ctypes.cast(use, ctypes.POINTER(metrics._Utilization)).contents.gpu = 87
        return self.code


def page(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> str:
    properties = SimpleNamespace(uuid=UUID)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (40 * GIB, 140 * GIB))
    read = metrics.gpu_reader(torch.device("cuda", 1), driver)
    return ServeMetrics(lambda: None, lambda: 0, read).text().decode()  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _no_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's gauges are of no matter here."""
    monkeypatch.setattr("workloads.serve.metrics.Gauge", lambda *_, **__: _Ignored())


class _Ignored:
    def set_function(self, read: Any) -> None:
        pass


@pytest.mark.feature("S000-53")
def test_a_gpu_shows_its_use_and_the_memory_that_every_process_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Driver()
    text = page(monkeypatch, driver)
    # As the chat page reads it.
    seen = Gpu(busy_share=0.87, used_bytes=100 * GIB, total_bytes=140 * GIB)
    assert read_metrics(text).gpus == {"1": seen}
    assert driver.asked == [f"GPU-{UUID}".encode()]


def test_a_driver_that_does_not_tell_the_use_leaves_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    not_supported = 3
    text = page(monkeypatch, Driver(not_supported))
    assert "serve_gpu_utilization_ratio" not in text
    assert "serve_gpu_memory_used_bytes" in text


def test_a_cpu_has_no_gpu_gauges() -> None:
    assert metrics.gpu_reader(torch.device("cpu"))() == {}
