"""What the embedded cloud refuses before it starts anything."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from infra.local import cloud
from infra.local.errors import LocalError


def test_a_strangers_listener_on_the_login_port_is_refused_at_once(tmp_path: Path) -> None:
    """The program waited for SSH on it until its dial attempts ran out."""
    embedded = cloud.Cloud.from_environ({"SOPERATOR_STATE": str(tmp_path)})
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        with pytest.raises(LocalError, match=rf"^local\.login\.ssh_port: port {port} of .* is in"):
            cloud.refuse_taken_login_port(embedded, "local.login.ssh_port", port)
    cloud.refuse_taken_login_port(embedded, "local.login.ssh_port", port)
