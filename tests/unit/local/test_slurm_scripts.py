"""Prolog and epilog of the local stack's charts, run in a mount namespace of their own."""

from __future__ import annotations

import os
import subprocess

import pytest

from infra.state import CHECKOUT

SCRIPTS = CHECKOUT / "infra" / "local" / "kube" / "charts" / "slurm_scripts"
_MEMORY = "mount -t tmpfs none /mnt && mkdir /mnt/memory && mount -t tmpfs none /mnt/memory && "


def run_in_namespace(command: str, job_id: str) -> list[str]:
    """Run the command with a /mnt/memory of its own; return what lies there afterwards."""
    words = f"{_MEMORY}{command} && ls /mnt/memory"
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-ec", words],
        env={**os.environ, "SLURM_JOB_ID": job_id},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount in a namespace")
def test_the_epilog_removes_what_the_job_left_in_memory_and_nothing_of_others() -> None:
    """What stays there counts as used, and the next whole-node job drains the node."""
    made = "mkdir -p /mnt/memory/job_5/data /mnt/memory/job_6"
    assert run_in_namespace(made, "5") == ["job_5", "job_6"]
    assert run_in_namespace(f"{made} && bash {SCRIPTS}/epilog.sh", "5") == ["job_6"]
