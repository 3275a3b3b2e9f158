"""`soperator venv`: the jobs' Python environment on shared storage, from the lock file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from infra.cli import context, output
from infra.cli.context import IdentityOption, StackOption
from infra.cli.output import Format
from infra.state import CHECKOUT, DEFAULT_STACK


def command(
    stack: StackOption = DEFAULT_STACK,
    index: Annotated[
        str | None, typer.Option(metavar="URL", help="Package index or mirror to take all from.")
    ] = None,
    extra_index: Annotated[
        str | None,
        typer.Option(metavar="URL", help="One more index, such as PyTorch's for a CUDA version."),
    ] = None,
    wheelhouse: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Folder of wheels on the cluster; no index is asked."),
    ] = None,
    lock: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Another lock file with hashes, of the same Python."),
    ] = None,
    identity: IdentityOption = None,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,
) -> None:
    """Make the declared `python_env_path` in the jail; one that is there already is kept."""
    from infra.jobs import transfer
    from infra.render.delivery import PackageSource

    source = PackageSource(index=index, extra_index=extra_index, wheelhouse=wheelhouse)
    spec = context.spec(stack)
    files = transfer.lock_files(CHECKOUT, lock)
    with context.connect(context.read(stack), identity) as connection:
        made = transfer.make(connection, spec, files, source)
    if format is Format.JSON:
        output.print_json(asdict(made))
        return
    if made.seconds is None:
        output.note(f"{made.path} is version {made.version} already")
    else:
        output.note(f"version {made.version}: {made.seconds} s, {made.size_mib:,} MiB")
    print(made.path)
