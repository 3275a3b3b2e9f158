"""Where a command's document goes: standard output, or a file that is never half-written."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from infra.cli.errors import CliError

OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write to this file, whole or not at all."),
]


def put(text: str, file: Path | None) -> None:
    """Prints the text, or replaces the file by it in one step and prints the file's name."""
    if file is None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise CliError(
                f"standard output: {error.strerror}; not all of it was written"
            ) from error
        return
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise CliError(
            f"--output {file}: {error.strerror}; nothing was written: give a file in a folder "
            "that is there and yours"
        ) from error
    print(file)
