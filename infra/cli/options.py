"""What several commands take: a file to write, never half-written; a time; a percentage."""

from __future__ import annotations

import errno
import os
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import typer

from infra import files
from stacks.errors import UserError

OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write to this file, whole or not at all."),
]


def put(text: str, file: Path | None) -> None:
    """Prints the text, or replaces the file by it in one step and prints the file's name.

    A file that is standard output itself, such as /dev/stdout, gets the text alone.
    """
    if file is None or _is_stdout(file):
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise UserError(
                f"standard output: {error.strerror}; not all of it was written"
            ) from error
        return
    try:
        if not file.parent.is_dir():
            # A mistyped folder is not made.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        files.write(file, text)
    except OSError as error:
        raise UserError(
            f"{file}: {error.strerror}; nothing was written: give a file in a folder that is "
            "there and yours"
        ) from error
    print(file)


def _is_stdout(file: Path) -> bool:
    try:
        return os.path.samestat(file.stat(), os.fstat(1))
    except OSError:
        return False


def share(option: str, percent: float) -> Decimal:
    """The percentage as a part; one within which anything agrees is refused."""
    if not 0 <= percent < 100:
        raise UserError(f"{option} {percent:g}: not from 0 to below 100, where anything agrees")
    return Decimal(str(percent)) / 100


def moment(option: str, text: str, now: datetime) -> datetime:
    """The time in UTC; one that is no time, or in the future, is refused."""
    try:
        found = datetime.fromisoformat(text)
        found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise UserError(
            f"{option} {text}: not a time; write 2026-11-01 or 2026-11-01T08:00"
        ) from error
    if found > now:
        raise UserError(
            f"{option} {text}: in the future (now is {now:%Y-%m-%dT%H:%M} UTC); spend is what ran, "
            "`soperator cost -s STACK` is what is declared"
        )
    return found
