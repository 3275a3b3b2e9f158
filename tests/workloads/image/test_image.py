"""What must hold inside the jobs' image, and so in every environment of the same lock file.

Needs nothing but pytest and the packages of the jobs: the image has only this folder of the tests.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path

import pytest

import workloads
from workloads.accept import benchmark

ROOT = Path(workloads.__file__).resolve().parents[1]
LOCK = ROOT / "requirements-workloads.lock"
LOCAL = ("--local-addr", "127.0.0.1")
_TWO_RANKS = """
import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
# One write: ranks share a pipe, and print may write its parts one by one.
os.write(1, b"total %d\\n" % int(total))
"""


@pytest.mark.feature("S001-66")
def test_every_package_has_the_version_of_the_lock() -> None:
    pins = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", LOCK.read_text(), re.MULTILINE))
    assert len(pins) > 20
    # Wheels of one platform only are absent on another.
    found = {name: metadata.version(name) for name in pins if not name.startswith("nvidia-")}
    assert found == {name: pins[name] for name in found}


@pytest.mark.feature("S001-19")
@pytest.mark.parametrize("module", ["data", "train", "evaluate", "serve", "load", "accept"])
def test_every_kind_of_job_can_be_imported(module: str) -> None:
    assert import_module(f"workloads.{module}.__main__")


@pytest.mark.feature("S001-66")
def test_torchrun_starts_ranks_that_hear_each_other(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(_TWO_RANKS)
    # By address: a container may not know its own name.
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", *LOCAL]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node=2", tmp_path / "ranks.py"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.stdout.split() == ["total", "2", "total", "2"], done.stderr


@pytest.mark.feature("S001-66")
def test_the_benchmark_says_not_run_where_there_is_no_gpu(tmp_path: Path) -> None:
    """An image that reports success on a machine without GPUs certifies nothing."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU: the benchmark measures it instead")
    result = tmp_path / "result.json"
    options = ["--mode", "health", "--config", "accept_gpu", "--platform", "gpu-h100-sxm"]
    assert benchmark.main([*options, "--output", str(result)]) != 0
    assert json.loads(result.read_text())["outcome"] != "PASS"
