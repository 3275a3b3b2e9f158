"""Compiled layers: the same losses as without, and what cannot be compiled is refused."""

from __future__ import annotations

import getpass
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.another_user import Neighbour
from tests.workloads.test_train import losses
from workloads.common.exit_codes import ExitCode
from workloads.recipes.train import TrainConfig
from workloads.train import inputs

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="no g++, which torch.compile needs on a CPU"
)
SMALL = ("train.sequence_length=1600", "train.overlong=drop", "train.max_steps=3")


@needs_compiler
def test_compiled_layers_learn_what_uncompiled_ones_learn(
    places: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With adapters, checkpointing of activations and rows that are padded to one shape."""
    from torch._dynamo.utils import counters

    run("prepare-data")
    options = (*SMALL, "train.gradient_checkpointing=true")
    assert run("train", *options)[0] == 0
    monkeypatch.setenv("SLURM_JOB_ID", "13")
    counters.clear()
    code, record = run("train", *options, "train.compile=true")
    assert code == 0, record
    assert losses(places, "13") == pytest.approx(losses(places), rel=1e-4)
    assert counters["stats"]["unique_graphs"] >= 1, "nothing was compiled"
    assert record["metrics"]["padding_positions_percent"] > 0, "rows keep one shape"


def test_a_node_without_a_compiler_is_told_before_the_model_is_read(
    places: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("prepare-data")
    monkeypatch.setattr(inputs, "which", lambda name: None)
    code, record = run("train", "train.compile=true")
    assert code == ExitCode.BAD_CONFIG
    assert "train.compile: there is no C++ compiler" in record["reason"]


@pytest.mark.parametrize(
    ("made", "whose"),
    [
        ("mkdir -m 777 NAME", r"is of nobody \(uid 65534\), not of root"),
        ("ln -s /nowhere/at/all NAME", "is a link of nobody .* to /nowhere/at/all; remove it: rm"),
        ("touch NAME", r"is of nobody \(uid 65534\)"),
    ],
)
def test_kernels_that_another_user_may_exchange_are_not_loaded(
    places: Path,
    run: Any,
    neighbour: Neighbour,
    monkeypatch: pytest.MonkeyPatch,
    made: str,
    whose: str,
) -> None:
    """Torch would unpickle what lies in the folder that it names by the user in /tmp."""
    # Torch sets it: it is as it was after the test.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.setattr(tempfile, "tempdir", str(neighbour.folder))
    name = f"torchinductor_{getpass.getuser()}"
    neighbour.run(made.replace("NAME", name))
    run("prepare-data")
    code, record = run("train", *SMALL, "train.compile=true")
    assert code == ExitCode.BAD_CONFIG
    assert re.search(f"{name}: {whose}", record["reason"]), record["reason"]
    assert record["reason"].endswith("or name another in TORCHINDUCTOR_CACHE_DIR")


def test_a_task_whose_rows_change_their_shape_is_not_compiled(places: Path, run: Any) -> None:
    options = ("train.task=text_classification", "train.method=full", "train.compile=true")
    code, record = run("train", *options)
    assert code == ExitCode.BAD_CONFIG
    assert "train.compile: got true with task text_classification" in record["reason"]


@pytest.mark.parametrize(
    ("compile_", "task", "has_gpu", "has_compiler", "expected"),
    [
        (None, "causal_lm", True, True, True),
        (None, "causal_lm", True, False, False),
        (None, "causal_lm", False, True, False),
        (None, "text_classification", True, True, False),
        (False, "causal_lm", True, True, False),
        (True, "causal_lm", False, False, True),
    ],
)
def test_layers_are_compiled_on_a_gpu_unless_the_recipe_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
    compile_: bool | None,
    task: Any,
    has_gpu: bool,
    has_compiler: bool,
    expected: bool,
) -> None:
    monkeypatch.setattr(inputs, "which", lambda name: f"/bin/{name}" if has_compiler else None)
    config = TrainConfig(dataset="x", max_steps=1, learning_rate=1, task=task, compile=compile_)
    assert inputs.compiles_layers(config, has_gpu=has_gpu) == expected
