"""Where a command's document goes: standard output, or a file that is never half-written."""

from __future__ import annotations

import errno
import os
import sys
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
