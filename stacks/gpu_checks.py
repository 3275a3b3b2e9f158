"""Which hardware Soperator's GPU checks know: on any other they print a line and pass.

Source: nebius/soperator helm/soperator-activechecks/scripts at 4.1.7 with health-checker 1.1.30,
read 2026-11-21: platforms 8xH100, 8xH200, 8xB200 and 8xB300.
"""

from __future__ import annotations

from typing import Final

from stacks.catalog import find_preset
from stacks.node_spec import WorkerSpec

CHECKED_GPUS: Final = 8
CHECKED_PLATFORMS: Final = (
    "gpu-h100-sxm",
    "gpu-h200-sxm",
    "gpu-b200-sxm",
    "gpu-b200-sxm-a",
    "gpu-b300-sxm",
)


def checks_know(worker: WorkerSpec) -> bool:
    """Whether a GPU check on this worker's nodes would check anything."""
    preset = find_preset(worker.platform, worker.preset)
    return (
        preset is not None and preset.gpus == CHECKED_GPUS and worker.platform in CHECKED_PLATFORMS
    )
