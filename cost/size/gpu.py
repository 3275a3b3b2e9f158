"""How much of the memory of a GPU and of its node a job can use.

Owns the reserve. Memory sizes of platforms are in stacks/catalog.py, in GB of the data sheets.
"""

from __future__ import annotations

from typing import Final

BYTES_PER_GB: Final = 10**9
# A GPU of 48 GB shows 44.40 GiB to CUDA (an L40 in github.com/QwenLM/Qwen3-VL/issues/2097,
# 2026-06-04), so decimal gigabytes (44.70 GiB) come close to what there is. The CUDA context,
# buffers of NCCL and fragmentation take a part that nobody has measured here: 8 % are left for it.
USABLE_PERCENT: Final = 92


def usable_host_bytes(memory_gib: int) -> int:
    """Bytes that a job may take of a node's own memory."""
    return memory_gib * 2**30 * USABLE_PERCENT // 100


def usable_bytes(gpu_memory_gb: int) -> int:
    """Bytes that tensors may take on a GPU of this many GB."""
    return gpu_memory_gb * BYTES_PER_GB * USABLE_PERCENT // 100
