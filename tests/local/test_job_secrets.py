"""What another user of the cluster sees of a job's key: nothing, by Slurm or by `ps`."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.clients import slurm
from infra.clients.ssh import Connection
from infra.render.sbatch import render_sbatch
from tests.another_user import UID
from tests.local.jobs_cluster import JobsCluster, running_cluster

pytestmark = pytest.mark.local

_READY_S = 120.0
_LOOK = """
scontrol show job -dd {id}; scontrol show step {id}; squeue --format=%all; squeue --steps
scontrol write batch_script {id} -; ps axeww; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobsCluster]:
    folder = tmp_path_factory.mktemp("secrets")
    identity = folder / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", identity], check=True)
    public = Path(f"{identity}.pub").read_text().strip()
    with running_cluster(folder, public, identity) as made:
        yield made


def test_the_key_of_a_job_is_seen_by_no_other_user(cluster: JobsCluster) -> None:
    job = next(each for each in cluster.spec.jobs if each.name == "finetune")
    made = [line for line in render_sbatch(cluster.spec, job).splitlines() if "RDZV_KEY" in line]
    assert len(made) == 2, "one makes it, one exports it"
    results = cluster.outputs.places["results"]
    said = cluster.path(results) / "key"
    lines = [
        "#!/bin/bash",
        f"#SBATCH --nodes=2 --ntasks-per-node=1 --output={results}/log",
        "MASTER_ADDR=body-of-the-script MASTER_PORT=1",
        *made,
        f"srun bash -c 'printenv SOPERATOR_RDZV_KEY > {results}/key; sleep 300'",
    ]
    opened = Connection(cluster.outputs.endpoint(cluster.identity))
    with opened as connection, cluster.root() as root:
        sent = connection.run("sbatch", stdin="\n".join(lines).encode())
        number = sent.stdout.split()[-1]
        try:
            deadline = time.monotonic() + _READY_S
            while not (said.is_file() and said.read_text().strip()):
                assert time.monotonic() < deadline, sent
                time.sleep(0.1)
            key = said.read_text().strip()
            assert len(key) == 64
            look = _LOOK.format(id=number)
            theirs = f"setpriv --reuid={UID} --regid={UID} --clear-groups bash -s"
            mine = connection.run("bash -s", stdin=look.encode())
            seen = root.run(theirs, stdin=look.encode())
        finally:
            slurm.cancel(connection, [number])
    assert key in mine.stdout, "its user sees it in the environment of its processes"
    assert "body-of-the-script" in mine.stdout
    assert f"JobId={number}" in seen.stdout, "the other user did look"
    assert key not in seen.stdout
    assert "body-of-the-script" not in seen.stdout, "Slurm gives a script to its owner alone"
