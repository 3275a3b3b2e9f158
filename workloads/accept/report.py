"""The result of a run: what was measured, what was asked, who took part. Schema version 1.

Owns acceptance.json, whose shape acceptance.schema.json publishes. Several results of one cluster
(a job for each stage) are put together by who reads them.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workloads.accept.config import AcceptConfig
from workloads.accept.gates import Gates
from workloads.accept.nodes import Node
from workloads.accept.outcome import Check, Outcome, overall
from workloads.common import atomic
from workloads.common.record import job_environment, job_id, package_versions, utc_now

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
            "nodes": [node.to_json() for node in self.nodes],
            "checks": [check.to_json() for check in self.checks],
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
