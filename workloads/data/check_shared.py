"""Whether a path is the same on every node of a Slurm allocation.

Owns the proof: a mark is written on this node and looked for by a task on each node. A data set on
a node's own disk is found by the first node and missed by the others, after GPUs were taken.
Usage, inside an allocation: python -m workloads.data.check_shared /mnt/data/prepared [PATH...]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from workloads.common.exit_codes import DataError
from workloads.common.log import log
from workloads.data.manifest import command

_LOOK = 'test -e "$1" || hostname'


def check_shared(path: Path, *, num_nodes: int) -> None:
    """Raise when any of the `num_nodes` nodes does not see what this node wrote to `path`."""
    if not path.is_dir():
        raise DataError(f"{path}: is no folder on {os.uname().nodename}; prepare or push it first")
    mark = path / f".shared.{uuid.uuid4().hex}"
    try:
        mark.touch()
    except OSError as error:
        raise DataError(f"{path}: cannot be written here: {error.strerror}") from error
    try:
        done = subprocess.run(
            [
                *("srun", "--overlap", f"--nodes={num_nodes}", f"--ntasks={num_nodes}"),
                *("--ntasks-per-node=1", "sh", "-c", _LOOK, "look", str(mark)),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        mark.unlink(missing_ok=True)
    if done.returncode:
        raise DataError(
            f"{path}: the nodes could not be asked: srun: {done.stderr.strip()[:200]}; "
            "run this inside an allocation"
        )
    blind = sorted(done.stdout.split())
    if blind:
        raise DataError(
            f"{path}: is not shared: {len(blind)} of {num_nodes} nodes do not see it "
            f"({', '.join(blind)}); use a place on a shared filesystem (storage.places)"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m workloads.data.check_shared",
        description="Refuse paths that not every node of the allocation shares",
    )
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH")
    options = parser.parse_args(arguments)
    return command(lambda: _run(options.paths))


def _run(paths: Sequence[Path]) -> None:
    num_nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
    for path in paths:
        check_shared(path, num_nodes=num_nodes)
        log(f"{path}: the same on {num_nodes} nodes")


if __name__ == "__main__":
    sys.exit(main())
