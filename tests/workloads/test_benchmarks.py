"""Every benchmark can be run: each is imported, and takes its smallest step with a tiny model.

What they measure here means nothing; that they no longer fit the code they measure is seen here.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tests.bench
from tests.bench.training import ours, work
from tests.workloads.conftest import EXCERPT

ROOT = Path(__file__).parents[2]
MODEL = "SmolLM2-135M-Instruct"
NAMES = sorted(
    each.name
    for each in pkgutil.walk_packages(tests.bench.__path__, "tests.bench.")
    if not each.name.endswith("__main__")
)
# A cluster, an image or minutes of kills each: imported here, run by their own commands.
CLUSTERS = {"delivery", "kills", "local", "scale"}
# Options of the smallest step, and the figures that it prints.
COMMANDS = {
    "cost": ("--runs 1", ["ten_thousand_lines_s"]),
    "evaluate": ("--rows 2 --tokens 1", ["batched_vs_one_by_one", "equal_tokens"]),
}
# In this process, with less of what has no option.
SMALLER: dict[str, tuple[dict[str, Any], str, str]] = {
    "checkpoint": ({"_WIDTH": 16}, "--runs 1", "stall_share"),
    "load": ({"NUM_TOKENS": 2, "NUM_STREAMS": 2}, "--rounds 1", "2 streams:"),
    "serve": ({"NUM_TOKENS": 2}, "--rounds 1", "http_overhead_percent"),
}
# Two trainers at a time as threads: processes of their own would read torch for minutes.
TRAINING = {
    "train": ["packed_vs_bare_pytorch", "unpacked_vs_trainer_peft"],
    "train_options": [
        "packing_off",
        "gradient_checkpointing",
        "loss_in_chunks_of_64",
        "eager_attention",
    ],
}


@pytest.fixture
def cache(tmp_path: Path, model_dir: Path) -> Path:
    """What set-up brings, but for a tiny model and a few questions."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / MODEL).symlink_to(model_dir)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "bfcl").symlink_to(EXCERPT)
    return tmp_path


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """What a benchmark sets for its whole process is set back."""
    threads, interval = torch.get_num_threads(), sys.getswitchinterval()
    yield monkeypatch
    torch.set_num_threads(threads)
    sys.setswitchinterval(interval)


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_can_be_imported(name: str) -> None:
    importlib.import_module(name)


def test_every_benchmark_with_a_command_takes_a_step_here() -> None:
    commands = {
        name.removeprefix("tests.bench.")
        for name in NAMES
        if hasattr(importlib.import_module(name), "RESULT")
    }
    assert commands == COMMANDS.keys() | SMALLER.keys() | TRAINING.keys() | CLUSTERS | {"data"}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_benchmark_measures_something(name: str, cache: Path) -> None:
    options, figures = COMMANDS[name]
    done = subprocess.run(
        [sys.executable, "-m", f"tests.bench.{name}", *options.split(), "--no-write"],
        cwd=ROOT,
        env={**os.environ, "SOPERATOR_CACHE": str(cache), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    # 1: a figure misses its bound, which a tiny model on a busy machine may.
    assert done.returncode in (0, 1), done.stderr
    for figure in figures:
        assert re.search(rf"{figure} +\d", done.stdout), done.stdout + done.stderr


@pytest.mark.parametrize("name", SMALLER)
def test_a_benchmark_measures_something_smaller(
    name: str, model_dir: Path, settings: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values, options, figure = SMALLER[name]
    module = importlib.import_module(f"tests.bench.{name}")
    for key, value in values.items():
        settings.setattr(module, key, value)
    if hasattr(module, "MODEL"):
        settings.setattr(module, "MODEL", model_dir)
    settings.setattr(sys, "argv", [name, *options.split(), "--no-write"])
    assert module.main() in (0, 1)
    assert re.search(rf"{figure} +-?\d", capsys.readouterr().out)


def test_the_benchmark_of_data_measures_packing_and_the_library(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own pass is in one process here: forking takes minutes on a busy machine."""
    module = importlib.import_module("tests.bench.data")
    model = cache / "models" / MODEL
    monkeypatch.setattr(module, "MODEL", model)
    monkeypatch.setattr(module, "BFCL", EXCERPT)
    monkeypatch.setattr(module, "BFCL_CATEGORIES", ("simple_python",))
    found = module.packing(tmp_path)
    assert 0 < found["packing_percent_bfcl"] <= 100
    source = tmp_path / "chats.jsonl"
    source.write_bytes(b"".join(chat.to_line() for chat in module.chats_of(4)))
    module._write_texts(source, tmp_path / "texts.json")
    library = module._pass(module._LIBRARY, model / "tokenizer.json", tmp_path / "texts.json")
    ours = module._pass(module._OURS, model, source, tmp_path / "tokens.parquet", 1)
    assert ours.num_tokens == library.num_tokens > 0
    assert ours.cpu_s > 0
    assert library.cpu_s > 0


def test_every_trainer_begins_with_the_adapters_of_ours(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOPERATOR_CACHE", str(cache))
    trainer = ours.loop(work.Work(num_rows=8, num_steps=1), turns=None, settings={})
    torch.rand(1)  # whatever the process drew before
    theirs = [each for each in work.lora_model().parameters() if each.requires_grad]
    own = list(trainer.strategy.trained)
    assert len(own) == len(theirs) > 0
    assert all(torch.equal(*pair) for pair in zip(own, theirs, strict=True))


@pytest.mark.parametrize("name", TRAINING)
def test_every_measured_trainer_takes_its_steps(
    name: str, cache: Path, settings: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable, value in (
        ("SOPERATOR_CACHE", str(cache)),
        ("OMP_NUM_THREADS", "1"),
        ("HF_HUB_OFFLINE", "1"),
        ("TOKENIZERS_PARALLELISM", "false"),
    ):
        settings.setenv(variable, value)
    module = importlib.import_module(f"tests.bench.{name}")
    measure = module.compare.measure
    here = {"in_one_process": True}
    settings.setattr(
        module.compare, "measure", lambda *words, **named: measure(*words, **named | here)
    )
    options = ["--rows", "12", "--steps", "3", "--only", *TRAINING[name], "--no-write"]
    settings.setattr(sys, "argv", [name, *options])
    assert module.main() in (0, 1)
    said = capsys.readouterr().out
    for figure in TRAINING[name]:
        assert re.search(rf"{figure} +\d", said), said
