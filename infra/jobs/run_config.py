"""What a run was configured by, kept in the stack's bucket when it is submitted.

Owns the object's bytes and its key, `runs/<recipe>/<hash>.json`: equal settings are one object, and
no other content ever has its name. The job makes the same bytes of what it runs with and names the
object in its record (workloads/common/run_config.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from infra.jobs.errors import NotSubmittedError
from infra.uploads.client import Place, StorageError

VARIABLE: Final = "SOPERATOR_RUN_CONFIG"
_HASH_DIGITS: Final = 16


def config_text(recipe: Mapping[str, Any]) -> bytes:
    """The recipe with its settings as one JSON file, the same for the same values."""
    return (json.dumps(recipe, indent=2, sort_keys=True) + "\n").encode()


def address(store: Mapping[str, str], recipe: str, content: bytes) -> str:
    """Where `keep` puts it, as `bucket/key`; nothing is asked of the store."""
    place = _place(store, recipe, content)
    return f"{place.bucket}/{place.key}"


def keep(store: Mapping[str, str], recipe: str, content: bytes) -> str:
    """Uploads unless it is there; returns `bucket/key`. `store`: the output run_config_store."""
    place = _place(store, recipe, content)
    try:
        if place.read() != content:
            place.write(content)
    except StorageError as error:
        raise NotSubmittedError(
            f"the run's config was not stored: {error}; nothing was submitted: run `pulumi up`, "
            "which renews the key, or submit again"
        ) from error
    return f"{place.bucket}/{place.key}"


def _place(store: Mapping[str, str], recipe: str, content: bytes) -> Place:
    digest = hashlib.sha256(content).hexdigest()[:_HASH_DIGITS]
    return Place(key=f"runs/{recipe}/{digest}.json", **store)
