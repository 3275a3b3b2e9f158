"""What jobs left behind: run records, and the `load.json` of a load test (docs/contracts/jobs.md).

cost/ and workloads/ share these file formats, not code.
    records, problems = load_run_records(Path(".soperator/runs/local"))
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final, NoReturn

from cost.report.layout import rounded
from stacks.errors import UserError
from stacks.files import is_list, is_map, read_text

_LEAST: Final = -30
_MOST: Final = 15
"""Powers of ten between which a measurement lies that is not 0."""


class RunRecordError(UserError):
    """A file that is not a run record of this schema."""


def read_object(text: str, path: str) -> Mapping[str, object]:
    """The JSON object in the text, numbers as decimals; `path` names it in errors."""
    try:
        document: object = json.loads(
            text, parse_float=Decimal, parse_int=Decimal, parse_constant=_refuse_constant
        )
    except (json.JSONDecodeError, RecursionError, RunRecordError) as error:
        raise RunRecordError(f"{path}: not valid JSON: {error}") from error
    if not is_map(document):
        raise RunRecordError(f"{path}: expected one JSON object")
    return document


def check_version(document: Mapping[str, object], path: str, expected: int) -> None:
    """Refuses an object of another schema version."""
    version = document.get("schema_version")
    if isinstance(version, bool) or version != expected:
        raise RunRecordError(
            f"{path}: schema_version: got {version}, expected {expected}; "
            "run the job again with this version, or read it with the one that wrote it"
        )


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the values of one object; errors name the file and the key."""

    values: Mapping[str, object]
    path: str
    prefix: str = ""

    def refuse(self, key: str, wanted: str) -> NoReturn:
        """Raises what was expected under the key and what is there."""
        got = json.dumps(self.values.get(key), default=str)[:60]
        raise RunRecordError(f"{self.path}: {self.prefix}{key}: expected {wanted}, got {got}")

    def text(self, key: str) -> str:
        """The text, not empty."""
        value = self.values.get(key)
        if not isinstance(value, str) or not value:
            self.refuse(key, "text")
        return value

    def text_or_none(self, key: str) -> str | None:
        """The text; None where it is null or missing."""
        return None if self.values.get(key) is None else self.text(key)

    def count(self, key: str, least: int = 0) -> int:
        """The whole number, from `least`."""
        value = self.values.get(key)
        if not isinstance(value, Decimal) or value.adjusted() > _MOST or value % 1 or value < least:
            self.refuse(key, f"a whole number of {least} or more")
        return int(value)

    def time(self, key: str) -> datetime:
        """The time; UTC where it says no zone."""
        text = self.text(key)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.refuse(key, "a time such as 2026-11-21T05:00:00Z")
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

    def number(self, key: str) -> Decimal:
        """The number, 0 or of a size that a measurement has."""
        value = self.values.get(key)
        if not isinstance(value, Decimal) or not value.is_finite():
            self.refuse(key, "a number")
        if value and not _LEAST <= value.adjusted() <= _MOST:
            self.refuse(key, f"0 or a size from 1e{_LEAST} to 1e{_MOST}")
        return value

    def number_or_none(self, key: str) -> Decimal | None:
        """The number; None where it is null or missing."""
        return None if self.values.get(key) is None else self.number(key)

    def numbers(self) -> Mapping[str, Decimal]:
        """Every value of the object, all of them numbers."""
        return MappingProxyType({key: self.number(key) for key in self.values})

    def flag_or_none(self, key: str) -> bool | None:
        """True or false; None where it is null or missing."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            self.refuse(key, "true, false or null")
        return value

    def inner(self, key: str, wanted: str = "an object") -> Reader:
        """A reader of the object under the key."""
        value = self.values.get(key)
        if not is_map(value):
            self.refuse(key, wanted)
        return Reader(value, self.path, f"{self.prefix}{key}.")

    def each(self, key: str) -> tuple[Reader, ...]:
        """A reader of every object of the list under the key."""
        values = self.values.get(key)
        if not is_list(values) or not all(map(is_map, values)):
            self.refuse(key, "a list of objects")
        return tuple(
            Reader(value, self.path, f"{self.prefix}{key}[{number}].")
            for number, value in enumerate(values)
            if is_map(value)
        )


def _refuse_constant(name: str) -> NoReturn:
    raise RunRecordError(f"{name} is not a number that JSON knows")


CURVE_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What a load test was asked to keep; a bound that is None was not promised."""

    ttft_ms: Decimal | None = None
    tpot_ms: Decimal | None = None
    e2e_s: Decimal | None = None
    share: Decimal = Decimal("0.99")
    """Share of all requests that must keep every bound."""

    @property
    def is_declared(self) -> bool:
        """Whether anything is promised."""
        return any(bound is not None for bound in (self.ttft_ms, self.tpot_ms, self.e2e_s))

    @property
    def options(self) -> list[str]:
        """The bounds on tokens as `soperator cost advise --slo` takes them."""
        return [
            f"{name}={_plain(bound).replace(',', '')}"
            for name, bound in (
                ("ttft_p99_s", None if self.ttft_ms is None else self.ttft_ms / 1000),
                ("tpot_p99_ms", self.tpot_ms),
            )
            if bound is not None
        ]

    def __str__(self) -> str:
        bounds = [
            f"{name} {_plain(bound)} {unit}"
            for name, bound, unit in (
                ("TTFT", self.ttft_ms, "ms"),
                ("TPOT", self.tpot_ms, "ms"),
                ("an answer", self.e2e_s, "s"),
            )
            if bound is not None
        ]
        share = f"{_plain(self.share * 100)} % of requests"
        return f"{', '.join(bounds)} for {share}" if bounds else "no SLO"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """One load on a server and what came of it."""

    concurrency: int | None
    """Streams of a closed loop; None where requests came at a rate."""
    rate_per_s: Decimal | None
    """Intended requests a second; None for a closed loop."""
    num_requests: int
    num_ok: int
    output_tokens_per_s: Decimal
    requests_per_s: Decimal
    goodput_requests_per_s: Decimal
    """Requests a second that keep every bound."""
    keeps_slo: bool | None
    """None: nothing is promised."""
    mean_prompt_tokens: Decimal | None
    """Tokens that the server read for a request; None where it does not count them."""
    mean_output_tokens: Decimal
    p50_ttft_ms: Decimal | None
    p99_ttft_ms: Decimal | None
    p50_tpot_ms: Decimal | None
    p99_tpot_ms: Decimal | None

    @property
    def latencies(self) -> str:
        """The 99th percentiles in words."""
        known = [
            f"{name} p99 {rounded(value, Decimal(1)):,f} ms"
            for name, value in (("TTFT", self.p99_ttft_ms), ("TPOT", self.p99_tpot_ms))
            if value is not None
        ]
        return ", ".join(known) or "no answer"

    @property
    def is_feasible(self) -> bool:
        """Whether the SLO is kept; without one, whether every request was answered."""
        if not self.num_ok:
            return False
        return self.num_ok == self.num_requests if self.keeps_slo is None else self.keeps_slo


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCurve:
    """Every point of one load test, in the order of the test."""

    slo: Slo
    points: tuple[LoadPoint, ...]
    model: str | None = None
    """Name in the API that was asked; None where the file does not say."""

    @property
    def sweep(self) -> tuple[LoadPoint, ...]:
        """The closed loops, by streams: the curve."""
        closed = [each for each in self.points if each.concurrency is not None]
        return tuple(sorted(closed, key=lambda each: each.concurrency or 0))

    @property
    def operating_point(self) -> LoadPoint | None:
        """The point of the sweep with the highest tokens/s that is feasible; None: none is."""
        feasible = [each for each in self.sweep if each.is_feasible]
        return max(feasible, key=lambda each: each.output_tokens_per_s, default=None)


