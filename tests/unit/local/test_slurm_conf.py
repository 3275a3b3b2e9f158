"""Configuration files of the Slurm daemons, to the byte, and what may not be in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from infra.local.slurm import conf
from infra.local.slurm.settings import Partition, SlurmSettings, WorkerNode

STATIC = "CPUs=64 Boards=1 SocketsPerBoard=1 CoresPerSocket=32 ThreadsPerCore=2 Gres=gpu:l40s:2"


def settings() -> SlurmSettings:
    """Two GPU workers and accounting, as the local stack declares."""
    workers = tuple(
        WorkerNode(
            name=f"worker-{index}",
            nodeset="worker",
            port=17820 + index,
            static=STATIC,
            memory_mib=358400,
        )
        for index in range(2)
    )
    return SlurmSettings(
        cluster="soperator",
        slurmctld_port=17804,
        slurmdbd_port=17805,
        mariadb_port=17806,
        workers=workers,
        declares_nodes=True,
        partitions=(
            Partition(name="main", config="Default=YES State=UP"),
            Partition(name="cpu", config="State=UP", nodesets=("cpu",)),
        ),
        accounting=True,
        job_gather="jobacct_gather/cgroup",
        slurm_config={"CompleteWait": 5, "DefCpuPerGPU": 4},
    )


Golden = Callable[[str, str], None]


def test_slurm_conf_of_the_local_stack(golden: Golden) -> None:
    golden("local/slurm.conf", conf.render_slurm_conf(settings()))


def test_gres_conf_of_the_local_stack(golden: Golden) -> None:
    golden("local/gres.conf", conf.render_gres_conf(settings().workers))


def test_slurmdbd_conf_of_the_local_stack(golden: Golden) -> None:
    golden("local/slurmdbd.conf", conf.render_slurmdbd_conf(settings(), "password"))


def test_sshd_config_of_the_local_stack(golden: Golden) -> None:
    golden("local/sshd_config", conf.render_sshd_config(30022, 1))


def test_without_structured_partitions_there_are_no_node_lines() -> None:
    text = conf.render_slurm_conf(replace(settings(), declares_nodes=False))
    assert "NodeName=" not in text


def test_state_and_features_of_the_static_line_are_stripped() -> None:
    worker = replace(settings().workers[0], static="CPUs=4 State=CLOUD Features=x Feature=y")
    text = conf.render_slurm_conf(replace(settings(), workers=(worker,)))
    assert "CLOUD" not in text
    assert "Feature" not in text


def test_a_partition_of_an_unknown_nodeset_has_no_nodes() -> None:
    assert 'PartitionName=cpu Nodes="" State=UP' in conf.render_slurm_conf(settings())


def test_custom_configuration_comes_last() -> None:
    text = conf.render_slurm_conf(replace(settings(), custom="PrivateData=jobs\n"))
    assert text.endswith("PrivateData=jobs\n")


@pytest.mark.parametrize(
    ("static", "expected"),
    [
        ("CPUs=8 Gres=gpu:nvidia_l40s:2", ("nvidia_l40s", 2)),
        ("gres=gpu:8", (None, 8)),
        ("CPUs=8", (None, 0)),
        ("Gres=shard:4", (None, 0)),
    ],
)
def test_gpus_are_read_from_the_gres_of_the_static_line(
    static: str, expected: tuple[str | None, int]
) -> None:
    assert conf.gpus(static) == expected
