"""Gates as data: limits with source and date (gates.yaml); what a check says of one; the result.

The result says who took part, what was measured and what was asked. Schema version 1.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from workloads.common import atomic
from workloads.common.dist import World
from workloads.common.exit_codes import ConfigError, ExitCode, WorkloadError
from workloads.common.record import (
    Outcome,
    job_environment,
    job_id,
    package_versions,
    utc_now,
)
from workloads.recipes.accept import AcceptConfig
from workloads.recipes.reader import parse, read_mapping, require

FILE = Path(__file__).with_name("gates.yaml")
SCHEMA_VERSION = 1
"""Of files of gates, and of results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a limit comes from."""

    what: str
    url: str
    date: str
    """Day on which it was read or derived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """A limit as a share of what the wire carries."""

    gbit_per_s: float
    """Rate of one port as its maker prints it, in 10^9 bits a second."""
    share: float
    ports: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One row: the limit of one check, and when the row counts."""

    check: str
    source: str
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    wire: Wire | None = None
    """Instead of `at_least`, for what a network port must carry."""
    scope: Literal["node", "cluster"] | None = None
    """Ranks of one node, or of several; None is both."""
    nodes: int | None = None
    """This number of nodes only."""
    least_nodes: int | None = None
    algorithm: Literal["nvls", "ring"] | None = None
    """What NCCL may use; NVLS needs more than 4 GPUs on a node."""
    from_bytes: int = 0
    """Smallest message that the limit speaks of."""
    models: tuple[str, ...] = ()
    """Models whose tokens it speaks of; empty: any."""
    batch: int | None = None
    """Sequences of one rank in a step that it speaks of."""
    sequence: int | None = None
    """Tokens of a sequence that it speaks of."""
    note: str = ""

    def __post_init__(self) -> None:
        limits = [each for each in (self.at_least, self.at_most, self.wire) if each is not None]
        require(len(limits) == 1, "at_least: give exactly one of at_least, at_most and wire")

    def counts(self, conditions: Mapping[str, Any]) -> bool:
        """Whether the row speaks of a measurement under these conditions."""
        for name in ("scope", "nodes", "algorithm", "batch", "sequence"):
            wanted = getattr(self, name)
            if wanted is not None and conditions.get(name) not in (None, wanted):
                return False
        if self.models and conditions.get("model") not in self.models:
            return False
        if self.least_nodes is not None and conditions.get("nodes", 1) < self.least_nodes:
            return False
        return conditions.get("bytes", self.from_bytes) >= self.from_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit with everything a certificate must say of it."""

    at_least: float | None
    at_most: float | None
    unit: str
    source: str
    date: str
    note: str = ""

    def holds(self, value: float) -> bool:
        """Whether the value keeps the limit; the limit itself does, and what is no number not."""
        least, most = self.at_least, self.at_most
        return (least is None or value >= least) and (most is None or value <= most)

    def says(self) -> str:
        """Return the limit in words: `at least 350`."""
        if self.at_least is not None:
            return f"at least {self.at_least:g}"
        return f"at most {self.at_most:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a node of this class has; None is not known, 0 or false not there to be had."""

    model: str | None = None
    """Part of the name that nvidia-smi prints."""
    memory_gib: float | None = None
    """Least memory of one GPU."""
    pcie_gen: int | None = None
    pcie_width: int | None = None
    nvlinks: int | None = None
    """NVLinks between any two GPUs of a node, NV18 of `nvidia-smi topo -m`."""
    ecc: bool | None = None
    infiniband_ports: int | None = None
    infiniband_gbit_per_s: float | None = None
    driver: str | None = None
    """Oldest driver branch that the pinned CUDA runs on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareClass:
    """Nodes that share their limits."""

    name: str
    platforms: tuple[str, ...] = ()
    """Empty: any, in a file of accept.gates."""
    gpus_per_node: tuple[int, ...] = ()
    """Empty: any number."""
    expected: Expected = field(default_factory=Expected)
    gates: tuple[Gate, ...] = ()
    certifies: str = ""
    """What passing means, and what it does not."""

    def fits(self, platform: str | None, gpus_per_node: int) -> bool:
        """Whether it speaks of nodes of this platform with so many GPUs."""
        return (not self.platforms or platform in self.platforms) and (
            not self.gpus_per_node or gpus_per_node in self.gpus_per_node
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    schema_version: int
    sources: Mapping[str, Any]
    classes: tuple[HardwareClass, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """The limits of one class of hardware."""

    hardware: HardwareClass
    sources: Mapping[str, Source]

    def limit(self, check: str, **conditions: Any) -> Limit | None:
        """The limit of a check under these conditions; None: measured only. Later rows win."""
        rows = self._rows(check, conditions)
        if not rows:
            return None
        # Where NCCL's way is not known, the lowest limit counts: the other needs NVLS. A last row
        # that names no way speaks of every one.
        if conditions.get("algorithm") is None and rows[-1].algorithm:
            return min((self._limit(row) for row in rows), key=lambda each: each.at_least or 0)
        return self._limit(rows[-1])

    def least_bytes(self, check: str, **conditions: Any) -> int | None:
        """Smallest message that a limit of the check speaks of; None where no size has one."""
        return min((row.from_bytes for row in self._rows(check, conditions)), default=None)

    def _rows(self, check: str, conditions: Mapping[str, Any]) -> list[Gate]:
        return [row for row in self.hardware.gates if row.check == check and row.counts(conditions)]

    def _limit(self, row: Gate) -> Limit:
        source, at_least, unit, note = self.sources[row.source], row.at_least, row.unit, row.note
        if wire := row.wire:
            # Bits over 8, all ports together.
            at_least, unit = wire.gbit_per_s / 8 * wire.ports * wire.share, "GB/s"
            said = f"{wire.share:.0%} of {wire.ports} x {wire.gbit_per_s:g} Gbit/s / 8"
            note = f"{said}; {note}" if note else said
        return Limit(
            at_least=at_least,
            at_most=row.at_most,
            unit=unit,
            source=f"{source.what}, {source.url}",
            date=source.date,
            note=note,
        )


def gates_for(platform: str | None, gpus_per_node: int, extra: Path | None = None) -> Gates:
    """Return the limits of this hardware; without GPUs those of a CPU rehearsal.

    What classes of `extra` say of it wins: each limit, what is expected, what passing certifies.
    """
    ours = _read(FILE)
    file = ours if extra is None else _read(extra)
    wanted = platform if gpus_per_node else "cpu"
    shipped, own = (
        [each for each in of.classes if each.fits(wanted, gpus_per_node)] for of in (ours, file)
    )
    if not own:
        known = ", ".join(
            f"{name} with {'/'.join(map(str, each.gpus_per_node)) or 'any number of'} GPUs"
            for each in file.classes
            for name in each.platforms or ("any platform",)
        )
        what = "name a file of gates in accept.gates"
        if extra is not None:
            what = f"name it in platforms and gpus_per_node of {extra}, or leave them out"
        raise ConfigError(
            f"no gates for platform '{wanted}' with {gpus_per_node} GPUs a node (has: {known}); "
            f"SOPERATOR_PLATFORM says which it is; {what}"
        )
    hardware = shipped[0] if shipped else HardwareClass(name=own[0].name)
    for each in [] if extra is None else own:
        given = {name: value for name, value in asdict(each.expected).items() if value is not None}
        hardware = replace(
            hardware,
            expected=replace(hardware.expected, **given),
            gates=hardware.gates + each.gates,
            certifies=each.certifies or hardware.certifies,
        )
    return Gates(hardware=hardware, sources={**ours.sources, **file.sources})


@cache
def _read(path: Path) -> _File:
    mapping = read_mapping(path)
    version = mapping.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ConfigError(f"{path}: schema_version is {version}, this reads {SCHEMA_VERSION}")
    file = parse(_File, mapping, at=path.stem)
    sources = {
        name: parse(Source, value, at=f"{path.stem}.sources.{name}")
        for name, value in file.sources.items()
    }
    shipped = file if path == FILE else _read(FILE)
    rows = [row for each in file.classes for row in each.gates]
    missing = sorted({row.source for row in rows} - set(sources) - set(shipped.sources))
    if missing:
        raise ConfigError(f"{path}: sources: {', '.join(missing)} missing; say where it is from")
    checks = {row.check for each in shipped.classes for row in each.gates}
    if unknown := sorted({row.check for row in rows} - checks):
        allowed = ", ".join(sorted(checks))
        raise ConfigError(
            f"{path}: check: nothing measures {', '.join(unknown)}; allowed: {allowed}"
        )
    return replace(file, sources=sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question to the cluster, with its answer and the limit that it was held against."""

    id: str
    """Stage and subject, such as `training.scaling_efficiency`."""
    outcome: Outcome
    subject: str
    """What was asked: a node, a GPU, a pair of ranks, or all ranks."""
    nodes: tuple[str, ...] = ()
    """Nodes that it speaks of: what a failure costs is their price."""
    measured: float | None = None
    unit: str = ""
    limit: Limit | None = None
    context: Mapping[str, Any] = field(default_factory=dict)
    """What the number depends on: model, batch, sequence, ranks, bytes."""
    reason: str | None = None


