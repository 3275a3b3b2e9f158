"""Where this server is and what it needs to be asked: the key, and endpoint.json.

Owns that a key never stands in an argument, a log or a file that others can read.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import stat
from collections.abc import Mapping
from pathlib import Path

from workloads.common import atomic
from workloads.common.exit_codes import ConfigError
from workloads.common.places import Places
from workloads.serve.config import ServeConfig
from workloads.serve.weights import Weights

KEY_VARIABLE = "SOPERATOR_SERVE_API_KEY"
FILE_NAME = "endpoint.json"
_MIN_KEY_LENGTH = 16


def api_key(
    config: ServeConfig, places: Places, environment: Mapping[str, str] | None = None
) -> str | None:
    """Return the key that requests must bring; None: the server is on loopback and has none."""
    environment = os.environ if environment is None else environment
    key = environment.get(KEY_VARIABLE)
    if not key and config.api_key_file is not None:
        key = _key_in_file(places.expand(config.api_key_file, at="serve.api_key_file"))
    if key:
        if len(key) < _MIN_KEY_LENGTH or not key.isascii() or not key.isprintable():
            raise ConfigError(
                f"the API key has {len(key)} characters; use at least {_MIN_KEY_LENGTH}, printable "
                "ASCII (openssl rand -hex 32)"
            )
        return key
    if not config.is_loopback:
        raise ConfigError(
            f"serve.host: {config.host} can be reached from other machines, so a key is needed: "
            f"set serve.api_key_file (made when missing) or export {KEY_VARIABLE}"
        )
    return None


def write(
    results_dir: Path, config: ServeConfig, port: int, weights: Weights, places: Places
) -> Path:
    """Write endpoint.json: requests are taken from now on."""
    path = results_dir / FILE_NAME
    # Of a host that means every interface, the name that other nodes reach.
    every = config.host in ("0.0.0.0", "::")
    is_given = bool(os.environ.get(KEY_VARIABLE))
    # The variable wins over the file, whose key would then open nothing.
    key_file = None if is_given else config.api_key_file
    values = {
        "host": socket.gethostname() if every else config.host,
        "port": port,
        "models": list(weights.names),
        "adapter_dir": None if weights.adapter_dir is None else str(weights.adapter_dir),
        "needs_key": is_given or key_file is not None,
        "api_key_file": str(places.expand(key_file, at="serve.api_key_file")) if key_file else None,
    }
    atomic.write_text(path, json.dumps(values, indent=2) + "\n")
    return path


def _key_in_file(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    except OSError as error:
        raise ConfigError(f"serve.api_key_file: {path} cannot be made: {error}") from error
    else:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise ConfigError(
            f"serve.api_key_file: {path} has mode {mode:04o}, others can read it; chmod 600 it and "
            "put a new key in"
        )
    key = path.read_text(encoding="ascii").strip()
    if not key:
        raise ConfigError(f"serve.api_key_file: {path} is empty; remove it or put a key in")
    return key
