"""The copy of a run's state in host memory, which is written while training goes on.

Owns that there is one at most, and when the host has no room for it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from workloads.common.log import log
from workloads.train.checkpoint_ranks import Ranks
from workloads.train.checkpoint_state import num_local_bytes


class Staging:
    """The copy of one run; reused by every save."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._on_gpu = ranks.world.device.type == "cuda"
        self._stager: DefaultStager | None = None

    def stager(self) -> DefaultStager:
        """Return what makes the copy."""
        if self._stager is None:
            self._stager = DefaultStager(
                StagingOptions(
                    use_pinned_memory=self._on_gpu,
                    use_shared_memory=False,
                    use_async_staging=False,
                    use_non_blocking_copy=self._on_gpu,
                )
            )
        return self._stager

    def has_room(self, values: dict[str, Any]) -> bool:
        """Whether the host memory of every node takes the copies of its ranks."""
        if self._stager is not None:
            return True
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        need, free = num_local_bytes(values) * ranks, _available_bytes()
        fits = not self._ranks.any(need > 0.8 * free)
        if not fits:
            log(
                f"a copy of the state takes {need / 2**30:.1f} GiB of host memory, "
                f"{free / 2**30:.1f} GiB are available: saves block training"
            )
        return fits


def _available_bytes() -> int:
    with Path("/proc/meminfo").open(encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0
