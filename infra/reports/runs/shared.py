"""Runs in the stack's bucket, so that a team sees each other's: publish(...), bring(...).

Owns the keys, `records/<cluster>-<job id>/<file>`, and which small files of a run go there. The
bucket is that of run configs: a record and the recipe that it names lie in one place.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cost.runs.ledger import ActualEntry, encode
from infra import files
from infra.clients.errors import JobsError
from infra.clients.objects import Place, StorageError
from infra.jobs import history
from infra.jobs.records import LOSS_CURVE, read_object
from infra.reports.runs.run import ACTUAL, RECIPE, SHARED

PREFIX: Final = "records"
_RECORD: Final = "run_record.json"
_FILES: Final = (RECIPE, LOSS_CURVE, history.SUBMISSION, "load.json")
_BROUGHT: Final = (*_FILES, ACTUAL, _RECORD)
_TAGS: Final = ".tags.json"
"""File name -> tag of the object that it was brought from; a damaged file is as none."""
_MOST_BYTES: Final = 32 * 2**20
"""A loss curve of 200,000 steps; a larger file stays on the cluster."""
_CLUSTER_DIGITS: Final = 8
_NAME: Final = re.compile(rf"[0-9]+-[0-9a-f]{{{_CLUSTER_DIGITS}}}")
"""Whoever wrote the key: it stays in its folder, and is of `shared_name`."""


def shared_name(cluster: str, job_id: str) -> str:
    """Name of the run's folder; ids start again on a cluster with another host key."""
    return f"{job_id}-{hashlib.sha256(cluster.encode()).hexdigest()[:_CLUSTER_DIGITS]}"


def publish(
    store: Mapping[str, str],
    folder: Path,
    *,
    cluster: str,
    job_id: str,
    actual: ActualEntry | None,
) -> int:
    """Uploads the small files of a pulled run, its record last; the number of files written."""
    if not (folder / _RECORD).is_file():
        return 0
    contents = {
        name: (folder / name).read_bytes()
        for name in _FILES
        if (folder / name).is_file() and (folder / name).stat().st_size <= _MOST_BYTES
    }
    if actual is not None:
        contents[ACTUAL] = f"{encode(actual)}\n".encode()
    contents[_RECORD] = (folder / _RECORD).read_bytes()
    name, written = shared_name(cluster, job_id), 0
    try:
        for file, content in contents.items():
            place = Place(key=f"{PREFIX}/{name}/{file}", **store)
            if place.read() != content:
                place.write(content)
                written += 1
    except StorageError as error:
        raise JobsError(
            f"job {job_id}: its record is not in the bucket: {error}; pull it again after "
            "`pulumi up`, which renews the key"
        ) from error
    return written


def bring(store: Mapping[str, str], state: Path, stack: str) -> int:
    """Downloads what is not here yet of the runs in the bucket; the number of files that came.

    Only a whole run counts: its record is written last there, and here.
    """
    root = state / "runs" / stack / SHARED
    brought = 0
    try:
        listed = Place(key=f"{PREFIX}/", **store).below()
        for found in sorted(listed, key=lambda each: each.key.endswith(_RECORD)):
            parts = found.key.split("/")
            if len(parts) != 3 or not _NAME.fullmatch(parts[1]) or parts[2] not in _BROUGHT:
                continue
            if found.size_bytes > _MOST_BYTES:
                continue
            folder, name = root / parts[1], parts[2]
            # A record of equal length may be another one: the store's tag tells.
            tags = read_object(folder / _TAGS)
            here = (folder / name).read_bytes() if (folder / name).is_file() else None
            is_whole = here is not None and len(here) == found.size_bytes
            if is_whole and found.etag is not None and tags.get(name) == found.etag:
                continue
            content = Place(key=found.key, **store).read()
            if content is None:
                continue
            if content != here:
                files.write(folder / name, content)
                brought += 1
            files.write(folder / _TAGS, json.dumps({**tags, name: found.etag}))
    except StorageError as error:
        raise JobsError(
            f"{stack}: the runs of others were not brought: {error}; `pulumi up` renews the key"
        ) from error
    except OSError as error:
        raise JobsError(f"{root}: {error.strerror or error}; mend it and ask again") from error
    return brought
