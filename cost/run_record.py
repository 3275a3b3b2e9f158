"""Reads run records (schema version 1, docs/architecture.md): what a job did and how fast.

cost/ and workloads/ share this file format, not code. Does not write records.
    records, problems = load_run_records(Path(".soperator/runs/local"))
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final, NoReturn, TypeGuard

SCHEMA_VERSION: Final = 1
FILE_NAME: Final = "run_record.json"
_LEAST: Final = -30
_MOST: Final = 15
"""Powers of ten between which a measurement lies that is not 0."""


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


class RunRecordError(ValueError):
    """A file that is not a run record of this schema."""


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
            records.append(parse_run_record(path.read_text(encoding="utf-8"), str(path)))
        except (OSError, UnicodeDecodeError) as error:
            problems.append(f"{path}: cannot be read: {error}")
        except RunRecordError as error:
            problems.append(str(error))
    return tuple(records), tuple(problems)


def parse_run_record(text: str, path: str) -> RunRecord:
    """The record in the text; `path` names it in errors."""
    try:
        document: object = json.loads(
            text, parse_float=Decimal, parse_int=Decimal, parse_constant=_refuse_constant
        )
    except (json.JSONDecodeError, RecursionError, RunRecordError) as error:
        raise RunRecordError(f"{path}: not valid JSON: {error}") from error
    if not _is_map(document):
        raise RunRecordError(f"{path}: expected one JSON object")
    version = document.get("schema_version")
    if isinstance(version, bool) or version != SCHEMA_VERSION:
        raise RunRecordError(
            f"{path}: schema_version: got {version}, expected {SCHEMA_VERSION}; "
            "run the job again with this version, or read it with the one that wrote it"
        )
    reader = _Reader(document, path)
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
        outcome=reader.outcome(),
        hardware=reader.hardware(),
        engine=reader.text_or_none("engine"),
        model=reader.text_or_none("model"),
        recipe=reader.text("recipe"),
        metrics=reader.metrics(),
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the values of one object; errors name the file and the key."""

    values: Mapping[str, object]
    path: str
    prefix: str = ""

    def refuse(self, key: str, wanted: str) -> NoReturn:
        got = json.dumps(self.values.get(key), default=str)[:60]
        raise RunRecordError(f"{self.path}: {self.prefix}{key}: expected {wanted}, got {got}")

    def text(self, key: str) -> str:
        value = self.values.get(key)
        if not isinstance(value, str) or not value:
            self.refuse(key, "text")
        return value

    def text_or_none(self, key: str) -> str | None:
        return None if self.values.get(key) is None else self.text(key)

    def count(self, key: str, least: int = 0) -> int:
        value = self.values.get(key)
        if not isinstance(value, Decimal) or value.adjusted() > _MOST or value % 1 or value < least:
            self.refuse(key, f"a whole number of {least} or more")
        return int(value)

    def time(self, key: str) -> datetime:
        text = self.text(key)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.refuse(key, "a time such as 2026-11-21T05:00:00Z")
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

    def outcome(self) -> Outcome:
        text = self.text("outcome")
        if text not in tuple(Outcome):
            self.refuse("outcome", f"one of {', '.join(Outcome)}")
        return Outcome(text)

    def hardware(self) -> Hardware | None:
        value = self.values.get("hardware")
        if value is None:
            return None
        if not _is_map(value):
            self.refuse("hardware", "an object or null")
        inner = _Reader(value, self.path, "hardware.")
        return Hardware(
            platform=inner.text_or_none("platform"),
            preset=inner.text_or_none("preset"),
            device=inner.text("device"),
            num_nodes=inner.count("num_nodes", least=1),
            num_gpus_declared=inner.count("num_gpus_declared"),
        )

    def metrics(self) -> Mapping[str, Decimal]:
        value = self.values.get("metrics")
        if not _is_map(value):
            self.refuse("metrics", "an object of numbers")
        inner = _Reader(value, self.path, "metrics.")
        for key, metric in value.items():
            if not isinstance(metric, Decimal) or not metric.is_finite():
                inner.refuse(key, "a number")
            if metric and not _LEAST <= metric.adjusted() <= _MOST:
                inner.refuse(key, f"0 or a size from 1e{_LEAST} to 1e{_MOST}")
        return MappingProxyType(
            {key: metric for key, metric in value.items() if isinstance(metric, Decimal)}
        )


def _refuse_constant(name: str) -> NoReturn:
    raise RunRecordError(f"{name} is not a number that JSON knows")


def _is_map(value: object) -> TypeGuard[Mapping[str, object]]:
    return isinstance(value, Mapping)
