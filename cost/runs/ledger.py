"""The ledger of a stack's jobs: `runs/<stack>/ledger.jsonl`, one JSON object a line, only appended.

Money and other decimals are text, times are UTC. A damaged line (a full disk, a killed writer) is
reported and costs no other line; one of another schema version is an error.
    with Ledger(path).locked() as ledger: ledger.append(entry)
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Final, cast

from stacks.errors import UserError, visible
from stacks.files import is_map
from stacks.spec.decode import CountOrZero, Decoder, any_text, between, described

SCHEMA_VERSION: Final = 1
_MOST: Final = 10**15
Amount = Annotated[Decimal, between(0, _MOST)]
"""Not below 0: a negative cost would make room in a budget."""


def _shown(value: object) -> tuple[object, str | None]:
    return visible(value) if isinstance(value, str) else value, any_text(value)[1]


Text = Annotated[str, _shown]
"""Names that users and Slurm give, as a terminal may show them; empty where Slurm has none."""


def _job_id(value: object) -> tuple[object, str | None]:
    is_number = isinstance(value, str) and re.fullmatch(r"[0-9]{0,18}", value)
    return value, None if is_number else f"expected a number such as '12', got {described(value)}"


JobId = Annotated[str, _job_id]
"""Empty before its submission, as in what the state folder keeps of it; never in a ledger."""


class LineError(ValueError):
    """A line that is no entry."""


class VersionError(ValueError):
    """A line of another schema version: leaving it out would misstate what was spent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastEntry:
    """A job at its submission; None where nothing was known."""

    at: datetime
    job: Text
    job_id: JobId
    cluster: Text
    """Host key of the login node: job ids start again at 1 on a cluster that was made anew."""
    num_nodes: CountOrZero
    hours: Amount | None
    nodes_usd: Amount | None
    basis: Text
    """Where the hours come from, or why they are not known."""
    num_tasks: int = 1
    """Tasks of the array that it is of; 1 for a job that is none."""
    at_most_usd: Amount | None = None
    """US dollars up to its time limit where no others are known."""

    @property
    def held_usd(self) -> Decimal | None:
        """What a budget holds it to: its forecast, else its time limit; None without a price."""
        return self.at_most_usd if self.nodes_usd is None else self.nodes_usd

    @property
    def usd_per_task(self) -> Decimal | None:
        """US dollars of one task; of a job that is no array, of the job."""
        return None if self.nodes_usd is None else self.nodes_usd / self.num_tasks


BY_HAND: Final = "REQUEUED by hand"
"""A requeue while a step still ran: a job asks for its own after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Nodes that a job held from one moment to another."""

    started_at: datetime
    ended_at: datetime | None
    """None while it runs."""
    nodes: tuple[Text, ...]
    state: Text = ""
    """Slurm's word for this stretch's end, or BY_HAND; empty in a ledger of before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountedJob:
    """A job as accounting tells it."""

    job: Text
    job_id: JobId
    cluster: Text
    """Host key of the login node."""
    user: Text
    partition: Text
    state: Text
    runs: tuple[Occupancy, ...]
    """More than one where it was preempted and started again; none where it never started."""
    array_id: JobId | None = None
    """Id of the array that it is a task of; None for a job that is none."""
    num_tasks: int = 1
    """More than one where tasks that never started stand under one id."""
    account: Text = ""
    """Slurm account; empty where Slurm keeps none."""
    cpus_per_node: CountOrZero = 0
    gpus_per_node: CountOrZero = 0
    """With the CPUs its share of a node, which an attached stack charges; 0 in one of before."""

    @property
    def accounted(self) -> dict[str, Any]:
        """What accounting tells, field by field."""
        return {each.name: getattr(self, each.name) for each in fields(AccountedJob)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActualEntry(AccountedJob):
    """A job after its end."""

    at: datetime
    node_hours: Amount
    nodes_usd: Amount | None
    """US dollars of its nodes; None when their price is not known."""
    padding_percent: Amount | None
    """Share of its training that was padding, from its run record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverrideEntry:
    """A submission that the budget had no room for."""

    at: datetime
    job: Text
    job_id: JobId
    cluster: Text
    user: Text
    """Who gave --force, as this machine knows them."""
    forecast_usd: Amount
    left_usd: Annotated[Decimal, between(-_MOST, _MOST)]
    budget_usd: Amount


Entry = ForecastEntry | ActualEntry | OverrideEntry
_KINDS: Final[Mapping[str, type[Entry]]] = {
    "forecast": ForecastEntry,
    "actual": ActualEntry,
    "override": OverrideEntry,
}


JobKey = tuple[str, str]
"""Cluster and job id."""


def actuals(entries: Sequence[Entry]) -> dict[JobKey, ActualEntry]:
    """The newest word on each job that ended."""
    return {(e.cluster, e.job_id): e for e in entries if isinstance(e, ActualEntry)}


def forecasts(entries: Sequence[Entry]) -> dict[JobKey, ForecastEntry]:
    """The forecast of each job that was submitted."""
    return {(e.cluster, e.job_id): e for e in entries if isinstance(e, ForecastEntry)}


