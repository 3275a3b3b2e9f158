"""Programs of others that measure the same, where they are: nccl-tests, one node's and over all.

Owns finding them, how they are started over several nodes (srun, for which they are built with MPI)
and where the ranks wait meanwhile. What they print is read in nccl_tests.py.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from workloads.accept import nccl_tests
from workloads.accept.bus import Transfer
from workloads.common.dist import World

TIMEOUT_S = 1800
"""Of all programs of nccl-tests together."""
_END_S: Final = 240
"""For the tasks of a step that is ended: Soperator's KillWait is 180 s."""
_STEP: Final = ("SLURM_", "SRUN_", "PMI_", "PMIX_")
"""Variables of the step that the ranks run in: another step reads them as its own options."""


def on_path(program: str) -> Path | None:
    """Return the folder of PATH that holds `program`; None: none does."""
    found = shutil.which(program)
    return None if found is None else Path(found).parent


def over_nodes(
    nodes: int, gpus: int, environment: Mapping[str, str] = os.environ
) -> list[str] | None:
    """Return the words that start one process a GPU on all nodes of the job; None without Slurm."""
    job, srun = environment.get("SLURM_JOB_ID"), shutil.which("srun", path=environment.get("PATH"))
    if not job or srun is None:
        return None
    return [
        srun,
        f"--jobid={job}",
        # The ranks of the suite hold the job's GPUs and CPUs, and wait.
        "--overlap",
        f"--nodes={nodes}",
        f"--ntasks={nodes * gpus}",
        f"--ntasks-per-node={gpus}",
        f"--gpus-per-node={gpus}",
        "--cpus-per-task=1",
        "--kill-on-bad-exit=1",
    ]


def run_nccl_tests(
    folder: Path,
    gpus: int,
    sizes_mb: Sequence[int],
    *,
    nodes: int = 1,
    launcher: Sequence[str] = (),
    environment: Mapping[str, str] = os.environ,
) -> list[Transfer]:
    """Return what the programs in `folder` say of `gpus` on each of `nodes`.

    Each size is a run of its own: steps by a factor would miss the largest one. With a `launcher`
    each process has one GPU.
    """
    found: list[Transfer] = []
    ranks = nodes * gpus
    own = {name: each for name, each in environment.items() if not name.startswith(_STEP)}
    if "SLURM_CONF" in environment:
        own["SLURM_CONF"] = environment["SLURM_CONF"]
    end = time.monotonic() + TIMEOUT_S
    for op, name in nccl_tests.PROGRAMS.items():
        path = shutil.which(name, path=str(folder))
        if path is None:
            raise nccl_tests.NcclTestsError(f"{folder / name}: not there; build nccl-tests there")
        for size_mb in sizes_mb:
            size = str(nccl_tests.aligned(size_mb * 10**6, ranks))
            each = "1" if launcher else str(gpus)
            try:
                text = _output([*launcher, path, "-b", size, "-e", size, "-g", each], own, end)
            except subprocess.TimeoutExpired:
                raise nccl_tests.NcclTestsError(
                    f"{path}: the programs did not end in {TIMEOUT_S} s; run it by hand, "
                    "or leave accept.collectives.nccl_tests out"
                ) from None
            found += nccl_tests.parse(text, op=op, ranks=ranks)
    return found


def _output(words: Sequence[str], environment: Mapping[str, str], end_s: float) -> str:
    """Return what a program printed by `end_s`, a moment of time.monotonic()."""
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            return "".join(process.communicate(timeout=max(0.0, end_s - time.monotonic())))
        except subprocess.TimeoutExpired:
            # srun ends its tasks when it is asked to; killed, it leaves them on the GPUs.
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=_END_S)
            raise
        finally:
            process.kill()


def waiting_room(world: World) -> World:
    """Return the same ranks over gloo: who waits there keeps no GPU busy, as NCCL's waits do."""
    import torch
    import torch.distributed as dist

    if not world.is_distributed:
        return world
    if world.device.type == "cuda":
        torch.cuda.empty_cache()  # the programs are other processes, and need the memory
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=3 * TIMEOUT_S))
    return replace(world, device=torch.device("cpu"), group=group)
