"""What the embedded cloud refuses before it starts anything."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from infra.local import cloud, engine, process
from infra.local.nebius_api.errors import Faults
from infra.local.process import LocalError
from infra.local.slurm.pod import FAST_SETTING


def test_a_running_stack_keeps_its_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another `up` asks for would else be dropped without a word."""
    embedded = cloud.Cloud.from_environ({"SOPERATOR_STATE": str(tmp_path)})
    run_dir, log = embedded.state.run, tmp_path / "log"
    environ = {"PATH": "/usr/bin:/bin", FAST_SETTING: "1"}
    process.start(cloud.RECONCILER, ["sleep", "60"], run_dir=run_dir, log=log, env=environ)
    try:
        monkeypatch.setenv(FAST_SETTING, "1")
        cloud.start_reconciler(embedded)
        monkeypatch.setenv(FAST_SETTING, "0")
        assert cloud.slurm_setup(embedded).fast_times
        with pytest.raises(
            LocalError, match=r"shortened times .* run `soperator local down` first"
        ):
            cloud.start_reconciler(embedded)
    finally:
        process.stop(cloud.RECONCILER, run_dir)


def test_services_of_a_version_with_a_constant_token_end_at_the_next_up(tmp_path: Path) -> None:
    embedded = cloud.Cloud.from_environ({"SOPERATOR_STATE": str(tmp_path)})
    engine.make_token(embedded.state)
    run = embedded.state.run

    def start(name: str, **environ: str) -> None:
        variables = {"PATH": "/usr/bin:/bin", **environ}
        process.start(name, ["sleep", "60"], run_dir=run, log=tmp_path / "log", env=variables)

    try:
        for token, kept in (("local-token", False), (engine.token(embedded.state), True)):
            start(cloud.RECONCILER, NEBIUS_IAM_TOKEN=token)
            start("etcd")
            start("slurmctld")
            cloud._stop_what_takes_another_token(embedded)
            found = [process.alive(name, run) for name in (cloud.RECONCILER, "etcd", "slurmctld")]
            assert found == [kept, kept, True]
    finally:
        for name in (cloud.RECONCILER, "etcd", "slurmctld"):
            process.stop(name, run)


def test_a_strangers_listener_on_the_login_port_is_refused_at_once(tmp_path: Path) -> None:
    """The program waited for SSH on it until its dial attempts ran out."""
    embedded = cloud.Cloud.from_environ({"SOPERATOR_STATE": str(tmp_path)})
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        with pytest.raises(LocalError, match=rf"^local\.login\.ssh_port: port {port} of .* is in"):
            cloud.refuse_taken_login_port(embedded, "local.login.ssh_port", port)
    cloud.refuse_taken_login_port(embedded, "local.login.ssh_port", port)


def test_the_time_of_operations_is_a_fault_until_all_are_cleared(tmp_path: Path) -> None:
    embedded = cloud.Cloud.from_environ({"SOPERATOR_STATE": str(tmp_path)})
    folder = embedded.state.local / cloud.EMULATOR
    folder.mkdir(parents=True)
    cloud.plant_fault(embedded, "quota", "Create$", 1)
    for seconds in (5.0, 0.0):
        cloud.set_latency(embedded, seconds)
        assert Faults(folder).delay_s("any/Create", "operation") == seconds
    assert [one["code"] for one in Faults(folder).pending()] == ["RESOURCE_EXHAUSTED", "SLOW"]
    cloud.clear_faults(embedded)
    assert Faults(folder).delay_s("any/Create", "operation") is None


def test_operations_of_a_cloud_that_was_never_started_take_no_other_time(tmp_path: Path) -> None:
    """It was a traceback."""
    embedded = cloud.Cloud.from_environ({"SOPERATOR_STATE": str(tmp_path)})
    with pytest.raises(LocalError, match="never started; run `soperator local up`"):
        cloud.set_latency(embedded, 5.0)
