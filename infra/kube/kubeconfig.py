"""How to reach an API server: what a kubeconfig says, exec credentials included.

Owns parsing and the life of a token. Does not use `kubectl` or any cloud's tool by itself.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from stacks.errors import UserError

_EXEC_TIMEOUT_S = 60
_RENEW_BEFORE_S = 60


class KubeconfigError(UserError):
    """A kubeconfig that leads nowhere."""


@dataclass(kw_only=True)
class Access:
    """Server, trust, identity and default namespace of one context."""

    server: str
    ca_pem: str | None = None
    insecure: bool = False
    static_token: str | None = None
    exec_command: dict[str, Any] | None = None
    client_pem: str | None = None
    """Client certificate and key, one after the other."""
    namespace: str = "default"
    _token: str | None = field(default=None, repr=False)
    _expires: float = field(default=float("inf"), repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def ssl_context(self) -> ssl.SSLContext:
        """The TLS context that trusts this cluster's own authority."""
        context = ssl.create_default_context(cadata=self.ca_pem)
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.client_pem:
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(self.client_pem)
                file.flush()
                context.load_cert_chain(file.name)
        return context

    def token(self) -> str | None:
        """A bearer token that is still valid; runs the exec credential when needed."""
        if self.exec_command is None:
            return self.static_token
        with self._lock:
            if self._token is None or time.time() > self._expires - _RENEW_BEFORE_S:
                self._token, self._expires = _run_exec(self.exec_command)
            return self._token


def read_kubeconfig(content: str, context: str | None = None) -> Access:
    """The access of a kubeconfig given as JSON, YAML or path."""
    config = _load(content)
    name = context or config.get("current-context") or _only(config.get("contexts", []))
    chosen = _named(config, "contexts", name, "context")
    cluster = _named(config, "clusters", chosen.get("cluster"), "cluster")
    user = _named(config, "users", chosen.get("user"), "user") if chosen.get("user") else {}
    if not cluster.get("server"):
        raise KubeconfigError(f"kubeconfig: clusters.{chosen.get('cluster')}.server: is required")
    certificate, key = _pem(user, "client-certificate"), _pem(user, "client-key")
    return Access(
        server=cluster["server"].rstrip("/"),
        ca_pem=_pem(cluster, "certificate-authority"),
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        static_token=_static_token(user),
        exec_command=user.get("exec"),
        client_pem=certificate + "\n" + key if certificate and key else None,
        namespace=chosen.get("namespace") or "default",
    )


def _load(content: str) -> dict[str, Any]:
    text = content.strip()
    if "\n" not in text and not text.startswith("{"):
        path = Path(text).expanduser()
        if not path.is_file():
            raise KubeconfigError(f"kubeconfig: {text!r} is neither a file nor JSON or YAML")
        text = path.read_text()
    try:
        config = json.loads(text) if text.startswith("{") else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        raise KubeconfigError(f"kubeconfig: is neither JSON nor YAML: {error}") from error
    if not isinstance(config, dict) or "clusters" not in config:
        raise KubeconfigError("kubeconfig: has no `clusters`")
    return config


def _named(config: dict[str, Any], section: str, name: Any, noun: str) -> dict[str, Any]:
    for item in config.get(section) or []:
        if item.get("name") == name:
            return item.get(noun) or {}
    known = ", ".join(str(item.get("name")) for item in config.get(section) or []) or "none"
    raise KubeconfigError(f"kubeconfig: {section}: no {noun} {name!r} (has: {known})")


def _only(items: list[dict[str, Any]]) -> str | None:
    return items[0].get("name") if len(items) == 1 else None


def _pem(section: dict[str, Any], key: str) -> str | None:
    if data := section.get(f"{key}-data"):
        return base64.b64decode(data).decode()
    return Path(section[key]).read_text() if section.get(key) else None


def _static_token(user: dict[str, Any]) -> str | None:
    if user.get("token"):
        return user["token"]
    return Path(user["tokenFile"]).read_text().strip() if user.get("tokenFile") else None


def _run_exec(command: dict[str, Any]) -> tuple[str, float]:
    """Token and expiry (seconds since the epoch) of a client-go exec credential."""
    argv = [command["command"], *(command.get("args") or [])]
    api_version = command.get("apiVersion", "client.authentication.k8s.io/v1")
    info = {"apiVersion": api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
    extra = {item["name"]: item["value"] for item in command.get("env") or []}
    environment = {**os.environ, **extra, "KUBERNETES_EXEC_INFO": json.dumps(info)}
    try:
        done = subprocess.run(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_EXEC_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KubeconfigError(f"kubeconfig: exec credential `{argv[0]}`: {error}") from error
    if done.returncode != 0:
        tail = " ".join(done.stderr.split())[-300:]
        raise KubeconfigError(
            f"kubeconfig: exec credential `{' '.join(argv)}` ended with {done.returncode}: {tail}"
        )
    try:
        status = json.loads(done.stdout)["status"]
        token = status["token"]
    except (ValueError, KeyError, TypeError) as error:
        raise KubeconfigError(
            f"kubeconfig: exec credential `{' '.join(argv)}` printed no ExecCredential with a token"
        ) from error
    expiry = status.get("expirationTimestamp")
    expires = datetime.fromisoformat(expiry).timestamp() if expiry else float("inf")
    return token, expires
