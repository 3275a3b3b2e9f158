"""Reads run records (schema version 1, docs/architecture.md): what a job did and how fast.

cost/ and workloads/ share this file format, not code. Does not write records.
    records, problems = load_run_records(Path(".soperator/runs/local"))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Final

from cost.load_curve import LoadCurve, parse_load_curve
from cost.record_reader import Reader, RunRecordError, check_version, read_object
from stacks.text_file import read_text

__all__ = [
    "FILE_NAME",
    "SCHEMA_VERSION",
    "Hardware",
    "Kind",
    "Outcome",
    "RunRecord",
    "RunRecordError",
    "load_run_records",
    "parse_run_record",
]

SCHEMA_VERSION: Final = 1
FILE_NAME: Final = "run_record.json"
CURVE_FILE: Final = "load.json"
"""Beside the record of a load test."""


class Kind(StrEnum):
    """What a job was for."""

    PREPARE_DATA = "prepare-data"
    TRAIN = "train"
    EVALUATE = "evaluate"
    SERVE = "serve"
    LOAD = "load"


class Outcome(StrEnum):
    """How a job ended."""

    PASS = "PASS"  # noqa: S105 (an outcome, not a password)
    FAIL = "FAIL"
    NOT_RUN = "NOT_RUN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Where a job ran: as the stack declares it, and the device that did the work."""

    platform: str | None
    preset: str | None
    device: str
    num_nodes: int
    num_gpus_declared: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One job."""

    path: str
    """File that it was read from."""
    kind: str
    """A Kind, or the name of a job of our user's own."""
    job_id: str
    job: str
    stack: str | None
    started_at: datetime
    finished_at: datetime
    outcome: Outcome
    hardware: Hardware | None
    engine: str | None
    model: str | None
    recipe: str
    metrics: Mapping[str, Decimal]
    tuned_dir: str | None = None
    """Folder of the tuned weights that the job wrote, measured or served, inside the jobs."""
    curve: LoadCurve | None = None
    """What a load test found, from load.json beside its record; None without the file."""

    @property
    def duration_s(self) -> Decimal:
        """Seconds from start to end."""
        return Decimal(int((self.finished_at - self.started_at).total_seconds()))


def load_run_records(folder: Path) -> tuple[tuple[RunRecord, ...], tuple[str, ...]]:
    """Records under the folder by path, and what is wrong with the files that are not records.

    Hidden folders are left out: an interrupted pull leaves its copy of a record in one.
    """
    records: list[RunRecord] = []
    problems: list[str] = []
    for path in sorted(folder.rglob(FILE_NAME)) if folder.is_dir() else []:
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        try:
            record = parse_run_record(read_text(path), str(path))
            records.append(_with_curve(record, path.with_name(CURVE_FILE)))
        except (OSError, UnicodeDecodeError) as error:
            problems.append(f"{path}: cannot be read: {error}")
        except RunRecordError as error:
            problems.append(str(error))
    return tuple(records), tuple(problems)


def parse_run_record(text: str, path: str) -> RunRecord:
    """The record in the text; `path` names it in errors."""
    document = read_object(text, path)
    check_version(document, path, SCHEMA_VERSION)
    reader = Reader(document, path)
    started_at, finished_at = reader.time("started_at"), reader.time("finished_at")
    if finished_at < started_at:
        reader.refuse("finished_at", f"no time before started_at ({started_at.isoformat()})")
    return RunRecord(
        path=path,
        kind=reader.text("kind"),
        job_id=reader.text("job_id"),
        job=reader.text("job"),
        stack=reader.text_or_none("stack"),
        started_at=started_at,
        finished_at=finished_at,
        outcome=_outcome(reader),
        hardware=_hardware(reader),
        engine=reader.text_or_none("engine"),
        model=reader.text_or_none("model"),
        recipe=reader.text("recipe"),
        metrics=reader.inner("metrics", "an object of numbers").numbers(),
        tuned_dir=_tuned_dir(reader),
    )


def _tuned_dir(reader: Reader) -> str | None:
    if reader.values.get("artifacts") is None:
        return None
    artifacts = reader.inner("artifacts", "an object or null")
    return artifacts.text_or_none("adapter_dir") or artifacts.text_or_none("model_dir")


def _with_curve(record: RunRecord, path: Path) -> RunRecord:
    if record.kind != Kind.LOAD or not path.is_file():
        return record
    return replace(record, curve=parse_load_curve(read_text(path), str(path)))


def _outcome(reader: Reader) -> Outcome:
    text = reader.text("outcome")
    if text not in tuple(Outcome):
        reader.refuse("outcome", f"one of {', '.join(Outcome)}")
    return Outcome(text)


def _hardware(reader: Reader) -> Hardware | None:
    if reader.values.get("hardware") is None:
        return None
    inner = reader.inner("hardware", "an object or null")
    return Hardware(
        platform=inner.text_or_none("platform"),
        preset=inner.text_or_none("preset"),
        device=inner.text("device"),
        num_nodes=inner.count("num_nodes", least=1),
        num_gpus_declared=inner.count("num_gpus_declared"),
    )
