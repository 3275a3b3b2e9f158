"""What jobs left behind: run records, and the `load.json` of a load test (docs/contracts/jobs.md).

cost/ and workloads/ share these file formats, not code.
    records, problems = load_run_records(Path(".soperator/runs/local"))
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, NoReturn, TypeVar

from cost.report.layout import rounded
from stacks.errors import UserError
from stacks.files import is_map, read_text
from stacks.spec.decode import CountOrZero, Decoder, any_text, described

_Decoded = TypeVar("_Decoded")

_LEAST: Final = -30
_MOST: Final = 15
"""Powers of ten between which a measurement lies that is not 0."""


def _measure(value: object) -> tuple[object, str | None]:
    """A number of a size that a measurement has."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None, f"expected a number, got {described(value)}"
    number = Decimal(value)
    if number and not _LEAST <= number.adjusted() <= _MOST:
        sizes = f"1e{_LEAST} to 1e{_MOST}"
        return None, f"expected 0 or a size from {sizes}, got {described(value)}"
    return number, None


Measure = Annotated[Decimal, _measure]
AnyText = Annotated[str, any_text]


def _name(value: object) -> tuple[object, str | None]:
    return value or None, any_text(value)[1]


Name = Annotated[str | None, _name]
"""What a file may leave empty instead of leaving it out."""


class RunRecordError(UserError):
    """A file that is not a run record of this schema."""


def read_object(text: str, path: str, expected: int) -> Mapping[str, object]:
    """The JSON object in the text, of this schema version; `path` names it in errors."""
    try:
        document: object = json.loads(
            text, parse_float=Decimal, parse_constant=_refuse_constant, object_hook=_without_nulls
        )
    except (ValueError, RecursionError, RunRecordError) as error:
        raise RunRecordError(f"{path}: not valid JSON: {error}") from error
    if not is_map(document):
        raise RunRecordError(f"{path}: expected one JSON object")
    version = document.get("schema_version")
    if isinstance(version, bool) or version != expected:
        raise RunRecordError(
            f"{path}: schema_version: got {version}, expected {expected}; "
            "run the job again with this version, or read it with the one that wrote it"
        )
    return document


def _without_nulls(values: dict[str, object]) -> dict[str, object]:
    return {key: each for key, each in values.items() if each is not None}


def _refuse_constant(name: str) -> NoReturn:
    raise RunRecordError(f"{name} is not a number that JSON knows")


def _decoded(cls: type[_Decoded], values: Mapping[str, object], path: str) -> _Decoded:
    """The values as the dataclass; RunRecordError names all that are wrong."""
    decoder = Decoder(is_json=True)
    found = decoder.record(cls, values, "")
    if found is None:
        raise RunRecordError("\n".join(f"{path}: {problem}" for problem in decoder.problems))
    return found


CURVE_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What a load test was asked to keep; a bound that is None was not promised."""

    ttft_ms: Measure | None = None
    tpot_ms: Measure | None = None
    e2e_s: Measure | None = None
    share: Measure = Decimal("0.99")
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
class Spread:
    """Median and 99th percentile in ms; None of nothing."""

    p50_ms: Measure | None = None
    p99_ms: Measure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """One load on a server and what came of it."""

    concurrency: int | None = None
    """Streams of a closed loop; None where requests came at a rate."""
    rate_per_s: Measure | None = None
    """Intended requests a second; None for a closed loop."""
    num_requests: CountOrZero
    num_ok: CountOrZero
    output_tokens_per_s: Measure
    requests_per_s: Measure
    goodput_requests_per_s: Measure
    """Requests a second that keep every bound."""
    keeps_slo: bool | None = None
    """None: nothing is promised."""
    mean_prompt_tokens: Measure | None = None
    """Tokens that the server read for a request; None where it does not count them."""
    mean_output_tokens: Measure
    ttft: Spread = Spread()
    tpot: Spread = Spread()

    @property
    def latencies(self) -> str:
        """The 99th percentiles in words."""
        known = [
            f"{name} p99 {rounded(value, Decimal(1)):,f} ms"
            for name, value in (("TTFT", self.ttft.p99_ms), ("TPOT", self.tpot.p99_ms))
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
    curve: tuple[LoadPoint, ...]
    model: Name = None
    """Name in the API that was asked; None of a test that ended before its first request."""

    @property
    def sweep(self) -> tuple[LoadPoint, ...]:
        """The closed loops, by streams: the curve."""
        closed = [each for each in self.curve if each.concurrency is not None]
        return tuple(sorted(closed, key=lambda each: each.concurrency or 0))

    @property
    def operating_point(self) -> LoadPoint | None:
        """The point of the sweep with the highest tokens/s that is feasible; None: none is."""
        feasible = [each for each in self.sweep if each.is_feasible]
        return max(feasible, key=lambda each: each.output_tokens_per_s, default=None)


def parse_load_curve(text: str, path: str) -> LoadCurve:
    """The curve in the text of a load.json; `path` names it in errors."""
    return _decoded(LoadCurve, read_object(text, path, CURVE_VERSION), path)


def operating_point_of(metrics: Mapping[str, Decimal]) -> LoadPoint | None:
    """The operating point in the metrics of a load test's record; None where it found none."""
    concurrency = metrics.get("operating_concurrency")
    tokens_per_s = metrics.get("operating_output_tokens_per_s")
    if not concurrency or not tokens_per_s:
        return None
    zero = Decimal(0)
    return LoadPoint(
        concurrency=int(concurrency),
        num_requests=0,
        num_ok=0,
        output_tokens_per_s=tokens_per_s,
        requests_per_s=metrics.get("operating_requests_per_s", zero),
        goodput_requests_per_s=metrics.get("operating_goodput_requests_per_s", zero),
        mean_prompt_tokens=metrics.get("mean_prompt_tokens"),
        mean_output_tokens=metrics.get("mean_output_tokens", zero),
        ttft=_spread(metrics, "ttft"),
        tpot=_spread(metrics, "tpot"),
    )


