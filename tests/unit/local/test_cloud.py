"""What the embedded cloud refuses before it starts anything."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from infra.local import cloud, process
from infra.local.errors import LocalError
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


def test_a_strangers_listener_on_the_login_port_is_refused_at_once(tmp_path: Path) -> None:
    """The program waited for SSH on it until its dial attempts ran out."""
    embedded = cloud.Cloud.from_environ({"SOPERATOR_STATE": str(tmp_path)})
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        with pytest.raises(LocalError, match=rf"^local\.login\.ssh_port: port {port} of .* is in"):
            cloud.refuse_taken_login_port(embedded, "local.login.ssh_port", port)
    cloud.refuse_taken_login_port(embedded, "local.login.ssh_port", port)
