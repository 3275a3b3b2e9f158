"""Where the server is and with which key: from an address, or from the files of a serve job."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workloads.common.exit_codes import ConfigError
from workloads.common.places import Places
from workloads.load.config import Target

KEY_VARIABLE = "SOPERATOR_SERVE_API_KEY"
ENDPOINT_FILE = "endpoint.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that can be asked."""

    url: str
    key: str | None
    adapter_dir: str | None = None
    """Adapter of its tuned model, where the server says it."""


def find_server(
    target: Target, places: Places, environment: Mapping[str, str] | None = None
) -> Server:
    """Return address and key; what is missing is refused with what to set."""
    environment = os.environ if environment is None else environment
    key_file = None if target.api_key_file is None else _path(target.api_key_file, places)
    adapter_dir = None
    if target.serve_job is not None:
        url, job_key_file, adapter_dir = _endpoint(
            places.path("results") / target.serve_job / ENDPOINT_FILE
        )
        key_file = key_file or job_key_file
    elif target.url is not None:
        url = target.url
    else:
        raise ConfigError(
            "load.target: no server; give --url http://HOST:PORT/v1, or the id of a running serve "
            "job as --serve-job"
        )
    key = environment.get(KEY_VARIABLE) or (None if key_file is None else _read_key(key_file))
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ConfigError("the API key has characters that no header can carry")
    return Server(url=url.rstrip("/"), key=key, adapter_dir=adapter_dir)


def _endpoint(path: Path) -> tuple[str, Path | None, str | None]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        host, port, key_file = values["host"], values["port"], values["api_key_file"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"load.target.serve_job: {path} cannot be read ({error}); is that job a running server "
            "that has come up?"
        ) from error
    host = f"[{host}]" if ":" in host else host
    url = f"http://{host}:{port}/v1"
    return url, Path(key_file) if key_file else None, values.get("adapter_dir")


def _path(text: str, places: Places) -> Path:
    return places.expand(text, at="load.target.api_key_file")


def _read_key(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"load.target.api_key_file: {path} cannot be read: {error}") from error
