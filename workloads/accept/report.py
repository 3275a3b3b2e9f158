"""The result of a run: who took part, what was measured, what was asked. Schema version 1."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from workloads.accept.gates import Check, Gates, Outcome, overall
from workloads.common import atomic
from workloads.common.dist import World
from workloads.common.exit_codes import WorkloadError
from workloads.common.record import job_environment, job_id, package_versions, utc_now
from workloads.recipes.accept import AcceptConfig

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
SCHEMA_VERSION = 1
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
        """Return the result as plain values."""
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
