"""What lies at a remote source: its files, their sizes and hashes, its licence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """One file; a hash is None where the source does not tell it."""

    path: str
    size_bytes: int
    sha256: str | None = None
    git_sha1: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """A model or data set, before it is fetched."""

    source: str
    revision: str
    """Changes when any file does."""
    licence: str | None
    """None: the source does not say."""
    files: tuple[RemoteFile, ...]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all files."""
        return sum(file.size_bytes for file in self.files)
