"""What a job says of the CPU that it computes on."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from workloads.common import hardware
from workloads.evaluate.__main__ import main as evaluate
from workloads.job import run_job
from workloads.serve.__main__ import main as serve
from workloads.serve.__main__ import recipe_arguments
from workloads.train.inputs import train

BF16 = "bf16 is asked for, and this CPU has no instructions for it"
Has = Callable[..., None]
FP16 = "fp16 is asked for, and this CPU has no instructions for it"


@pytest.fixture
def has(monkeypatch: pytest.MonkeyPatch) -> Has:
    """Makes this machine one without GPU, whose CPU has these instructions and no others."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def only(*names: str) -> None:
        found = {"architecture": "x86_64", "amx_bf16": False, **dict.fromkeys(names, True)}
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found)

    return only


@pytest.mark.parametrize(
    ("dtype", "instructions", "said"),
    [
        ("bf16", ("avx2",), BF16),
        ("bf16", ("avx2", "avx512_f", "avx512_fp16"), BF16),
        ("bf16", ("avx2", "avx512_f", "avx512_bf16"), None),
        ("bf16", ("amx_bf16",), None),
        ("bf16", ("neon", "bf16"), None),
        ("fp16", ("avx512_f", "avx512_bf16"), FP16),
        ("fp16", ("avx512_fp16",), None),
        ("fp16", ("amx_fp16",), None),
        ("fp16", ("neon", "fp16_arith"), None),
        ("fp32", (), None),
    ],
)
def test_a_type_that_the_cpu_has_no_instructions_for_is_said_with_its_cost(
    dtype: str,
    instructions: tuple[str, ...],
    said: str | None,
    has: Has,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A recipe of one's own has bf16 by default: it ran at an eighth of the speed, in silence."""
    has(*instructions)
    assert hardware.detect_for(dtype, remedy="train.dtype: fp32").device == "cpu"
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (said is not None)
    for line in lines:
        assert f"{said}" in line
        assert "of fp32's speed (" in line
        assert "set train.dtype: fp32, " in line


def test_a_gpu_is_not_told_of_the_cpu_beside_it(
    has: Has, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    has("avx2")
    monkeypatch.setattr(hardware, "device_name", lambda: "NVIDIA H100 80GB HBM3")
    assert hardware.detect_for("bf16", remedy="").device == "NVIDIA H100 80GB HBM3"
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="/proc/cpuinfo names x86's so")
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_what_is_said_of_this_machine_is_what_its_kernel_knows(
    dtype: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    flags = set(Path("/proc/cpuinfo").read_text(encoding="ascii").split())
    hardware.detect_for(dtype, remedy="x")
    is_slow = not flags & {f"avx512_{dtype}", f"amx_{dtype}", "avx_ne_convert"}
    assert ("has no instructions" in capsys.readouterr().err) == is_slow


def test_training_evaluation_and_serving_say_it_at_their_start(
    recipe_file: Path,
    places: Path,
    has: Has,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    has("avx2")
    (places / "data" / "prepared").mkdir()
    adapter = places / "adapter"
    adapter.mkdir()

    class StartedError(RuntimeError):
        pass

    def started(*_: object) -> None:
        raise StartedError

    task = SimpleNamespace(data_file=None, digest="", eval_digest="")
    for name in ("find_inputs", "checked_plan", "choose_strategy", "check_node"):
        answer = (None, None) if name == "find_inputs" else None
        monkeypatch.setattr(f"workloads.train.inputs.{name}", lambda *_, _is=answer, **__: _is)
    monkeypatch.setattr("workloads.train.inputs.open_task", lambda *_, **__: task)
    monkeypatch.setattr("workloads.train.inputs.refuse_other_rows", started)
    monkeypatch.setattr("workloads.evaluate.__main__.context", started)
    words = ["--recipe", str(recipe_file)]
    adapted = ["--set", f"evaluate.adapter={adapter}"]
    job = {
        "train.dtype": (train, words),
        "evaluate.dtype": (evaluate, [*words, *adapted]),
        "serve.dtype": (serve, recipe_arguments(["--base", "tiny", "--set", "serve.engine=vllm"])),
    }
    for key, (main, arguments) in job.items():
        assert run_job(key.partition(".")[0], main, [*arguments, "--set", f"{key}=bf16"]) != 0
        lines = [line for line in capsys.readouterr().err.splitlines() if BF16 in line]
        assert len(lines) == 1, key
        assert f"set {key}: fp32" in lines[0]