def open_parts(entries: Sequence[Entry]) -> dict[JobKey, Decimal]:
    """The part, up to 1, of each forecast whose jobs have not ended; those that have are left out.

    Of an array every task that ended counts, in whatever order: the one with its id is no last one.
    """
    ended = actuals(entries)
    tasks: dict[JobKey, int] = {}
    for entry in ended.values():
        if entry.array_id is not None:
            key = (entry.cluster, entry.array_id)
            tasks[key] = tasks.get(key, 0) + entry.num_tasks
    found: dict[JobKey, Decimal] = {}
    for key, entry in forecasts(entries).items():
        num_ended = tasks.get(key, 0) if entry.num_tasks > 1 else int(key in ended)
        if num_ended < entry.num_tasks:
            found[key] = Decimal(entry.num_tasks - num_ended) / entry.num_tasks
    return found


def encode(entry: Entry) -> str:
    """The entry as one line of ASCII without its end."""
    kind = next(name for name, each in _KINDS.items() if each is type(entry))
    values = asdict(entry, dict_factory=_plain_values)
    return json.dumps({"schema_version": SCHEMA_VERSION, "kind": kind, **values})


def decode(text: str) -> Entry:
    """The entry of the line."""
    try:
        values: object = json.loads(text)
    except json.JSONDecodeError as error:
        raise LineError(f"not a JSON object (column {error.colno}): cut or damaged") from error
    except (RecursionError, ValueError) as error:
        raise LineError("not a JSON object: nested too deep, or a number too long") from error
    if not is_map(values):
        raise LineError("not a JSON object")
    version = values.get("schema_version")
    if isinstance(version, bool) or version != SCHEMA_VERSION:
        raise VersionError(
            f"schema_version: got {described(version)}, expected {SCHEMA_VERSION}; use the version "
            "of soperator that wrote it, or move the file away to begin a new ledger"
        )
    kind, decoder = values.get("kind"), Decoder(is_json=True)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise LineError(f"kind: got {described(kind)}, expected forecast, actual or override")
    entry = decoder.record(_KINDS[kind], values, "")
    if entry is None:
        raise LineError("; ".join(decoder.problems))
    return entry


def _plain_values(items: Sequence[tuple[str, object]]) -> dict[str, object]:
    return {name: _plain(value) for name, value in items}


def _plain(value: object) -> object:
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="seconds")
    if isinstance(value, tuple):
        return [_plain(item) for item in cast("tuple[object, ...]", value)]
    return visible(value) if isinstance(value, str) else value


FILE_NAME: Final = "ledger.jsonl"


class LedgerError(UserError):
    """A ledger that must not be read or written as it is, with file and line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a ledger holds, and what is wrong with the lines that are no entries."""

    entries: tuple[Entry, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ledger:
    """One ledger file; it need not exist yet."""

    path: Path

    def read(self) -> Content:
        """Every readable entry in the order of the file."""
        if not self.path.exists():
            return Content()
        try:
            with self.path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH)
                content = file.read()
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot be read: {error.strerror}") from error
        return _parse(content, self.path)

    @contextmanager
    def locked(self) -> Generator[OpenLedger]:
        """The ledger for this process alone: nothing is appended between a look and an append."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            is_new = not self.path.exists()
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise LedgerError(
                f"{self.path}: cannot be opened to write: {error.strerror}; nothing was done: "
                "make its folder yours, or set SOPERATOR_STATE"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if is_new:
                _sync_folder(self.path.parent)
            yield OpenLedger(path=self.path, descriptor=descriptor)
        finally:
            os.close(descriptor)

    def append(self, *entries: Entry) -> None:
        """Adds the entries; on return they are on the disk."""
        with self.locked() as ledger:
            ledger.append(*entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLedger:
    """A ledger whose lock is held."""

    path: Path
    descriptor: int

    def read(self) -> Content:
        """Every readable entry in the order of the file."""
        return _parse(self.path.read_bytes(), self.path)

    def append(self, *entries: Entry) -> None:
        """Adds the entries whole or not at all; on return they are on the disk."""
        if not entries:
            return
        size = os.fstat(self.descriptor).st_size
        lines = "".join(f"{encode(entry)}\n" for entry in entries).encode("ascii")
        if size and os.pread(self.descriptor, 1, size - 1) != b"\n":
            # A writer was killed in its line: end it, so that only that line is lost.
            lines = b"\n" + lines
        try:
            written = os.write(self.descriptor, lines)
            if written != len(lines):
                raise OSError(f"{written} of {len(lines)} bytes were written: is the disk full?")
            os.fsync(self.descriptor)
        except OSError as error:
            os.ftruncate(self.descriptor, size)
            raise LedgerError(f"{self.path}: not written: {error}") from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parse(content: bytes, path: Path) -> Content:
    entries: list[Entry] = []
    problems: list[str] = []
    errors: list[str] = []
    for number, line in enumerate(content.decode("ascii", errors="replace").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            entry = decode(line)
            if not entry.job_id:
                raise LineError("job_id: expected a number such as '12', got text ''")
            entries.append(entry)
        except LineError as error:
            problems.append(f"{path}:{number}: {error}; this line is left out")
        except VersionError as error:
            errors.append(f"{path}:{number}: {error}")
    if errors:
        raise LedgerError("\n".join(errors))
    return Content(entries=tuple(entries), problems=tuple(problems))