def hold(
    id: str,
    measured: float | None,
    limit: Limit,
    *,
    subject: str,
    nodes: Iterable[str] = (),
    context: Mapping[str, Any] | None = None,
    reason: str | None = None,
) -> Check:
    """Return the check of one number against its limit; without the number it is NOT RUN.

    `reason` is told where the limit is broken or nothing was measured.
    """
    is_kept = None if measured is None else limit.holds(measured)
    why = reason or ("not measured" if measured is None else limit.says())
    found = fact(id, is_kept, subject=subject, nodes=nodes, context=context, reason=why)
    return replace(found, measured=measured, unit=limit.unit, limit=limit)


def fact(
    id: str,
    is_true: bool | None,
    *,
    subject: str,
    reason: str,
    nodes: Iterable[str] = (),
    context: Mapping[str, Any] | None = None,
) -> Check:
    """Return the check of something that is so or not; `reason` says what is wrong.

    None: nothing was compared, which is NOT RUN, and `reason` says why.
    """
    return Check(
        id=id,
        outcome="NOT_RUN" if is_true is None else "PASS" if is_true else "FAIL",
        subject=subject,
        nodes=tuple(nodes),
        context=context or {},
        reason=None if is_true else reason,
    )


def not_run(id: str, reason: str, *, subject: str, nodes: Iterable[str] = ()) -> Check:
    """Return a check that could not be made."""
    return fact(id, None, reason=reason, subject=subject, nodes=nodes)


