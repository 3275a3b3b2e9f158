"""One way to build the Nebius SDK, for the real cloud and for the emulator on loopback.

SOPERATOR_NEBIUS_ENDPOINT unset: https://<service>.api.nebius.cloud:443, or the CLI's domain.
SOPERATOR_NEBIUS_ENDPOINT=http://127.0.0.1:PORT: every service on one address, in plain text; that
is refused for any other host, because a token would travel in clear.
Credentials: NEBIUS_IAM_TOKEN, else the profile of the nebius CLI. The parent is never filled in by
the SDK: it would put the project where a node group needs its cluster.
"""

from __future__ import annotations

import ipaddress
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from nebius.sdk import SDK

ENDPOINT_VARIABLE: Final = "SOPERATOR_NEBIUS_ENDPOINT"
TOKEN_VARIABLE: Final = "NEBIUS_IAM_TOKEN"  # noqa: S105
CLI_CONFIG: Final = Path.home() / ".nebius" / "config.yaml"
_USER_AGENT: Final = "soperator-stack/0.1"


class EndpointError(Exception):
    """The environment does not say how to reach the API safely; one line, with what to do."""


def cache_dir() -> Path:
    """Folder of what is built once per version: $SOPERATOR_CACHE or ~/.cache/soperator-stack."""
    default = Path.home() / ".cache" / "soperator-stack"
    return Path(os.environ.get("SOPERATOR_CACHE") or default).expanduser()


def loopback_target() -> str | None:
    """`127.0.0.1:PORT` of the emulator, or None where the real cloud is meant."""
    value = os.environ.get(ENDPOINT_VARIABLE, "")
    if not value:
        return None
    url = urlsplit(value)
    if url.scheme != "http" or not url.hostname or not url.port or url.path not in ("", "/"):
        raise EndpointError(
            f"{ENDPOINT_VARIABLE}: {value!r} is not of the form http://127.0.0.1:PORT; "
            "unset it for the real cloud"
        )
    if not _is_loopback(url.hostname):
        raise EndpointError(
            f"{ENDPOINT_VARIABLE}: plain text to {url.hostname} is refused, a token would "
            "travel in clear; only loopback is allowed, unset it for the real cloud"
        )
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    return f"{host}:{url.port}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@cache
def shared_sdk() -> SDK:
    """The SDK of this process, made at the first call."""
    return make_sdk()


def make_sdk(**options: Any) -> SDK:
    """A new SDK for what the environment names; `options` are the SDK's own."""
    import grpc
    from nebius.sdk import SDK

    token = os.environ.get(TOKEN_VARIABLE)
    if target := loopback_target():
        from nebius.base.options import INSECURE
        from nebius.base.resolver import Constant

        options["resolver"] = Constant(target)
        options["options"] = [(INSECURE, True), ("grpc.enable_http_proxy", 0)]
        # Never used; without it the SDK reads the system's CA bundle, which slim images lack.
        options["tls_credentials"] = grpc.ssl_channel_credentials(b"")
    elif token is None and "credentials_file_name" not in options:
        options["config_reader"] = _cli_config()
    if token is not None and "credentials_file_name" not in options:
        options.setdefault("credentials", token)
    elif not {"credentials", "credentials_file_name", "config_reader"} & options.keys():
        raise EndpointError(
            f'{TOKEN_VARIABLE}: not set; run `eval "$(soperator env)"` in this shell'
        )
    return SDK(user_agent_prefix=_USER_AGENT, **options)


def _cli_config() -> Any:
    from nebius.aio.cli_config import Config

    if not CLI_CONFIG.exists():
        raise EndpointError(
            f"no Nebius credentials: set {TOKEN_VARIABLE} "
            f"(nebius iam get-access-token), or make {CLI_CONFIG} with `nebius profile create`; "
            'without an account run `eval "$(soperator env --offline)"`'
        )
    return Config(client_id=_USER_AGENT.split("/")[0], no_parent_id=True)
