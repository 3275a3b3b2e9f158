"""How much of the memory of a GPU and of its node a job can use.

Owns the reserve and what is left of a data sheet's GB. Which platform has how many GB is in
stacks/catalog.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

GIB: Final = 2**30
BYTES_PER_GB: Final = 10**9
USABLE_PERCENT: Final = 92
"""The CUDA context, buffers of NCCL and fragmentation take the rest; measured by nobody here."""

# What CUDA shows of a data sheet's GB ("GPU 0 has a total capacity of ..."), the least reading.
# 48 (L40): github.com/QwenLM/Qwen3-VL/issues/2097, 2026-06-04; L40S shows 44.42 in
# github.com/stepfun-ai/Step-Video-T2V/issues/8, 2025-02-17. 80 (H100): seed 001.
# 141 (H200), 180 (B200): out-of-memory messages in public logs, read 2026-11-21.
_SHOWN_GIB: Final[Mapping[int, float]] = MappingProxyType(
    {48: 44.40, 80: 79.19, 141: 139.72, 180: 178.35}
)


def usable_bytes(gpu_memory_gb: int) -> int:
    """Bytes that tensors may take on a GPU of this many GB; decimal GB where none was read."""
    shown_gib = _SHOWN_GIB.get(gpu_memory_gb)
    shown = gpu_memory_gb * BYTES_PER_GB if shown_gib is None else round(shown_gib * GIB)
    return shown * USABLE_PERCENT // 100


def usable_host_bytes(memory_gib: int) -> int:
    """Bytes that a job may take of a node's own memory."""
    return memory_gib * GIB * USABLE_PERCENT // 100
