"""What an elastic checkpoint has beside a sharded one: whole weights and why it was written.

Owns `elastic_metadata.json` and whether this job may change its size. The full training state lies
in the slices that torch DCP writes, as in the sharded kind.
"""

from __future__ import annotations

import json
import os
from importlib import metadata

from workloads.common.record import utc_now
from workloads.train.state import TrainState

MIN_NODES, MAX_NODES = "SOPERATOR_MIN_NODES", "SOPERATOR_MAX_NODES"


def may_resize() -> bool:
    """Whether this job was submitted with a smallest number of nodes below its largest."""
    return os.environ.get(MIN_NODES, "") != os.environ.get(MAX_NODES, "")


def metadata_text(state: TrainState, step: int, *, reason: str) -> str:
    """Return `elastic_metadata.json`."""
    progress, world = state.progress, state.world
    values = {
        "format_version": 1,
        "step": step,
        "world_size": world.world_size,
        "ranks_per_node": int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        "min_nodes": _number(MIN_NODES),
        "max_nodes": _number(MAX_NODES),
        "strategy": state.strategy,
        "rows_per_step": progress.rows_per_step,
        "position": progress.position,
        "reason": reason,
        "versions": {"torch": metadata.version("torch")},
        "created_at": utc_now(),
    }
    return json.dumps(values, indent=1)


def _number(name: str) -> int | None:
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else None
