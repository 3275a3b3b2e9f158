"""A checkpoint of the training loop is served as the run's own end would be, however it was cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.workloads.test_train import launch
from workloads.common.exit_codes import DataError
from workloads.common.models import load_model
from workloads.common.places import Places
from workloads.recipes.reader import parse
from workloads.recipes.serve import ServeConfig
from workloads.serve import engine as row_parts
from workloads.serve.weights import Weights, find_weights

SMALL = ("train.sequence_length=1600", "train.overlong=drop", "train.max_steps=2")


def found(folder: Path, **settings: str) -> Weights:
    """What `--checkpoint FOLDER` serves."""
    config = parse(ServeConfig, {"checkpoint": str(folder), **settings}, at="serve")
    return find_weights(config, "tiny", Places())


def same(one: Path, two: Path) -> None:
    """Both files hold the same weights under the same names."""
    first, second = load_file(one), load_file(two)
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=0, atol=0)


@pytest.mark.feature("S000-57")
def test_a_checkpoint_of_an_adapter_is_the_adapter_that_its_run_ended_with(
    places: Path, run: Any, model_dir: Path
) -> None:
    """Its settings are the run's: rank and alpha are not in the slices."""
    run("prepare-data")
    assert run("train", *SMALL)[0] == 0
    folder = places / "chkpt" / "finetune" / "12"
    weights = found(folder / "checkpoint-2")
    assert weights.names == ("tiny", "tiny-tuned")
    assert weights.adapter_dir is not None
    same(
        weights.adapter_dir / "adapter_model.safetensors",
        folder / "final/adapter_model.safetensors",
    )
    base = load_model(model_dir, dtype=torch.float32, device=torch.device("cpu"))
    served, rows = row_parts.attach_adapter(base, weights.adapter_dir)
    rows.choose([True, False])
    with torch.inference_mode():
        tuned, plain = served(torch.tensor([[5, 6, 7]] * 2)).logits
    assert not torch.equal(tuned, plain)
    second = folder.rename(folder.with_name("12-2"))
    assert found(second / "checkpoint-2").names == weights.names, "a second run of the job's id"
    (places / "results" / "12").rename(places / "results" / "manual-29500")
    by_hand = second.rename(folder.with_name("manual-29500-2"))
    assert found(by_hand / "checkpoint-2").names == weights.names, "the id of a run by hand has a -"


@pytest.mark.feature("S000-57")
def test_slices_of_two_ranks_are_served_as_one_model(
    places: Path, run: Any, recipe_file: Path
) -> None:
    run("prepare-data")
    options = (*SMALL, "train.method=full", "train.strategy=fsdp", "train.dtype=bf16")
    result = launch(places, recipe_file, "13", *options)
    assert result.returncode == 0, result.stderr
    folder = places / "chkpt" / "finetune" / "13"
    assert len(list((folder / "checkpoint-2").glob("*.distcp"))) == 2
    weights = found(folder / "checkpoint-2")
    assert (weights.adapter_dir, weights.names) == (None, ("tiny",))
    same(weights.model_dir / "model.safetensors", folder / "final" / "model.safetensors")
    model = load_model(weights.model_dir, dtype=torch.float32, device=torch.device("cpu"))
    assert model(torch.tensor([[5, 6, 7]])).logits.isfinite().all()


def test_nothing_stays_of_a_checkpoint_that_is_refused(places: Path, run: Any) -> None:
    run("prepare-data")
    assert run("train", *SMALL)[0] == 0
    folder = places / "chkpt" / "finetune" / "12" / "checkpoint-2"
    with pytest.raises(DataError, match=r"serve\.tuned_name: 'tiny' is the base's name too"):
        found(folder, tuned_name="tiny")
    settings = places / "results" / "12" / "config.json"
    values = json.loads(settings.read_text())
    values["train"]["lora"]["dora"] = True
    settings.write_text(json.dumps(values))
    with pytest.raises(DataError, match=rf"{folder}: .* DoRA .*export_merged"):
        found(folder)
    assert not list((places / "results").rglob("*served-*"))


def test_a_checkpoint_that_is_damaged_or_without_its_settings_is_refused(
    places: Path, run: Any
) -> None:
    run("prepare-data")
    assert run("train", *SMALL)[0] == 0
    folder = places / "chkpt" / "finetune" / "12" / "checkpoint-2"
    settings = places / "results" / "12" / "config.json"
    text = settings.read_text()
    settings.unlink()
    with pytest.raises(DataError, match="the settings of its run are not in"):
        found(folder)
    settings.write_text(text)
    slices = next(folder.glob("*.distcp"))
    slices.write_bytes(slices.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match=f"{slices.name} is damaged; name another checkpoint"):
        found(folder)
