"""What this job runs on: device, declared platform and preset, arithmetic that it is fast in.

Owns the table of dense bf16 peaks. Does not own prices or presets: stacks/catalog.py and cost/ do.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from workloads.common.log import log

# Dense bf16 tensor-core peak in FLOP/s, by a part of torch's device name. The data sheets print the
# figure with 2:4 sparsity; dense is half of it. Retrieved 2026-10-01.
# H100 SXM: https://www.nvidia.com/en-us/data-center/h100/ (1,979 teraFLOPS with sparsity)
# H200 SXM: https://www.nvidia.com/en-us/data-center/h200/ (1,979 teraFLOPS with sparsity)
# L40S: https://www.nvidia.com/en-us/data-center/l40s/ (733 teraFLOPS with sparsity)
PEAK_BF16_FLOPS: tuple[tuple[str, float], ...] = (
    ("H200", 989.4e12),
    ("H100 80GB HBM3", 989.4e12),
    ("L40S", 362.05e12),
)
# Instructions that multiply in 16 bits: names of torch.cpu.get_capabilities() (torch 2.15) of x86,
# then Arm; oneDNN has AVX-NE-CONVERT in "avx2_vnni_2". And what a core without them does: of an AMD
# EPYC with AVX2, and of one with AVX-512; matrices of 512 x 512, measured 2026-11-26.
_IN_16_BITS = {
    "bf16": (
        ("avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"),
        "about an eighth of fp32's speed (8 against 60 GFLOP/s of a core",
    ),
    "fp16": (
        ("avx512_fp16", "amx_fp16", "avx_ne_convert", "fp16_arith"),
        "about a twentieth of fp32's speed (2.6 against 65 GFLOP/s of a core",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The `hardware` object of a run record."""

    platform: str | None
    preset: str | None
    device: str
    num_nodes: int
    num_gpus_declared: int


def peak_bf16_flops(device_name: str) -> float | None:
    """Return the dense bf16 peak of one device in FLOP/s; None when it is not in the table."""
    return next((flops for part, flops in PEAK_BF16_FLOPS if part in device_name), None)


def device_name() -> str:
    """Return the name of the accelerator of this rank, or `cpu`; imports torch only for a GPU."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def detect_for(dtype: str, *, remedy: str) -> Hardware:
    """Return the hardware of this rank; log where its CPU is slow in `dtype`, and the remedy."""
    import torch

    device, (instructions, speed) = device_name(), _IN_16_BITS.get(dtype, ((), ""))
    if device == "cpu" and speed and not any(map(torch.cpu.get_capabilities().get, instructions)):
        log(
            f"{dtype} is asked for, and this CPU has no instructions for it: it multiplies at "
            f"{speed}, measured 2026-11-26); set {remedy}, which takes up to twice the memory"
        )
    return detect(device)


def detect(device: str) -> Hardware:
    """Return the hardware of this job from what the stack and Slurm declare."""
    num_nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
    gpus_on_node = os.environ.get("SLURM_GPUS_ON_NODE", "0")
    return Hardware(
        platform=os.environ.get("SOPERATOR_PLATFORM") or None,
        preset=os.environ.get("SOPERATOR_PRESET") or None,
        device=device,
        num_nodes=num_nodes,
        num_gpus_declared=num_nodes * (int(gpus_on_node) if gpus_on_node.isdigit() else 0),
    )


def available_bytes() -> int:
    """Return the host memory that new work can have; 0 where the kernel does not say."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
