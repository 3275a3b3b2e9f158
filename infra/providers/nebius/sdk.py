"""One way to build the Nebius SDK, for the real cloud and for the emulator on loopback.

SOPERATOR_NEBIUS_ENDPOINT unset: https://<service>.api.nebius.cloud:443, or the CLI's domain.
SOPERATOR_NEBIUS_ENDPOINT=http://127.0.0.1:PORT: every service on one address, in plain text; that
is refused for any other host, because a token would travel in clear.
Credentials: NEBIUS_IAM_TOKEN, which ends when it ends; else the key of a service account in
SOPERATOR_NEBIUS_KEY_FILE, else the profile of the nebius CLI, both of which give a new token when
one ends. The parent is never filled in by the SDK: it would put the project where a node group
needs its cluster.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from infra.state import listeners
from stacks.errors import UserError
from stacks.files import read_bytes

if TYPE_CHECKING:
    from nebius.sdk import SDK


ENDPOINT_VARIABLE: Final = "SOPERATOR_NEBIUS_ENDPOINT"
TOKEN_VARIABLE: Final = "NEBIUS_IAM_TOKEN"  # noqa: S105
KEY_FILE_VARIABLE: Final = "SOPERATOR_NEBIUS_KEY_FILE"
CLI_CONFIG: Final = Path.home() / ".nebius" / "config.yaml"
_USER_AGENT: Final = "soperator-stack/0.1"


class EndpointError(UserError):
    """The environment does not say how to reach the API safely; one line, with what to do."""


def loopback_target() -> str | None:
    """`127.0.0.1:PORT` of the emulator, or None where the real cloud is meant."""
    if not (value := os.environ.get(ENDPOINT_VARIABLE)):
        return None
    host = port = None
    with contextlib.suppress(ValueError):  # no port, or brackets that are not closed
        url = urlsplit(value)
        if url.scheme == "http" and url.path in ("", "/"):
            host, port = url.hostname, url.port
    if not host or not port:
        raise EndpointError(
            f"{ENDPOINT_VARIABLE}: {value!r} is not of the form http://127.0.0.1:PORT; "
            "unset it for the real cloud"
        )
    if not _is_loopback(host):
        raise EndpointError(
            f"{ENDPOINT_VARIABLE}: plain text to {host} is refused, a token would "
            "travel in clear; only loopback is allowed, unset it for the real cloud"
        )
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refuse_neighbour(target: str) -> None:
    """Refuse a port at which another user of this machine listens: he would get the token."""
    host, _, port = target.rpartition(":")
    for uid in listeners(host.strip("[]"), int(port)) - {0, os.geteuid()}:
        raise EndpointError(
            f"{ENDPOINT_VARIABLE}: at {target} a program of uid {uid} listens, who would get the "
            "token; have it ended, or name another port"
        )


@cache
def shared_sdk() -> SDK:
    """The SDK of this process, made at the first call."""
    return make_sdk()


def make_sdk(**options: Any) -> SDK:
    """A new SDK for what the environment names; `options` are the SDK's own."""
    import grpc
    from nebius.sdk import SDK

    given = "credentials_file_name" in options
    token = None if given else given_token()
    key = None if given or token is not None else key_file()
    if token is not None:
        options.setdefault("credentials", token)
    elif key is not None:
        options["credentials_file_name"] = str(key)
    if target := loopback_target():
        _refuse_neighbour(target)
        from nebius.base.options import INSECURE
        from nebius.base.resolver import Constant

        options["resolver"] = Constant(target)
        options["options"] = [(INSECURE, True), ("grpc.enable_http_proxy", 0)]
        # Never used; without it the SDK reads the system's CA bundle, which slim images lack.
        options["tls_credentials"] = grpc.ssl_channel_credentials(b"")
    elif not {"credentials", "credentials_file_name"} & options.keys():
        options["config_reader"] = _cli_config()
    if not {"credentials", "credentials_file_name", "config_reader"} & options.keys():
        raise EndpointError(
            f'{TOKEN_VARIABLE}: not set; run `eval "$(soperator env)"` in this shell'
        )
    with _usable(options.get("credentials_file_name", CLI_CONFIG)):
        return SDK(user_agent_prefix=_USER_AGENT, **options)


@contextlib.contextmanager
def _usable(file: object) -> Iterator[None]:
    """Says of a file of credentials that something in it is wrong: its JSON, YAML, PEM."""
    try:
        yield
    except Exception as error:
        raise EndpointError(
            f"{file}: gives no credential ({error!r}); make it anew, or set {TOKEN_VARIABLE}"
        ) from error


def given_token() -> str | None:
    """The token of the environment; an empty one, as CI has of an unset secret, is none."""
    return os.environ.get(TOKEN_VARIABLE, "").strip() or None


_KEY_BYTES: Final = 1 << 20


def key_file() -> Path | None:
    """File of the service account's key, None where the environment names none."""
    if not (value := os.environ.get(KEY_FILE_VARIABLE)):
        return None
    path = Path(value).expanduser()
    try:
        # The SDK would wait for a FIFO for ever, and read /dev/zero until memory is full.
        read_bytes(path, at_most_bytes=_KEY_BYTES)
        mode = path.stat().st_mode & 0o777
    except OSError as error:
        raise EndpointError(
            f"{KEY_FILE_VARIABLE}: cannot read {path} ({error.strerror}); name the file of "
            "`nebius iam auth-public-key generate --output`, or unset it"
        ) from error
    if mode & 0o077:
        raise EndpointError(
            f"{KEY_FILE_VARIABLE}: {path} has mode {mode:04o}, others can read the key; "
            f"run: chmod 600 {path}"
        )
    return path


def _cli_config() -> Any:
    from nebius.aio.cli_config import Config

    if not CLI_CONFIG.exists():
        raise EndpointError(
            f"no Nebius credentials: set {TOKEN_VARIABLE} "
            f"(nebius iam get-access-token), or make {CLI_CONFIG} with `nebius profile create`; "
            'without an account run `eval "$(soperator env --offline)"`'
        )
    with _usable(CLI_CONFIG):
        return Config(client_id=_USER_AGENT.split("/")[0], no_parent_id=True)


_TIMEOUT_S = 30.0


def iam_token() -> tuple[str, datetime | None]:
    """The bearer token that the environment gives, and when it expires where that is known."""
    # kubectl runs this for each command: a given token must not cost the import of the SDK.
    if token := given_token():
        return token, None
    client = make_sdk()
    try:
        fetched = client.get_token_sync(timeout=_TIMEOUT_S)
        return fetched.token, fetched.expiration
    finally:
        client.sync_close()


def exec_credential() -> str:
    """ExecCredential JSON (client.authentication.k8s.io/v1) for `soperator kube-token`."""
    token, expires_at = iam_token()
    status = {"token": token}
    if expires_at is not None:
        if expires_at.tzinfo is None:
            expires_at = expires_at.replace(tzinfo=UTC)
        status["expirationTimestamp"] = expires_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    what = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    return json.dumps({**what, "status": status})
