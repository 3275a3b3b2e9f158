"""An OpenSSH config that leads an editor into a session: login node, then the node of the session.

Owns the text. Pure. VS Code's Remote-SSH reads it like any ssh client and brings its own server.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def ssh_config(
    stack: str,
    node: str,
    *,
    login_host: str,
    login_port: int,
    key: Path,
    login_options: Mapping[str, str],
    node_known_hosts: Path,
) -> str:
    """Two hosts: `soperator-STACK` is the login node, `soperator-STACK-shell` the session's."""
    login = f"soperator-{stack}"
    return "\n".join(
        [
            f"Host {login}",
            f"  HostName {login_host}",
            f"  Port {login_port}",
            "  User root",
            f"  IdentityFile {_quoted(key)}",
            *(f"  {name} {_quoted(value)}" for name, value in login_options.items()),
            "",
            f"Host {login}-shell",
            f"  HostName {node}",
            "  User root",
            f"  ProxyJump {login}",
            f"  IdentityFile {_quoted(key)}",
            "  IdentitiesOnly yes",
            # Pods are made anew with other keys; the way to them is the pinned login node.
            "  StrictHostKeyChecking accept-new",
            f"  UserKnownHostsFile {_quoted(node_known_hosts)}",
            "",
        ]
    )


def _quoted(value: Path | str) -> str:
    text = str(value)
    return f'"{text}"' if " " in text else text
