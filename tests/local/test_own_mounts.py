"""What a stack adds to its nodes, seen by jobs: an NFS export, folders of a disk, Slurm's lines."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from infra.render.charts import chart_values
from infra.state import CHECKOUT
from stacks.load import KEY_FILE_VARIABLE, load_stack
from stacks.spec.nodes import LocalDiskSpec
from tests.conftest import PUBLIC_KEY
from tests.local.slurm_stand import CLUSTER, NODESETS, Stand, running_stand

pytestmark = pytest.mark.local

EXPORT = {"nfs": {"server": "127.0.0.1", "path": "/srv/nfs"}}
FOLDERS = ("tmp", "preprocessed")


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """A cluster that mounts an export and has a disk of each worker alone."""
    with running_stand(tmp_path_factory.mktemp("stand")) as made:
        values = made.values()
        cluster, (nodeset,) = values[CLUSTER], values[NODESETS]["nodesets"]
        cluster["customSlurmConfig"] = "MaxArraySize=4242\n"
        cluster["volumeSources"].append({"name": "nfs", **EXPORT})
        login = cluster["slurmNodes"]["login"]["volumes"]["jailSubMounts"]
        login.append({"name": "nfs", "mountPath": "/mnt/nfs", "volumeSourceName": "nfs"})
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "93Gi"}}}
        own = {"name": "scratch", "mountPath": "/mnt/scratch", "volumeClaimTemplateSpec": claim}
        export = {"name": "nfs", "mountPath": "/mnt/nfs", "volumeSource": EXPORT}
        nodeset["slurmd"]["volumes"]["jailSubMounts"] += [export, own]
        nodeset["customInitContainers"] = _init_containers(made.key.parent)
        made.apply(values)
        made.wait_idle("worker-[0-1]")
        yield made


def _init_containers(folder: Path) -> list[dict[str, object]]:
    """Those that the program gives a worker for such a disk; the others name mounts not here."""
    key = folder / "key.pub"
    key.write_text(PUBLIC_KEY + "\n")
    spec = load_stack("local", environ={KEY_FILE_VARIABLE: str(key)})
    (first, *others) = spec.nodes.workers
    disk = LocalDiskSpec(name="scratch", mount_path="/mnt/scratch", size_gib=93, folders=FOLDERS)
    workers = (replace(first, local_disks=(disk,)), *others)
    values = chart_values(replace(spec, nodes=replace(spec.nodes, workers=workers)), "nodesets")
    return [
        each
        for each in values["nodesets"][0]["customInitContainers"]
        if each["volumeMounts"][0]["name"] == disk.name
    ]


def test_a_file_on_the_export_is_seen_by_login_and_every_worker(stand: Stand) -> None:
    assert stand.ssh("echo shared > /mnt/nfs/note").returncode == 0
    job = stand.submit("srun cat /mnt/nfs/note", "-N2")
    assert stand.output(job).split() == ["shared", "shared"]


@pytest.mark.feature("S003-47", "S003-48")
def test_folders_of_the_disk_are_there_for_everybody_and_on_each_worker_alone(
    stand: Stand,
) -> None:
    job = stand.submit(
        "srun sh -c 'stat -c %a /mnt/scratch/tmp /mnt/scratch/preprocessed; "
        "hostname > /mnt/scratch/tmp/who; cat /mnt/scratch/tmp/who'",
        "-N2",
    )
    assert sorted(stand.output(job).split()) == ["1777"] * 4 + ["worker-0", "worker-1"]


_COPIES = """
import pathlib
from workloads.common.places import PREPARED, Places, stage
places = Places({"SOPERATOR_PLACE_SCRATCH": "/mnt/scratch"})
print(stage(pathlib.Path("/dev/shm/glaive"), places, PREPARED).text)
"""


@pytest.mark.feature("S003-48")
def test_the_tasks_of_each_worker_copy_prepared_data_to_its_disk_once(stand: Stand) -> None:
    """A tmpfs stands for shared storage, which is another filesystem than the disk too."""
    prepared = "mkdir -p /dev/shm/glaive; echo tokens > /dev/shm/glaive/tokens_train.parquet"
    state = stand.cloud.state.local / "filesystems" / "computefilesystem-jail-submount-data"
    shutil.copytree(CHECKOUT / "workloads", state / "workloads")
    job = stand.submit(
        f"srun -n2 sh -c '{prepared}'\nsrun -n4 python3 -c {shlex.quote(_COPIES)}\n"
        "srun -n2 sh -c 'ls /mnt/scratch/preprocessed/0; rm -r /dev/shm/glaive'",
        *("-N2", "-n4"),
    )
    said = stand.output(job).splitlines()
    copied = [line for line in said if "of data copied to /mnt/scratch/preprocessed/0/gl" in line]
    found = [line for line in said if line.startswith("data are in /mnt/scratch/preprocessed/0/")]
    listed = [line for line in said if line.startswith("glaive-")]
    assert (len(copied), len(found), len(listed)) == (2, 2, 2), said


def test_a_line_for_slurm_is_in_force(stand: Stand) -> None:
    assert "4242" in stand.ssh("scontrol show config | grep MaxArraySize").stdout
