"""Reader of acceptance.json, schema version 1, and of several of them as one.

Owns this side's copy of the format (workloads/accept/acceptance.schema.json publishes it). Refuses
another schema and results of different clusters; a stage without a result is NOT RUN.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from infra.clients.errors import JobsError
from stacks.errors import UserError
from stacks.files import read_bytes


class AcceptError(JobsError):
    """A result, certificate or comparison that cannot be used; says what to do."""


SCHEMA: Final = "soperator-acceptance"
SCHEMA_VERSION: Final = 1
FILE_NAME: Final = "acceptance.json"
_PUBLISHED: Final = "workloads/accept/acceptance.schema.json"
STAGES: Final = (
    "readiness", "connectivity", "collectives", "compute", "storage", "training", "soak"
)  # fmt: skip
OUTCOMES: Final = ("PASS", "FAIL", "NOT_RUN")
_SAME: Final = ("class", "platform", "preset", "num_nodes", "world_size", "backend")
"""What results of one cluster share."""
_NEEDED: Final = {
    "profile": str, "stages": list, "started_at": str, "finished_at": str, "outcome": str,
    "run": dict, "hardware": dict, "versions": dict, "nodes": list, "checks": list,
    "measurements": dict
}  # fmt: skip


class Profile(StrEnum):
    """How long an acceptance takes."""

    QUICK = "quick"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One answered question."""

    id: str
    outcome: str
    subject: str
    nodes: tuple[str, ...] = ()
    measured: float | None = None
    unit: str = ""
    limit: Mapping[str, Any] | None = None
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    reason: str | None

    @property
    def stage(self) -> str:
        """The stage that asked."""
        return self.id.partition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One acceptance, of one job or of several."""

    profile: str
    stages: tuple[str, ...]
    started_at: str
    finished_at: str
    hardware: Mapping[str, Any]
    versions: Mapping[str, str]
    nodes: tuple[Mapping[str, Any], ...]
    runs: tuple[Mapping[str, Any], ...]
    evidence: tuple[Mapping[str, Any], ...] = ()
    """Where each result came from: its SHA-256; cluster, job and submission, or none of them where
    it was given as a file (`attested`)."""
    checks: tuple[Check, ...]
    measurements: Mapping[str, Any]

    @property
    def certifies(self) -> str:
        """What passing means; of some stages it is only what they ask."""
        left_out = [stage for stage in STAGES if stage not in self.stages]
        if not left_out:
            return str(self.hardware["certifies"])
        return f"only {', '.join(self.stages)}, and no cluster: {', '.join(left_out)} left out."

    @property
    def outcome(self) -> str:
        """FAIL if one check failed, else NOT_RUN if one is missing, else PASS."""
        found = {check.outcome for check in self.checks}
        if "FAIL" in found:
            return "FAIL"
        asked = {check.stage for check in self.checks}
        if "NOT_RUN" in found or set(self.stages) - asked or not found:
            return "NOT_RUN"
        return "PASS"


def read(path: Path) -> Result:
    """The result in a file, attested by whoever gives it; every problem is told with its path."""
    try:
        text = read_bytes(path)
        values = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise AcceptError(f"{path}: cannot be read as a result: {error}") from error
    found = {"job_id": None, "cluster": None, "submission": None, "attested": True}
    sha256 = hashlib.sha256(text).hexdigest()
    return replace(parse(values, str(path)), evidence=({**found, "sha256": sha256},))


@contextmanager
def given(files: Sequence[Path]) -> Iterator[None]:
    """Refuses, by its name, what is found to be wrong in a file of others while it is used."""
    try:
        yield
    except (UserError, OSError):
        raise
    except Exception as error:
        if not files:
            raise
        names, wrong = ", ".join(map(str, files)), f"{type(error).__name__}: {error}"
        raise AcceptError(f"{names}: not in the form of {_PUBLISHED}: {wrong[:200]}") from error


def parse(values: object, name: str) -> Result:
    """The result in plain values; `name` starts every message."""
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        raise AcceptError(
            f"{name}: no result of `python -m workloads.accept` (schema is not {SCHEMA!r}); give "
            f"its {FILE_NAME}"
        )
    if values.get("schema_version") != SCHEMA_VERSION:
        raise AcceptError(
            f"{name}: schema_version {values.get('schema_version')!r}, this reads "
            f"{SCHEMA_VERSION}; run the acceptance again, or use the version that wrote it"
        )
    wrong = [
        f"{name}: {key}: {'missing' if key not in values else 'no ' + kind.__name__}"
        for key, kind in _NEEDED.items()
        if not isinstance(values.get(key), kind)
    ]
    if wrong:
        raise AcceptError("\n".join(wrong))
    checks = tuple(
        _check(check, f"{name}: checks[{index}]") for index, check in enumerate(values["checks"])
    )
    return Result(
        profile=values["profile"],
        stages=tuple(values["stages"]),
        started_at=values["started_at"],
        finished_at=values["finished_at"],
        runs=(values["run"],),
        hardware=values["hardware"],
        versions=values["versions"],
        nodes=tuple(values["nodes"]),
        checks=checks,
        measurements=values["measurements"],
    )


def _check(values: object, name: str) -> Check:
    try:
        assert isinstance(values, dict)
        check = Check(
            id=str(values["id"]),
            outcome=str(values["outcome"]),
            subject=str(values["subject"]),
            nodes=tuple(map(str, values["nodes"])),
            measured=None if values["measured"] is None else float(values["measured"]),
            unit=str(values["unit"]),
            limit=values["limit"],
            context=values["context"],
            reason=values["reason"],
        )
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise AcceptError(
            f"{name}: no check of schema version {SCHEMA_VERSION}: {error!r}"
        ) from error
    if check.outcome not in OUTCOMES:
        raise AcceptError(
            f"{name}: outcome {check.outcome!r}, expected one of {', '.join(OUTCOMES)}"
        )
    return check


def _names(result: Result) -> list[str]:
    return sorted(str(node["name"]) for node in result.nodes)


def merge(results: Sequence[Result], missing: Mapping[str, str]) -> Result:
    """Results of one cluster as one; `missing` says of each stage without a result why."""
    if not results:
        raise AcceptError(
            "no stage left a result: " + "; ".join(f"{key}: {why}" for key, why in missing.items())
        )
    first = results[0]
    nodes = _names(first)
    for other in results[1:]:
        differ = [
            f"{key} {other.hardware.get(key)!r}, not {first.hardware.get(key)!r}"
            for key in _SAME
            if other.hardware.get(key) != first.hardware.get(key)
        ]
        if _names(other) != nodes:
            differ.append(f"nodes {', '.join(_names(other))}, not {', '.join(nodes)}")
        if differ:
            raise AcceptError(f"the results are of different clusters: {', '.join(differ)}")
    gaps = tuple(
        Check(id=f"{stage}.all", outcome="NOT_RUN", subject="all nodes", reason=why)
        for stage, why in missing.items()
    )
    found = {stage for result in results for stage in result.stages} | set(missing)
    measurements: dict[str, Any] = {}
    for result in results:
        measurements |= result.measurements
    order = {stage: index for index, stage in enumerate(STAGES)}
    checks = [check for result in results for check in result.checks] + list(gaps)
    return Result(
        profile=first.profile,
        stages=tuple(stage for stage in STAGES if stage in found),
        started_at=min(result.started_at for result in results),
        finished_at=max(result.finished_at for result in results),
        runs=tuple(run for result in results for run in result.runs),
        hardware=first.hardware,
        versions=first.versions,
        nodes=first.nodes,
        checks=tuple(sorted(checks, key=lambda check: order.get(check.stage, len(order)))),
        measurements=measurements,
        evidence=tuple(each for result in results for each in result.evidence),
    )
