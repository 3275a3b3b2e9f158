"""What lies at a remote source: its files, their sizes and hashes, its licence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from workloads.common.exit_codes import DataError


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

    def __post_init__(self) -> None:
        """Refuse names that mean another place: whoever owns the source chooses them."""
        for file in self.files:
            if {"", ".", ".."} & set(file.path.split("/")):
                raise DataError(
                    f"{self.source}: holds a file named {file.path!r}, which is no path below a "
                    "folder; take a prefix or revision without it, or ask the owner to rename it"
                )

    def path_of(self, file: RemoteFile, folder: Path) -> Path:
        """Return where `file` goes below `folder`; a link on the way must not lead out of it."""
        path = folder / file.path
        if not path.resolve().is_relative_to(folder.resolve()):
            raise DataError(f"{path}: leads out of {folder}, by a link; remove the link")
        return path

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all files."""
        return sum(file.size_bytes for file in self.files)
