"""GPUs are sampled while ranks run, into the job's results, and no longer."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from workloads.common import launch

LINE = "0, 91, 61000, 81559, 612.31, 700.00"


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place `results` of job 12, on a node whose nvidia-smi shows one GPU."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{LINE}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("SOPERATOR_PLACE_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    return tmp_path / "results"


@pytest.mark.feature("S002-67")
def test_a_sample_lies_among_the_results_and_sampling_ends_with_the_block(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Spy(subprocess.Popen[bytes]):
        def __init__(self, *words: Any, **options: Any) -> None:
            super().__init__(*words, **options)
            started.append(self)

    monkeypatch.setattr(launch.subprocess, "Popen", Spy)
    path = results / "12" / f"gpu_{socket.gethostname()}.csv"
    with launch.sampled():
        give_up_at = time.monotonic() + 60
        while not (path.exists() and "end," in path.read_text()):
            assert time.monotonic() < give_up_at, "no sample came"
            time.sleep(0.02)
    first = path.read_text().splitlines()[0]
    assert first == f"gpu,{socket.gethostname()},0,91,61000,81559,612.31,700.00"
    (script,) = started
    assert script.poll() is not None


def test_a_node_without_nvidia_smi_writes_nothing(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with launch.sampled():
        pass
    assert not results.exists()