Answer = tuple[bool | None, str]
"""Whether something is so, None where nothing was compared, and what is told unless it is."""


def settle(
    id: str, answers: Sequence[Answer], *, subject: str, context: Mapping[str, Any] | None = None
) -> Check:
    """Return the check of a node that several answers make: the worst counts, and is told."""
    worst = next(each for each in (False, None, True) if each in {is_so for is_so, _ in answers})
    said = dict.fromkeys(text for is_so, text in answers if is_so is worst)
    at = {"subject": subject, "nodes": (subject,)}
    return fact(id, worst, reason="; ".join(said), context=context, **at)


def overall(checks: Iterable[Check]) -> Outcome:
    """Return FAIL if one failed, else NOT_RUN if one was not made or none exists, else PASS."""
    outcomes = {check.outcome for check in checks}
    if "FAIL" in outcomes:
        return "FAIL"
    return "PASS" if outcomes == {"PASS"} else "NOT_RUN"


def exit_code(outcome: Outcome) -> ExitCode:
    """Return 0 for PASS alone."""
    codes = {"PASS": ExitCode.OK, "FAIL": ExitCode.FAILED, "NOT_RUN": ExitCode.NOT_RUN}
    return codes[outcome]


GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine of the run."""

    name: str
    role: str
    """`master` where rank 0 is, else `worker`."""
    ranks: tuple[int, ...]
    device: str
    gpus: int
    """GPUs that its ranks use."""
    gpu_memory_gib: float | None
    """Of one GPU."""


def node_name() -> str:
    """Return the name that the scheduler knows this machine by, else its host name."""
    return os.environ.get("SLURMD_NODENAME") or os.environ.get("NODE_NAME") or socket.gethostname()


def device_of(world: World) -> tuple[str, float | None]:
    """Return the name and the memory in GiB of this rank's GPU; (`cpu`, None) without one."""
    if world.device.type != "cuda":
        return "cpu", None
    import torch

    properties = torch.cuda.get_device_properties(world.device)
    return properties.name, properties.total_memory / GIB


def gather_nodes(world: World) -> tuple[Node, ...]:
    """Return the nodes of all ranks, in the order of their first ranks, on every rank."""
    device, memory = device_of(world)
    return table(world.gather((node_name(), device, memory)))


