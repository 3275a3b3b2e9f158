"""What a node is, as a job sees it: `python -m workloads.look --recipe look`.

Needs no packages: the first job on a cluster that was never seen before. Its run record has the
CPUs, memory, GPUs, free space and write speed that it found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from typing import Final

from workloads.common.log import log
from workloads.job import Job, end, run_job

_MIB: Final = 1 << 20
_WRITTEN_MIB: Final = 64
_GPU_FIELDS: Final = "name,memory.total,driver_version"
_ASK_S: Final = 30


def main(job: Job) -> None:
    """Say what is here, and measure one write to the results' filesystem."""
    cpus = len(os.sched_getaffinity(0))
    memory_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MIB
    gpus = _gpus()
    free_gib = shutil.disk_usage(job.results_dir).free / 2**30
    mb_per_s = _write_mb_per_s(job)
    log(f"{os.uname().nodename}: {cpus} CPUs, {memory_mib:,} MiB, Python {sys.version.split()[0]}")
    for gpu in gpus or ("no NVIDIA GPU is seen",):
        log(gpu)
    log(f"{job.results_dir}: {free_gib:,.1f} GiB free, {mb_per_s:,.0f} MB/s written")
    job.record.model = None
    job.record.metrics |= {
        "num_cpus": cpus,
        "memory_mib": memory_mib,
        "num_gpus": len(gpus),
        "free_gib": round(free_gib, 1),
        "write_mb_per_s": round(mb_per_s, 1),
    }


def _gpus() -> tuple[str, ...]:
    """One line for each GPU that the job was given."""
    command = ["nvidia-smi", f"--query-gpu={_GPU_FIELDS}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(done.stdout.splitlines()) if done.returncode == 0 else ()


def _write_mb_per_s(job: Job) -> float:
    """10^6 bytes a second of one file that is synced to its filesystem, then removed."""
    path = job.results_dir / ".written"
    piece = os.urandom(_MIB)
    begin = time.monotonic()
    try:
        with path.open("wb") as file:
            for _ in range(_WRITTEN_MIB):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        return _WRITTEN_MIB * _MIB / 1e6 / max(time.monotonic() - begin, 1e-9)
    finally:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    end(run_job("look", main))
