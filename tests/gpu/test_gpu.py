"""Every case of `make gpu` on a CPU, tiny; and what it says where it cannot run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpu import __main__ as suite
from tests.gpu import speed

CPU = torch.device("cpu")
NAMES = [
    (part, name) for part in ("checks", "speed") for name, _ in suite.cases(part, CPU, is_tiny=True)
]
STEPS = 10


# Of one training with another setting the code is the same.
@pytest.mark.parametrize(("part", "name"), [each for each in NAMES if ", " not in each[1]])
def test_a_case_runs_on_a_few_weights(part: str, name: str) -> None:
    cases = ((each, run) for each, run in suite.cases(part, CPU, is_tiny=True) if each == name)
    ((_, result),) = suite.run(cases)
    assert result["outcome"] == "PASS", result
    if "losses" in result:
        assert len(result["losses"]) == STEPS
        assert result["tokens_per_s"] > 0
        assert result["planned_gib"] > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU; make gpu runs it on one")
@pytest.mark.parametrize(("part", "name"), NAMES)
def test_a_case_runs_on_a_gpu(part: str, name: str) -> None:
    device = torch.device("cuda")
    cases = ((each, run) for each, run in suite.cases(part, device, is_tiny=False) if each == name)
    ((_, result),) = suite.run(cases)
    assert result["outcome"] != "FAIL", result


def test_a_case_that_fails_or_does_not_fit_is_told_from_one_that_passes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails() -> dict[str, Any]:
        raise AssertionError("2 is not 3")

    def is_too_large() -> dict[str, Any]:
        raise speed.NotRunError("planned 9 bytes, 8 are free")

    cases = iter([("a", fails), ("b", is_too_large), ("c", lambda: {"x": 1})])
    found = dict(suite.run(cases))
    assert [result["outcome"] for result in found.values()] == ["FAIL", "NOT RUN", "PASS"]
    assert found["a"]["reason"] == "AssertionError: 2 is not 3"
    assert "NOT RUN b" in capsys.readouterr().out


def test_a_model_that_does_not_fit_says_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1000, 2000))
    with pytest.raises(speed.NotRunError, match=r"planned \d{11} bytes, 1000 are free"):
        speed.training(speed.LORA, torch.device("cuda"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_and_exits_with_69() -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(
        [sys.executable, "-m", "tests.gpu", "checks"],
        env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (suite.NO_GPU, "")
    assert ended.stderr == "tests.gpu: no NVIDIA GPU is here; NOT RUN\n"


def test_a_missing_or_old_package_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suite, "NEEDED", {"torch": (99, 1), "no_such_package": (), "yaml": ()})
    monkeypatch.setattr(sys, "argv", ["tests.gpu", "speed"])
    assert suite.main() == suite.NO_GPU
    said = capsys.readouterr().err.splitlines()
    assert "pip install 'torch>=99.1'" in said[0]
    assert said[1] == "tests.gpu: no_such_package is not installed: pip install 'no_such_package'"