def table(ranks: Sequence[tuple[str, str, float | None]]) -> tuple[Node, ...]:
    """Return the nodes from (name, device, GiB) of each rank in rank order."""
    places: dict[str, list[int]] = {}
    for rank, (name, _, _) in enumerate(ranks):
        places.setdefault(name, []).append(rank)
    return tuple(
        Node(
            name=name,
            role="worker" if index else "master",
            ranks=tuple(found),
            device=ranks[found[0]][1],
            gpus=sum(ranks[rank][2] is not None for rank in found),
            gpu_memory_gib=ranks[found[0]][2],
        )
        for index, (name, found) in enumerate(places.items())
    )


def name_of(nodes: Sequence[Node], rank: int) -> str:
    """Return the node that holds `rank`."""
    return next(node.name for node in nodes if rank in node.ranks)


def nodes_of(nodes: Sequence[Node], ranks: Sequence[int]) -> tuple[str, ...]:
    """Return the nodes that hold any of `ranks`."""
    return tuple(node.name for node in nodes if set(node.ranks) & set(ranks))


class ProgramError(WorkloadError):
    """A program that did not run or end, or printed what is not its output."""


SCHEMA = "soperator-acceptance"
FILE_NAME = "acceptance.json"


@dataclass(slots=True, kw_only=True)
class Report:
    """What the stages fill."""

    config: AcceptConfig
    gates: Gates
    nodes: tuple[Node, ...]
    world_size: int
    backend: str
    """`nccl` or `gloo`."""
    started_at: str = field(default_factory=utc_now)
    checks: list[Check] = field(default_factory=list)
    measurements: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=package_versions)

    @property
    def outcome(self) -> Outcome:
        """All checks together; a stage without a check is NOT RUN."""
        asked = {check.id.partition(".")[0] for check in self.checks}
        found = overall(self.checks)
        missing = set(self.config.stages) - asked
        return "NOT_RUN" if missing and found == "PASS" else found

    def to_json(self) -> dict[str, Any]:
        memory = [node.gpus * (node.gpu_memory_gib or 0) for node in self.nodes]
        return {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "profile": self.config.profile,
            "stages": list(self.config.stages),
            "started_at": self.started_at,
            "finished_at": utc_now(),
            "outcome": self.outcome,
            "run": {
                "launcher": launcher(),
                "job_id": job_id(),
                "stack": os.environ.get("SOPERATOR_STACK") or None,
                "code_hash": os.environ.get("SOPERATOR_CODE_HASH") or None,
                "git_revision": os.environ.get("SOPERATOR_GIT_REVISION") or None,
                "environment": job_environment(),
            },
            "hardware": {
                "class": self.gates.hardware.name,
                "certifies": " ".join(self.gates.hardware.certifies.split()),
                "platform": os.environ.get("SOPERATOR_PLATFORM") or None,
                "preset": os.environ.get("SOPERATOR_PRESET") or None,
                "device": self.nodes[0].device,
                "num_nodes": len(self.nodes),
                "world_size": self.world_size,
                "backend": self.backend,
                "gpu_memory_gib": self.nodes[0].gpu_memory_gib,
                "total_gpu_memory_gib": sum(memory) or None,
            },
            "versions": self.versions,
            "nodes": [asdict(node) for node in self.nodes],
            "checks": [asdict(check) for check in self.checks],
            "measurements": self.measurements,
        }

    def write(self, path: Path) -> None:
        """Write the result whole or not at all; parents are made."""
        atomic.write_text(path, json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n")


def launcher() -> str:
    """Return who started the ranks: slurm, kubernetes, torchrun or nobody (`process`)."""
    if os.environ.get("SLURM_JOB_ID"):
        return "slurm"
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    return "torchrun" if "TORCHELASTIC_RUN_ID" in os.environ else "process"


def check_lines(checks: Sequence[Check]) -> list[str]:
    """Return a line for each check: outcome, id, subject, number, limit, reason."""
    lines: list[str] = []
    for check in checks:
        measured = "" if check.measured is None else f" {number(check.measured)} {check.unit}"
        limit = "" if check.limit is None else f" ({check.limit.says()})"
        reason = "" if check.reason is None else f": {check.reason}"
        outcome = check.outcome.replace("_", " ")
        lines.append(f"{outcome:8}{check.id} {check.subject}{measured}{limit}{reason}")
    return lines


def number(value: float) -> str:
    """Return four digits, and whole numbers with thousands from 1,000 on."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
