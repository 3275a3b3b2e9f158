"""Runs as a folder that MLflow reads, written without mlflow.

Owns the layout of MLflow's file store, read from mlflow/store/tracking/file_store.py of
github.com/mlflow/mlflow at 001cc178 (2026-11-21); MLflow 3.17.2 read it back on that day. Newer
ones want MLFLOW_ALLOW_FILE_STORE=true for it, or `mlflow migrate-filestore` into a database.
    <experiment id>/meta.yaml
    <experiment id>/<run id>/meta.yaml, params/<name>, tags/<name>, artifacts/
    <experiment id>/<run id>/metrics/<name>: lines of `milliseconds value step`
A run has the same id at every export, so that a second one replaces the first.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import yaml

from infra.clients.errors import JobsError
from infra.jobs.records import LOSS_CURVE, losses
from infra.reports.runs.run import RECIPE, Run, plain

_META: Final = "meta.yaml"
_MARK: Final = "soperator.stack"
_LONGEST_PARAM: Final = 6000
"""MLflow refuses a longer one (mlflow/utils/validation.py, MAX_PARAM_VAL_LENGTH)."""
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_.\-: ]")
"""What no name may hold (mlflow/utils/validation.py), and `/`, which MLflow reads as a folder."""
_LONGEST_NAME: Final = 250
"""MLflow refuses a longer one (MAX_ENTITY_KEY_LENGTH)."""
# RunStatus of mlflow/protos/service.proto.
_STATUS: Final = {"PASS": 3, "FAIL": 4, "NOT_RUN": 5}
_SOURCE_LOCAL: Final = 4
_FILES: Final = ("run_record.json", RECIPE, LOSS_CURVE, "config.json", "plan.json", "load.json")


def export(runs: Sequence[Run], stack: str, folder: Path) -> int:
    """Writes the runs as one experiment named after the stack; the number of runs written."""
    _check_folder(folder)
    experiment_id = str(int(hashlib.sha256(stack.encode()).hexdigest()[:15], 16))
    experiment = folder / experiment_id
    try:
        experiment.mkdir(parents=True, exist_ok=True)
        began = min((run.record.started_at for run in runs), default=None)
        ended = max((run.record.finished_at for run in runs), default=None)
        _write_yaml(
            experiment / _META,
            {
                "artifact_location": experiment.resolve().as_uri(),
                "creation_time": None if began is None else _ms(began),
                "experiment_id": experiment_id,
                "last_update_time": None if ended is None else _ms(ended),
                "lifecycle_stage": "active",
                "name": stack,
            },
        )
        _write_texts(experiment / "tags", {_MARK: stack})
        for run in runs:
            _write_run(run, stack, experiment)
    except OSError as error:
        raise JobsError(
            f"{folder}: {error.strerror or error}; runs that are there are whole: free space or "
            "give another folder, and export again"
        ) from error
    return len(runs)


def run_id(run: Run, stack: str) -> str:
    """MLflow's id of the run: 32 hex digits, the same at every export."""
    text = f"{stack}\n{run.record.job_id}\n{run.record.started_at.isoformat()}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _check_folder(folder: Path) -> None:
    """Refuses a folder of something else: MLflow takes every folder in it for an experiment."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise JobsError(f"{folder}: is a file; give a folder that is new, or one of an export")
    for each in folder.iterdir():
        if each.is_dir() and not each.name.startswith(".") and not (each / _META).is_file():
            if each.name == "models":  # of MLflow's model registry
                continue
            raise JobsError(
                f"{folder}: holds {each.name}, which is no experiment of MLflow; give a folder "
                "that is new, empty, or of an earlier export"
            )


def _write_run(run: Run, stack: str, experiment: Path) -> None:
    record, identity = run.record, run_id(run, stack)
    target = experiment / identity
    part = experiment / f".{identity}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    name = f"{record.job}-{run.name}"
    _write_yaml(
        part / _META,
        {
            "artifact_uri": (target.resolve() / "artifacts").as_uri(),
            "end_time": _ms(record.finished_at),
            "entry_point_name": "",
            "experiment_id": experiment.name,
            "lifecycle_stage": "active",
            "run_id": identity,
            "run_name": name,
            "run_uuid": identity,
            "source_name": "",
            "source_type": _SOURCE_LOCAL,
            "source_version": "",
            "start_time": _ms(record.started_at),
            "status": _STATUS[record.outcome.value],
            "tags": [],
            "user_id": "soperator",
        },
    )
    _write_texts(part / "params", _params(run))
    _write_texts(part / "tags", _tags(run, stack, name))
    _write_texts(part / "metrics", _metrics(run))
    artifacts = part / "artifacts"
    artifacts.mkdir()
    for file in _FILES:
        if (run.folder / file).is_file():
            shutil.copy2(run.folder / file, artifacts / file)
    shutil.rmtree(target, ignore_errors=True)
    part.replace(target)


def _params(run: Run) -> dict[str, str]:
    values: dict[str, Any] = dict(run.settings)
    values |= {"recipe": run.record.recipe, "world_size": run.world_size}
    texts = {
        key: each if isinstance(each, str) else json.dumps(each) for key, each in values.items()
    }
    return {key: text for key, text in texts.items() if len(text) <= _LONGEST_PARAM}


def _tags(run: Run, stack: str, name: str) -> dict[str, str]:
    known = plain(run)
    names = ("job", "job_id", "kind", "outcome", "reason", "model", "method", "code_hash")
    names += ("data_hash", "preset", "device", "num_nodes", "usd", "usd_from", "reproduces")
    tags = {f"soperator.{each}": str(known[each]) for each in names if known[each] is not None}
    tags |= {"mlflow.runName": name, _MARK: stack}
    if run.git_revision is not None:
        tags["mlflow.source.git.commit"] = run.git_revision
    return tags


def _metrics(run: Run) -> dict[str, str]:
    """Every metric at the run's end, and the loss by step; no step has a time of its own."""
    at = _ms(run.record.finished_at)
    texts = {name: f"{at} {float(value)!r} 0\n" for name, value in run.record.metrics.items()}
    curves = {"train_loss": run.losses, "eval_loss": losses(run.folder, "eval_loss")}
    for name, points in curves.items():
        if points:
            texts[name] = "".join(f"{at} {loss!r} {step}\n" for step, loss in points)
    return texts


def _write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / _file_name(name)).write_text(text, encoding="utf-8")


def _file_name(name: str) -> str:
    """A name that MLflow takes and that stays in its folder, whoever wrote the record."""
    plain = _NO_NAME.sub("_", name)[:_LONGEST_NAME]
    return plain if plain.strip(". ") else f"_{plain}"[:_LONGEST_NAME]


def _write_yaml(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(yaml.safe_dump(dict(values), default_flow_style=False), encoding="utf-8")


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
