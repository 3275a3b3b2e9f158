"""Configuration files of the Slurm daemons, to the byte, and what may not be in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from infra.local.slurm import daemons
from infra.local.slurm.daemons import Partition, SlurmSettings, WorkerNode
from infra.local.slurm.pod import SlurmSetup

STATIC = "CPUs=64 Boards=1 SocketsPerBoard=1 CoresPerSocket=32 ThreadsPerCore=2 Gres=gpu:l40s:2"


@pytest.fixture(autouse=True)
def _of_the_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlurmSetup, "version", "25.11.3")


def settings() -> SlurmSettings:
    """Two GPU workers and accounting, as the local stack declares."""
    workers = tuple(
        WorkerNode(
            name=f"worker-{index}",
            nodeset="worker",
            port=17820 + index,
            static=STATIC,
            memory_mib=358400,
            has_gpus=True,
        )
        for index in range(2)
    )
    return SlurmSettings(
        cluster="soperator",
        namespace="gpu",
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
        accounting_config={
            "AccountingStorageTRES": "CPU,Mem,Node,VMem,Gres/gpu",
            "JobAcctGatherFrequency": 0,
            "JobAcctGatherType": "jobacct_gather/cgroup",
        },
        slurm_config={
            "CompleteWait": 5,
            "DefCpuPerGPU": 4,
            "Epilog": "/opt/slurm_scripts/epilog.sh",
            "Prolog": "/opt/slurm_scripts/prolog.sh",
        },
        health_check={
            "healthCheckProgram": "/opt/slurm_scripts/hc_program.sh",
            "healthCheckInterval": 120,
            "healthCheckNodeState": [{"state": "ANY"}, {"state": "CYCLE"}],
        },
        setup=SlurmSetup(prefix=Path("/opt/slurm")),
    )


Golden = Callable[[str, str], None]


def test_slurm_conf_of_the_local_stack(golden: Golden) -> None:
    golden("local/slurm.conf", daemons.render_slurm_conf(settings()))


def test_gres_conf_of_the_local_stack(golden: Golden) -> None:
    golden("local/gres.conf", daemons.render_gres_conf(settings().workers))


def test_slurmdbd_conf_of_the_local_stack(golden: Golden) -> None:
    golden("local/slurmdbd.conf", daemons.render_slurmdbd_conf(settings(), "password"))


def test_sshd_config_of_the_local_stack(golden: Golden) -> None:
    golden("local/sshd_config", daemons.render_sshd_config(30022, 1, "/usr/sbin:/usr/bin"))


def test_without_structured_partitions_there_are_no_node_lines() -> None:
    text = daemons.render_slurm_conf(replace(settings(), declares_nodes=False))
    assert "NodeName=" not in text


def test_state_and_features_of_the_static_line_are_stripped() -> None:
    worker = replace(settings().workers[0], static="CPUs=4 State=FUTURE Features=x Feature=y")
    text = daemons.render_slurm_conf(replace(settings(), workers=(worker,)))
    assert "FUTURE" not in text
    assert "Feature" not in text


def test_a_set_is_named_once_with_its_nodes_and_partitions_name_it() -> None:
    text = daemons.render_slurm_conf(settings())
    assert "NodeSet=worker Nodes=worker-0,worker-1\n" in text
    assert "PartitionName=cpu Nodes=cpu State=UP\n" in text


def test_slurms_waits_are_the_operators_unless_tests_shorten_them() -> None:
    real = daemons.render_slurm_conf(settings())
    fast = daemons.render_slurm_conf(
        replace(settings(), setup=replace(settings().setup, fast_times=True))
    )
    for key in ("KillWait", "SlurmdTimeout"):
        assert f"\n{key}=180\n" in real
        assert f"\n{key}=30\n" in fast
    assert "bf_interval" not in real
    assert "batch_sched_delay=0" in fast


def test_debians_slurm_gets_no_line_that_it_refuses() -> None:
    text = daemons.render_slurm_conf(replace(settings(), setup=SlurmSetup()))
    assert "MetricsType" not in text
    assert "ReconfigFlags" not in text


@pytest.mark.parametrize(
    ("version", "has_metrics", "cgroup_conf"),
    [
        ("23.11.11", False, ""),
        ("24.11.7", False, "CgroupPlugin=disabled\n"),
        ("25.11.3", True, "CgroupPlugin=disabled\n"),
        ("26.05.3", True, "CgroupPlugin=disabled\n"),
    ],
)
def test_a_slurm_from_source_gets_no_line_that_its_version_refuses(
    version: str, has_metrics: bool, cgroup_conf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlurmSetup, "version", version)
    assert ("MetricsType" in daemons.render_slurm_conf(settings())) is has_metrics
    assert daemons.render_cgroup_conf(settings().setup) == cgroup_conf


def test_nothing_is_private_as_in_the_real_file() -> None:
    """Its metrics would go, says the operator; sleeping nodes of 22.05 are not listed then."""
    assert "PrivateData" not in daemons.render_slurm_conf(settings())


def test_custom_configuration_comes_last() -> None:
    text = daemons.render_slurm_conf(replace(settings(), custom="PrivateData=jobs\n"))
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
    assert daemons.gpus(static) == expected


def test_a_pod_knows_the_names_that_it_would_know_on_the_cloud() -> None:
    address, *names = daemons.render_hosts(settings()).split()
    assert address == "127.0.0.1"
    assert {
        "worker-1",
        "login-0",
        "worker-1.soperator-nodeset-svc",
        "worker-1.soperator-nodeset-svc.gpu.svc.cluster.local",
        "soperator-accounting-svc.gpu.svc.cluster.local",
        "controller-0.soperator-controller-svc",
    } <= set(names)
    # No search path leads there.
    assert "worker-1.gpu.svc.cluster.local" not in names
