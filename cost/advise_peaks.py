"""What the GPU of a platform can do at most, and the share of it that serving reaches.

Owns numbers with source and day. What follows from them is advise_estimate.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Peaks of one GPU."""

    bf16_flops: Decimal
    """Dense bf16 operations a second: half of what data sheets print with sparsity."""
    bytes_per_s: Decimal
    """Bytes a second from its memory."""
    link_bytes_per_s: Decimal
    """Bytes a second that it sends to the other GPUs of its node: half of both directions."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The part of a peak that serving reaches."""

    ratio: Decimal
    source: str


def _peaks(tflops: str, gb_per_s: str, link_gb_per_s: str, source: str) -> Peaks:
    return Peaks(
        bf16_flops=Decimal(tflops) * 10**12,
        bytes_per_s=Decimal(gb_per_s) * 10**9,
        link_bytes_per_s=Decimal(link_gb_per_s) * 10**9,
        source=source,
    )


_BLACKWELL: Final = (
    "bf16 of HGX B200 and B300 at 1,000 W and 8 TB/s of memory: "
    "glennklockwood.com/garden/processors/B200 and B300, read 2026-11-21"
)
_L40S: Final = _peaks("362.05", "864", "32", "nvidia.com/en-us/data-center/l40s, read 2026-10-01")
_B200: Final = _peaks("2250", "8000", "900", _BLACKWELL)

PEAKS: Final[Mapping[str, Peaks]] = MappingProxyType(
    {
        "gpu-l40s-a": _L40S,
        "gpu-l40s-d": _L40S,
        "gpu-h100-sxm": _peaks(
            "989.4", "3350", "450", "nvidia.com/en-us/data-center/h100 (SXM), read 2026-10-01"
        ),
        "gpu-h200-sxm": _peaks(
            "989.4", "4800", "450", "nvidia.com/en-us/data-center/h200 (SXM), read 2026-10-01"
        ),
        "gpu-b200-sxm": _B200,
        "gpu-b200-sxm-a": _B200,
        "gpu-b300-sxm": _B200,
    }
)
"""By platform of stacks/catalog.py."""

LINK_SOURCE: Final = (
    "NVLink 4 of Hopper 900 GB/s, NVLink 5 of Blackwell 1,800 GB/s: "
    "alpha-one-index.github.io/ai-infra-index/specs/networking-interconnects.html, read "
    "2026-11-21; L40S has no NVLink, its PCIe 4.0 x16 64 GB/s: its data sheet; both directions"
)

# Of the link the same share is assumed: no source was found for sums as small as a step's.
BANDWIDTH_SHARE: Final = Share(
    ratio=Decimal("0.6"),
    source="between the 45 % and 82 % of H100 and L40S with Llama-3.1-8B at batch 1 (93 and 44 "
    "tokens/s, Koyeb through aihardwareindex, read 2026-11)",
)
FLOPS_SHARE: Final = Share(
    ratio=Decimal("0.4"),
    source="41 to 43 % of H100 with models of 7B and 8B (LoRA training, NeMo AutoModel's "
    "performance summary, read 2026-11)",
)
MOST_STREAMS: Final = 256
"""Answers at once of one server: vLLM's default of max_num_seqs (docs.vllm.ai, read 2026-11)."""
