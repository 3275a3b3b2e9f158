"""Writes the files of one release to a folder, since the official CopyToRemote takes paths only."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path


def write_release(folder: Path, files: Mapping[str, bytes], root: Path) -> str:
    """Makes `folder` hold exactly `files`; returns its path from `root`, with a final slash.

    The path has no hash in it, so that only a change of content is a change of the archive; the
    final slash makes CopyToRemote copy the content and not the folder.
    """
    for path, content in files.items():
        target = folder / path
        if not target.is_file() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    for path in folder.rglob("*"):
        if path.is_file() and path.relative_to(folder).as_posix() not in files:
            path.unlink()
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            shutil.rmtree(path)
    return os.path.relpath(folder, root) + "/"
