"""Every case of `make gpu` on a CPU, tiny; and what it says where it cannot run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.gpu import __main__ as suite
from tests.gpu import speed
from tests.nightly import at_night

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
NAMES = [
    (part, name) for part in ("checks", "speed") for name, _ in suite.cases(part, CPU, is_tiny=True)
]
STEPS = 10


# Of one training with another setting the code is the same; vLLM needs a GPU.
@pytest.mark.parametrize(
    ("part", "name"),
    [at_night(*each) if "killed" in each[1] else each for each in NAMES if ", " not in each[1]],
)
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

    cases = [("a", fails), ("b", is_too_large), ("c", lambda: {"x": 1})]
    found = dict(suite.run(iter(cases)))
    assert [result["outcome"] for result in found.values()] == ["FAIL", "NOT RUN", "PASS"]
    assert found["a"]["reason"] == "AssertionError: 2 is not 3"
    assert "NOT RUN b" in capsys.readouterr().out
    late = dict(suite.run(iter(cases), ends_s=0.0))
    assert [result["outcome"] for result in late.values()] == ["NOT RUN"] * 3
    assert late["a"]["reason"] == "no time is left; run it alone: --only 'a'"


_ALONE = """
import importlib.machinery, sys
from pathlib import Path
OTHERS = ("peft", "bitsandbytes", "pyarrow", "prometheus_client", "pytest", "tensorboard", "vllm")
Finder = importlib.machinery.PathFinder
find = Finder.find_spec
Finder.find_spec = staticmethod(
    lambda name, *rest: None if name.split(".")[0] in OTHERS else find(name, *rest)
)
import torch
from tests.gpu import __main__ as suite
assert suite._missing() == []
for part in ("checks", "speed"):
    cases = (e for e in suite.cases(part, torch.device("cpu"), is_tiny=True) if e[0] in sys.argv)
    for name, result in suite.run(cases):
        print(f"<{name}: {result['outcome']} {result.get('reason')}>", flush=True)
"""


def test_torch_and_transformers_alone_are_enough_for_what_is_not_of_adapters() -> None:
    """A crash of the import of prometheus_client, which nobody had named, ended it."""
    names = ("chunks_are_the_whole", "a_killed_run_goes_on", "LoRA r64 of 7B", "generation by 7B")
    ended = subprocess.run(
        [sys.executable, "-c", _ALONE, *names, "generation by 7B, vLLM"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    exporter = "prometheus-client is not installed: pip install 'prometheus-client'"
    assert re.findall(r"<(.*)>", ended.stdout) == [
        "chunks_are_the_whole: PASS None",
        f"a_killed_run_goes_on: NOT RUN {exporter}",
        "LoRA r64 of 7B: NOT RUN peft is not installed: pip install 'peft'",
        "generation by 7B: PASS None",
        "generation by 7B, vLLM: NOT RUN vllm is not installed: pip install 'vllm'",
    ]


def test_some_cases_measured_again_leave_the_others_of_the_same_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "RESULT", tmp_path / "gpu.json")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(
        total_memory=85_000_000_000
    ))  # fmt: skip

    def written(device: str, *results: dict[str, Any]) -> dict[str, Any]:
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: device)
        write = suite._kept("speed")
        for each in results:
            write(each)
        return json.loads(suite.RESULT.read_text())["speed"]

    written("NVIDIA H100", {"a": {"x": 1}}, {"a": {"x": 1}, "b": {"x": 2}})
    found = written("NVIDIA H100", {"b": {"x": 3}})
    assert found["cases"] == {"a": {"x": 1}, "b": {"x": 3}}
    assert (found["device"], found["memory_bytes"]) == ("NVIDIA H100", 85_000_000_000)
    assert found["versions"]["torch"] == torch.__version__.split("+")[0]
    assert written("NVIDIA H200", {"b": {"x": 4}})["cases"] == {"b": {"x": 4}}


def test_vllm_generates_as_many_tokens_of_the_same_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without vLLM, which needs a GPU: by a stand-in of its two classes."""
    seen: list[Any] = []

    class Engine:
        def __init__(self, model: str, **options: Any) -> None:
            seen.append((json.loads(Path(model, "config.json").read_text()), options))

        def generate(self, prompts: list[Any], wanted: Any) -> list[Any]:
            seen.append(prompts)
            answer = SimpleNamespace(token_ids=[0] * wanted.max_tokens)
            return [SimpleNamespace(outputs=[answer]) for _ in prompts]

    monkeypatch.setitem(
        sys.modules, "vllm", SimpleNamespace(LLM=Engine, SamplingParams=SimpleNamespace)
    )
    found = speed.vllm_generation(replace(speed.GENERATOR, is_tiny=True))
    assert [*found] == [f"tokens_per_s_at_{each}" for each in (1, 16, 64)]
    (config, options), *asked = seen
    assert (config["architectures"], config["vocab_size"]) == (["Qwen2ForCausalLM"], 512)
    assert (options["load_format"], options["max_model_len"]) == ("dummy", 12)
    assert [len(each) for each in asked] == [1, 16, 64, 1, 16, 64]
    assert asked[1][15] == {"prompt_token_ids": [*range(15, 23)]}


def test_a_model_that_does_not_fit_says_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1000, 2000))
    with pytest.raises(speed.NotRunError, match=r"planned \d{11} bytes, 1000 are free"):
        speed.training(speed.LORA, torch.device("cuda"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_and_exits_with_69() -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(
        [sys.executable, "-m", "tests.gpu", "checks"],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=False,
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
