"""Runs are written as MLflow's file store lays them out, read back as its reader reads them.

The reader here follows mlflow/store/tracking/file_store.py at 001cc178: names of folders, required
keys of meta.yaml, and metric lines of two or three fields.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.clients.errors import JobsError
from infra.reports.runs.mlflow_store import export
from tests.unit.runs.folders import runs, write_run

NAME = re.compile(r"[/\w.\- :]*")
RUN_ID = re.compile(r"[a-zA-Z0-9][\w\-]{0,255}")


def read_store(folder: Path) -> dict[str, dict[str, Any]]:
    """Run name -> its meta, params, tags and metrics (lists of milliseconds, value, step)."""
    found: dict[str, dict[str, Any]] = {}
    for experiment in (each for each in folder.iterdir() if each.is_dir()):
        meta = yaml.safe_load((experiment / "meta.yaml").read_text())
        assert meta["experiment_id"] == experiment.name
        assert meta["lifecycle_stage"] == "active"
        for run in (each for each in experiment.iterdir() if each.is_dir() and each.name != "tags"):
            info = yaml.safe_load((run / "meta.yaml").read_text())
            assert info["run_id"] == info["run_uuid"] == run.name
            assert RUN_ID.fullmatch(run.name)
            assert info["experiment_id"] == experiment.name
            texts = {
                kind: {path.name: path.read_text() for path in (run / kind).iterdir()}
                for kind in ("params", "tags", "metrics")
            }
            assert all(NAME.fullmatch(name) for kind in texts.values() for name in kind)
            metrics = {
                name: [
                    (int(at), float(value), int(step))
                    for at, value, step in (line.split(" ") for line in text.splitlines())
                ]
                for name, text in texts["metrics"].items()
            }
            found[info["run_name"]] = {"meta": info, **texts, "metrics": metrics, "folder": run}
    return found


def test_a_run_is_read_back_with_params_metrics_tags_and_its_loss_by_step(tmp_path: Path) -> None:
    write_run(tmp_path, "2")
    write_run(tmp_path, "3", outcome="FAIL", reason="loss is NaN", losses=())
    assert export(runs(tmp_path), "local", tmp_path / "mlruns") == 2
    found = read_store(tmp_path / "mlruns")
    run = found["finetune-2"]
    assert run["params"]["train.lora.rank"] == "8"
    assert run["tags"]["mlflow.source.git.commit"] == "c" * 40
    assert run["tags"]["soperator.data_hash"] == "d" * 64
    assert [(value, step) for _, value, step in run["metrics"]["train_loss"]] == [
        (2.0, 1),
        (1.5, 2),
        (1.25, 3),
    ]
    ((at, value, step),) = run["metrics"]["train_tokens_per_s"]
    assert (value, step) == (400.0, 0)
    assert at == run["meta"]["end_time"] == 1_795_237_350_000
    assert (run["folder"] / "artifacts" / "recipe.json").is_file()
    # RunStatus: FINISHED is 3, FAILED is 4.
    assert run["meta"]["status"] == 3
    assert found["finetune-3"]["meta"]["status"] == 4


def test_a_second_export_replaces_the_first(tmp_path: Path) -> None:
    write_run(tmp_path, "2")
    for _ in range(2):
        export(runs(tmp_path), "local", tmp_path / "mlruns")
    assert list(read_store(tmp_path / "mlruns")) == ["finetune-2"]


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    write_run(tmp_path, "2")
    (tmp_path / "home" / "thesis").mkdir(parents=True)
    with pytest.raises(JobsError, match="holds thesis, which is no experiment of MLflow"):
        export(runs(tmp_path), "local", tmp_path / "home")
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["thesis"]


def test_names_of_a_record_write_nothing_beside_the_export(tmp_path: Path) -> None:
    """A record of others may name its metrics and settings as it likes."""
    outside = tmp_path / "outside"
    names = (
        f"{outside}",
        "../../../../outside",
        "..",
        ".",
        "a/b",
        "long" * 100,
        "with\x1b[2Jcolour",
    )
    recipe = {"train": {"method": "lora"}, **dict.fromkeys(names, 1)}
    metrics = dict.fromkeys(names, 1.0)
    write_run(tmp_path / "state", "2", recipe=recipe, metrics=metrics, losses=())
    (tmp_path / "mlruns").mkdir()
    assert export(runs(tmp_path / "state"), "local", tmp_path / "mlruns") == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["mlruns", "state"]
    run = read_store(tmp_path / "mlruns")["finetune-2"]
    assert len(run["metrics"]) == len(names)
    assert {"_..", "_.", "a_b", "with__2Jcolour"} <= run["metrics"].keys()
