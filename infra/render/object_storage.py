"""Addresses in object storage: where a bucket answers, and under which key a config lies. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from infra.render.archive import recipe_file, stack_config
from stacks.spec import StackSpec

_LOOPBACK: Final = "127.0.0.1:"
_HASH_DIGITS: Final = 16
# What an account needs that writes objects of one bucket and reads them back: README of the recipe,
# backups, files of 2026-07 to 09.
WRITER_ROLES: Final = ("storage.object-editor",)


def endpoint(domain_name: str) -> str:
    """Address of the S3 API of a bucket's status; the emulator's names its port and has no TLS."""
    if domain_name.startswith(_LOOPBACK):
        return f"http://{domain_name}"
    return f"https://{domain_name}:443"


def store(
    region: str, status: Mapping[str, Any], metadata: Mapping[str, Any], key: Mapping[str, Any]
) -> dict[str, str]:
    """What opens a bucket: its place and an access key, by the names of an S3 client."""
    return {
        "endpoint": endpoint(status["domain_name"]),
        "region": region,
        "bucket": metadata["name"],
        "access_key_id": key["aws_access_key_id"],
        "secret_access_key": key["secret"],
    }


def run_configs(root: Path, spec: StackSpec) -> dict[str, bytes]:
    """Path in the release -> content of what a run of this stack is configured by."""
    files = (recipe_file(root, recipe) for recipe in sorted({job.recipe for job in spec.jobs}))
    found = {f"recipes/{file.name}": file.read_bytes() for file in files if file is not None}
    return {"configs/stack.json": stack_config(spec), **found}


def config_keys(configs: Mapping[str, bytes]) -> dict[str, str]:
    """Path -> key of the object: another content has another key, and the old one stays."""
    return {path: _key(PurePosixPath(path), content) for path, content in configs.items()}


def _key(path: PurePosixPath, content: bytes) -> str:
    digest = hashlib.sha256(content).hexdigest()[:_HASH_DIGITS]
    return f"{path.with_suffix('')}/{digest}{path.suffix}"
