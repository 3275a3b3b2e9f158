"""A file that is whole or not there, also after `kill -9` or on a full disk: write(path, text)."""

from __future__ import annotations

import os
from pathlib import Path


def write(path: Path, content: str | bytes, *, mode: int | None = None) -> None:
    """Replaces `path` in one step; parents are made. Without `mode` an older file's mode stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    try:
        # A secret is never in a file that others can open, not even for a moment.
        opened = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode or 0o666)
        with os.fdopen(opened, "wb") as file:
            if mode is None and path.exists():
                part.chmod(path.stat().st_mode & 0o7777)
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
