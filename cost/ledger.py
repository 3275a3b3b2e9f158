"""The ledger of a stack's jobs: `runs/<stack>/ledger.jsonl`, one JSON object a line, only appended.

Owns locking and durability; lines are in ledger_entries.py. A damaged line (a full disk, a killed
writer) is reported and costs no other line; one of another schema version is an error.
    with Ledger(path).locked() as ledger: ledger.append(entry)
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cost.ledger_entries import Entry, LineError, VersionError, decode, encode
from stacks.errors import UserError

FILE_NAME: Final = "ledger.jsonl"


class LedgerError(UserError):
    """A ledger that must not be read or written as it is, with file and line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a ledger holds, and what is wrong with the lines that are no entries."""

    entries: tuple[Entry, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ledger:
    """One ledger file; it need not exist yet."""

    path: Path

    def read(self) -> Content:
        """Every readable entry in the order of the file."""
        if not self.path.exists():
            return Content()
        try:
            with self.path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH)
                content = file.read()
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot be read: {error.strerror}") from error
        return _parse(content, self.path)

    @contextmanager
    def locked(self) -> Generator[OpenLedger]:
        """The ledger for this process alone: nothing is appended between a look and an append."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            is_new = not self.path.exists()
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise LedgerError(
                f"{self.path}: cannot be opened to write: {error.strerror}; nothing was done: "
                "make its folder yours, or set SOPERATOR_STATE"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if is_new:
                _sync_folder(self.path.parent)
            yield OpenLedger(path=self.path, descriptor=descriptor)
        finally:
            os.close(descriptor)

    def append(self, *entries: Entry) -> None:
        """Adds the entries; on return they are on the disk."""
        with self.locked() as ledger:
            ledger.append(*entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLedger:
    """A ledger whose lock is held."""

    path: Path
    descriptor: int

    def read(self) -> Content:
        """Every readable entry in the order of the file."""
        return _parse(self.path.read_bytes(), self.path)

    def append(self, *entries: Entry) -> None:
        """Adds the entries whole or not at all; on return they are on the disk."""
        if not entries:
            return
        size = os.fstat(self.descriptor).st_size
        lines = "".join(f"{encode(entry)}\n" for entry in entries).encode("ascii")
        if size and os.pread(self.descriptor, 1, size - 1) != b"\n":
            # A writer was killed in its line: end it, so that only that line is lost.
            lines = b"\n" + lines
        try:
            written = os.write(self.descriptor, lines)
            if written != len(lines):
                raise OSError(f"{written} of {len(lines)} bytes were written: is the disk full?")
            os.fsync(self.descriptor)
        except OSError as error:
            os.ftruncate(self.descriptor, size)
            raise LedgerError(f"{self.path}: not written: {error}") from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parse(content: bytes, path: Path) -> Content:
    entries: list[Entry] = []
    problems: list[str] = []
    errors: list[str] = []
    for number, line in enumerate(content.decode("ascii", errors="replace").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            entries.append(decode(line))
        except LineError as error:
            problems.append(f"{path}:{number}: {error}; this line is left out")
        except VersionError as error:
            errors.append(f"{path}:{number}: {error}")
    if errors:
        raise LedgerError("\n".join(errors))
    return Content(entries=tuple(entries), problems=tuple(problems))