def parse_load_curve(text: str, path: str) -> LoadCurve:
    """The curve in the text of a load.json; `path` names it in errors."""
    document = read_object(text, path)
    check_version(document, path, CURVE_VERSION)
    reader = Reader(document, path)
    slo = reader.inner("slo")
    return LoadCurve(
        slo=Slo(
            ttft_ms=slo.number_or_none("ttft_ms"),
            tpot_ms=slo.number_or_none("tpot_ms"),
            e2e_s=slo.number_or_none("e2e_s"),
            share=slo.number("share"),
        ),
        points=tuple(_point(each) for each in reader.each("curve")),
        # Empty in the file of a test that ended before its first request.
        model=reader.text_or_none("model") if document.get("model") != "" else None,
    )


def operating_point_of(metrics: Mapping[str, Decimal]) -> LoadPoint | None:
    """The operating point in the metrics of a load test's record; None where it found none."""
    concurrency = metrics.get("operating_concurrency")
    tokens_per_s = metrics.get("operating_output_tokens_per_s")
    if not concurrency or not tokens_per_s:
        return None
    zero = Decimal(0)
    return LoadPoint(
        concurrency=int(concurrency),
        rate_per_s=None,
        num_requests=0,
        num_ok=0,
        output_tokens_per_s=tokens_per_s,
        requests_per_s=metrics.get("operating_requests_per_s", zero),
        goodput_requests_per_s=metrics.get("operating_goodput_requests_per_s", zero),
        keeps_slo=None,
        mean_prompt_tokens=metrics.get("mean_prompt_tokens"),
        mean_output_tokens=metrics.get("mean_output_tokens", zero),
        p50_ttft_ms=metrics.get("median_ttft_ms"),
        p99_ttft_ms=metrics.get("p99_ttft_ms"),
        p50_tpot_ms=metrics.get("median_tpot_ms"),
        p99_tpot_ms=metrics.get("p99_tpot_ms"),
    )