def _spread(metrics: Mapping[str, Decimal], name: str) -> Spread:
    return Spread(p50_ms=metrics.get(f"median_{name}_ms"), p99_ms=metrics.get(f"p99_{name}_ms"))


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
    num_gpus_declared: CountOrZero


_COMMIT: Final = re.compile(r"[0-9a-f]{7,64}")


def _commit(value: object) -> tuple[object, str | None]:
    """What is a commit: git might take another text for an option."""
    return (value if isinstance(value, str) and _COMMIT.fullmatch(value) else None), None


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
    metrics: Mapping[str, Measure]
    curve: LoadCurve | None = None
    """What a load test found, from load.json beside its record; None without the file."""
    reason: AnyText | None = None
    """Why it did not pass."""
    code_hash: Name = None
    git_revision: Annotated[str | None, _commit] = None
    data_hash: Name = None
    """SHA-256 of the file of rows that it read or made, the artifact `data_file`."""
    world_size: CountOrZero = 1
    versions: Mapping[str, AnyText] = field(default_factory=dict[str, str])
    environment: Mapping[str, AnyText] = field(default_factory=dict[str, str])
    artifacts: Mapping[str, AnyText] = field(default_factory=dict[str, str])
    """Files and folders on the cluster that it read or wrote."""

    @property
    def duration_s(self) -> Decimal:
        """Seconds from start to end."""
        return Decimal(int((self.finished_at - self.started_at).total_seconds()))

    @property
    def tuned_dir(self) -> str | None:
        """Folder of the tuned weights that the job wrote, measured or served, inside the jobs."""
        return self.artifacts.get("adapter_dir") or self.artifacts.get("model_dir")


def load_run_records(folder: Path) -> tuple[tuple[RunRecord, ...], tuple[str, ...]]:
    """Records under the folder by path, and what is wrong with the files that are not records.

    Hidden folders are left out: an interrupted pull leaves its copy of a record in one.
    """
    records: list[RunRecord] = []
    problems: list[str] = []
    paths: list[Path] = []

    def unreadable(error: OSError) -> None:
        problems.append(f"{error.filename}: cannot be read: {error.strerror}")

    for at, folders, names in os.walk(folder, onerror=unreadable) if folder.is_dir() else ():
        paths += [Path(at, name) for name in (*folders, *names) if name == FILE_NAME]
        folders[:] = [name for name in folders if not name.startswith(".")]
    for path in sorted(paths):
        try:
            record = parse_run_record(read_text(path), str(path))
            of_curve = path.with_name(CURVE_FILE)
            if record.kind == Kind.LOAD and of_curve.is_file():
                curve = parse_load_curve(read_text(of_curve), str(of_curve))
                record = replace(record, curve=curve)
            records.append(record)
        except (OSError, UnicodeDecodeError) as error:
            problems.append(f"{path}: cannot be read: {error}")
        except RunRecordError as error:
            problems.append(str(error))
    return tuple(records), tuple(problems)


def parse_run_record(text: str, path: str) -> RunRecord:
    """The record in the text; `path` names it in errors."""
    document = read_object(text, path, SCHEMA_VERSION)
    # Whatever a job writes under these names is not what the record calls so.
    own = {"path": path, "curve": None}
    record = _decoded(RunRecord, {**document, **own}, path)
    if record.finished_at < record.started_at:
        raise RunRecordError(
            f"{path}: finished_at: expected no time before started_at "
            f"({record.started_at.isoformat()}), got {record.finished_at.isoformat()}"
        )
    return record


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
