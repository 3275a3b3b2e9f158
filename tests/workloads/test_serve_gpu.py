"""What the metrics page says of a GPU, with the driver's library and torch as stand-ins."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from workloads.load.client import read_metrics
from workloads.serve import metrics
from workloads.serve.metrics import ServeMetrics

nvml: Any = importlib.import_module("cuda.bindings.nvml")
GIB = 2**30
UUID = "f3c5e3a2-0000-1111-2222-333344445555"


class Driver:
    """NVML with one GPU; `error` is what it answers about its use."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.error = error
        self.asked: list[str] = []
        monkeypatch.setattr(nvml, "init_v2", lambda: None)
        monkeypatch.setattr(nvml, "device_get_handle_by_uuid", self.handle)
        monkeypatch.setattr(nvml, "device_get_utilization_rates", self.use)

    def handle(self, uuid: str) -> int:
        self.asked.append(uuid)
        return 1

    def use(self, handle: int) -> Any:
        if self.error is not None:
            raise self.error
        return SimpleNamespace(gpu=87)


def page(monkeypatch: pytest.MonkeyPatch) -> str:
    properties = SimpleNamespace(uuid=UUID)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (40 * GIB, 140 * GIB))
    read = metrics.gpu_reader(torch.device("cuda", 1))
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
    driver = Driver(monkeypatch)
    text = page(monkeypatch)
    # As the chat page reads it.
    seen = {
        "utilization_ratio": 0.87,
        "memory_used_bytes": 100.0 * GIB,
        "memory_total_bytes": 140.0 * GIB,
    }
    assert read_metrics(text).gpus == {"1": seen}
    assert driver.asked == [f"GPU-{UUID}"]


def test_a_driver_that_does_not_tell_the_use_leaves_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Made without its text, which the driver's library would give.
    Driver(monkeypatch, nvml.NotSupportedError.__new__(nvml.NotSupportedError))
    text = page(monkeypatch)
    assert "serve_gpu_utilization_ratio" not in text
    assert "serve_gpu_memory_used_bytes" in text


@pytest.mark.parametrize("lacks", ["libnvidia-ml.so.1", "cuda.bindings.nvml"])
def test_without_library_or_bindings_the_memory_is_left(
    lacks: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_library() -> None:
        raise RuntimeError("no libnvidia-ml.so.1")

    monkeypatch.setattr(nvml, "init_v2", no_library)
    if lacks == nvml.__name__:
        monkeypatch.setitem(sys.modules, lacks, None)
    text = page(monkeypatch)
    assert "serve_gpu_utilization_ratio" not in text
    assert "serve_gpu_memory_used_bytes" in text
    said = capsys.readouterr().err
    assert "the use of the GPU is not reported: " in said
    assert lacks in said


def test_a_cpu_has_no_gpu_gauges() -> None:
    assert metrics.gpu_reader(torch.device("cpu"))() == {}
