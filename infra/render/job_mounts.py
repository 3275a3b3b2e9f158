"""What a job sees of the jail: the mount points that its node must have, and those in a container.

Owns pyxis' options, and the folder that a job has for itself in Soperator's memory. Source:
https://github.com/NVIDIA/pyxis/wiki/Usage (2026-11-21).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from stacks.mounts import shared_mounts
from stacks.node_spec import WorkerSpec
from stacks.slurm_spec import JobSpec
from stacks.soperator_mounts import MEMORY
from stacks.spec import StackSpec

CONTAINER_PYTHON: Final = "python3"
"""Of the image: an environment of the jail does not run on another image's libraries."""


def mounts_of(spec: StackSpec, nodesets: Sequence[WorkerSpec]) -> list[str]:
    """Mount points that hold the places: what must be mounted on every node of the job."""
    own = [{disk.mount_path for disk in worker.local_disks} for worker in nodesets]
    declared = [*shared_mounts(spec).values(), MEMORY, *set.intersection(*own)]
    if spec.storage.memory is not None:
        declared.append(spec.storage.memory.mount_path)
    return sorted(
        mount
        for mount in declared
        if any(PurePosixPath(path).is_relative_to(mount) for path in _paths(spec))
    )


def in_memory(path: str) -> bool:
    """Whether a place lies in the memory that Soperator mounts on each node."""
    return PurePosixPath(path).is_relative_to(MEMORY)


def place_word(path: str) -> str:
    """The path of a place as a word of a job's shell; in memory it is in the job's own folder.

    Soperator's prolog makes the folder, its epilog removes it. What lies beside it is never
    removed, and counts as used when the prolog asks whether the next job's memory is there: too
    little drains the node (4.1.7, helm/slurm-cluster/slurm_scripts: job_tmpfs_*, alloc_mem_used).
    """
    if not in_memory(path):
        return shlex.quote(path)
    return f"{MEMORY}/job_$SLURM_JOB_ID{path.removeprefix(MEMORY)}"


def container_options(spec: StackSpec, job: JobSpec, mounts: Sequence[str]) -> str:
    """Options of srun that run `job` in its image, with the places and the code where they are."""
    if job.container is None:
        return ""
    # A place without a mount of its own is a folder of the jail.
    folders = {
        path
        for path in _paths(spec)
        if not any(PurePosixPath(path).is_relative_to(mount) for mount in mounts)
    }
    bound = ",".join(f"{path}:{path}" for path in sorted({*mounts, *folders}))
    options = [
        f"--container-image={shlex.quote(job.container)}",
        f"--container-mounts={shlex.quote(bound)}",
        '--container-workdir="$code"',
        # The image's own values of these would win over the job's.
        "--container-env=PYTHONPATH,OMP_NUM_THREADS",
        # An image of a server starts it by itself; here the module does, with its own flags.
        "--no-container-entrypoint",
        "--no-container-mount-home",
    ]
    return " ".join(options)


def _paths(spec: StackSpec) -> list[str]:
    return [*spec.storage.places.values(), spec.code_path]