def _point(reader: Reader) -> LoadPoint:
    ttft, tpot = _spread(reader, "ttft"), _spread(reader, "tpot")
    has_streams = reader.values.get("concurrency") is not None
    return LoadPoint(
        concurrency=reader.count("concurrency", least=1) if has_streams else None,
        rate_per_s=reader.number_or_none("rate_per_s"),
        num_requests=reader.count("num_requests"),
        num_ok=reader.count("num_ok"),
        output_tokens_per_s=reader.number("output_tokens_per_s"),
        requests_per_s=reader.number("requests_per_s"),
        goodput_requests_per_s=reader.number("goodput_requests_per_s"),
        keeps_slo=reader.flag_or_none("keeps_slo"),
        mean_prompt_tokens=reader.number_or_none("mean_prompt_tokens"),
        mean_output_tokens=reader.number("mean_output_tokens"),
        p50_ttft_ms=ttft[0],
        p99_ttft_ms=ttft[1],
        p50_tpot_ms=tpot[0],
        p99_tpot_ms=tpot[1],
    )


def _spread(reader: Reader, key: str) -> tuple[Decimal | None, Decimal | None]:
    """Median and 99th percentile in ms; None of nothing."""
    if reader.values.get(key) is None:
        return None, None
    inner = reader.inner(key)
    return inner.number("p50_ms"), inner.number("p99_ms")


def _plain(value: Decimal) -> str:
    """The number without zeros at its end."""
    text = f"{value:,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The runs of one finetune; None for a part that did not run, or whose record is not here."""

    data: RunRecord | None
    training: RunRecord | None
    evaluation: RunRecord | None
    loads: tuple[RunRecord, ...]
    """Load tests of its servers, oldest first."""
    tuned_dir: str | None
    """Folder of the tuned weights inside the jobs; None where no record names it."""

    def holds(self, record: RunRecord) -> bool:
        """Whether the run is one of this finetune, a server of it included."""
        if record.kind == Kind.SERVE:
            return _is_of(record, self.tuned_dir) and not _is_before(record, self.training)
        members = (self.data, self.training, self.evaluation, *self.loads)
        return any(record is each for each in members)


def lineage(stack: str, records: Sequence[RunRecord]) -> Lineage:
    """The finetune that was evaluated last; the one that was trained last before there is one.

    An evaluation names the folder of what it measured, and the training that wrote it, the server
    and the load test name the same. Numbers of jobs, and so such folders, come again with a new
    cluster: times bound them too.
    """
    ordered = sorted(records, key=lambda each: (each.finished_at, each.job_id))
    passed = [each for each in ordered if each.outcome is Outcome.PASS and each.stack == stack]
    evaluation = _last(passed, Kind.EVALUATE)
    tuned_dir = None if evaluation is None else evaluation.tuned_dir
    trainings = [each for each in passed if each.kind == Kind.TRAIN]
    if evaluation is not None and tuned_dir is not None:
        trainings = [
            each
            for each in trainings
            if each.tuned_dir == tuned_dir and each.finished_at <= evaluation.finished_at
        ]
    training = trainings[-1] if trainings else None
    if tuned_dir is None and training is not None:
        tuned_dir = training.tuned_dir
    return Lineage(
        data=_last([each for each in passed if _is_before(each, training)], Kind.PREPARE_DATA),
        training=training,
        evaluation=evaluation,
        loads=tuple(
            each
            for each in ordered
            if each.kind == Kind.LOAD
            and each.outcome is Outcome.PASS
            and _is_of(each, tuned_dir)
            and not _is_before(each, training)
        ),
        tuned_dir=tuned_dir,
    )


def _last(records: Sequence[RunRecord], kind: Kind) -> RunRecord | None:
    found = [each for each in records if each.kind == kind]
    return found[-1] if found else None


def _is_of(record: RunRecord, tuned_dir: str | None) -> bool:
    """Whether a run names these weights; one that names none may be anybody's."""
    return record.tuned_dir is None or tuned_dir is None or record.tuned_dir == tuned_dir


def _is_before(record: RunRecord, training: RunRecord | None) -> bool:
    return training is not None and record.finished_at <= training.started_at
