"""A model or data set from the hub or object storage to a folder of the cluster.

Owns the order: licence and size are printed, free space is checked, files arrive in a hidden folder
that a second try continues, and the folder gets its name when every file is whole. Runs on the
login node (`soperator push`), so that no GPU waits for a download.
Usage: python -m workloads.data.download hf://Qwen/Qwen2-7B-Instruct /mnt/model/Qwen2-7B-Instruct
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workloads.common import atomic
from workloads.common.exit_codes import ConfigError, DataError
from workloads.common.log import log
from workloads.data import hub, s3
from workloads.data.manifest import command
from workloads.data.remote import Remote

SOURCE_FILE = ".soperator_source.json"
SECRETS = (
    "HF_TOKEN",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
)
SETTINGS = ("HF_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_REGION")


def download(source: str, target: Path, *, only_describe: bool = False) -> None:
    """Make folder `target` from `source`; nothing to do when it holds this revision whole."""
    system = hub if source.startswith(hub.SCHEME) else s3
    if not source.startswith((hub.SCHEME, s3.SCHEME)):
        raise ConfigError(f"{source}: expected {hub.SCHEME}... or {s3.SCHEME}...")
    remote = system.describe(source)
    log(
        f"{source}: {len(remote.files)} files, {remote.size_bytes / 2**30:.2f} GiB, "
        f"licence: {remote.licence or 'not stated by the source; read its terms'}"
    )
    if only_describe:
        return
    if _is_whole(target, remote):
        log(f"{target}: holds revision {remote.revision[:12]} already; nothing to do")
        return
    if target.exists():
        raise DataError(
            f"{target}: exists and is not revision {remote.revision[:12]} of {source}; "
            "give another path, or move it away"
        )
    partial = target.with_name(f".{target.name}.{remote.revision[:12]}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    _check_space(remote, partial)
    system.fetch(remote, partial)
    shutil.rmtree(partial / ".cache", ignore_errors=True)  # the hub client's bookkeeping
    _check_sizes(remote, partial)
    atomic.write_text(partial / SOURCE_FILE, json.dumps(_origin(remote), indent=2) + "\n")
    partial.rename(target)
    atomic.fsync_path(target.parent)
    log(f"{target}: whole, revision {remote.revision[:12]}")


def _check_space(remote: Remote, partial: Path) -> None:
    have = sum(path.stat().st_size for path in partial.rglob("*") if path.is_file())
    free = shutil.disk_usage(partial).free
    if remote.size_bytes - have > free:
        raise DataError(
            f"{partial.parent}: {free / 2**30:.2f} GiB free, {remote.source} needs "
            f"{(remote.size_bytes - have) / 2**30:.2f} GiB; enlarge the filesystem or remove data"
        )


def _check_sizes(remote: Remote, folder: Path) -> None:
    for file in remote.files:
        path = folder / file.path
        have = path.stat().st_size if path.is_file() else 0
        if have != file.size_bytes:
            raise DataError(
                f"{remote.source}: {file.path} has {have} of {file.size_bytes} bytes; "
                "the same command continues it"
            )


def _origin(remote: Remote) -> dict[str, Any]:
    return {
        "source": remote.source,
        "revision": remote.revision,
        "licence": remote.licence,
        "files": {file.path: file.size_bytes for file in remote.files},
    }


def _is_whole(target: Path, remote: Remote) -> bool:
    try:
        origin = json.loads((target / SOURCE_FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return origin["revision"] == remote.revision and all(
        (target / path).is_file() and (target / path).stat().st_size == size
        for path, size in origin["files"].items()
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m workloads.data.download", description="Hub or object storage to a folder"
    )
    parser.add_argument(
        "source", help="hf://[datasets/]owner/name[@revision] or s3://bucket/prefix"
    )
    parser.add_argument("target", type=Path, help="folder to make")
    parser.add_argument("--describe", action="store_true", help="print licence and size only")
    parser.add_argument(
        "--environment-from-stdin",
        action="store_true",
        help=f"read {', '.join((*SECRETS, *SETTINGS))} as one JSON object from standard input",
    )
    options = parser.parse_args(arguments)
    if options.environment_from_stdin:
        given = json.loads(sys.stdin.readline() or "{}")
        os.environ |= {name: given[name] for name in (*SECRETS, *SETTINGS) if given.get(name)}
    return command(lambda: download(options.source, options.target, only_describe=options.describe))


if __name__ == "__main__":
    sys.exit(main())
