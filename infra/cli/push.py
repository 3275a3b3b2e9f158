"""`soperator push SOURCE PLACE[/PATH]`: data and models to a place of the cluster."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from infra.cli import context, output
from infra.cli.context import IdentityOption, StackOption
from infra.state import DEFAULT_STACK
from stacks.errors import UserError


def command(
    source: Annotated[
        str,
        typer.Argument(
            help="A file or folder here, hf://[datasets/]owner/name[@revision], or s3://bucket/prefix."
        ),
    ],
    target: Annotated[
        str, typer.Argument(metavar="PLACE[/PATH]", help="A declared place, such as data or model.")
    ],
    stack: StackOption = DEFAULT_STACK,
    identity: IdentityOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print licence and size; bring nothing.")
    ] = False,
) -> None:
    """Bring data or a model to a declared place; no GPU is held meanwhile.

    Local files cross SSH and continue where an earlier try stopped. The login node itself fetches
    hf:// and s3:// sources, with HF_TOKEN and AWS_* of this shell; licence and size come first.
    """
    from infra.jobs import transfer

    outputs = context.read(stack)
    if source.startswith(transfer.SCHEMES):
        path = transfer.destination(outputs.places, target, name=transfer.default_name(source))
        with (
            context.connect(outputs, identity) as connection,
            output.ClusterText(sys.stderr) as shown,
        ):
            transfer.fetch(
                connection,
                code_path=outputs.code_path,
                source=source,
                target=path,
                environ=os.environ,
                write=shown.write,
                only_describe=dry_run,
            )
        print(path)
        return
    if "://" in source:
        raise UserError(f"{source}: give a local path, or one of {', '.join(transfer.SCHEMES)}")
    local = Path(source).expanduser()
    path = transfer.destination(outputs.places, target, name=local.resolve().name)
    with context.connect(outputs, identity) as connection:
        done = transfer.push(connection, local, path, say=output.note, dry_run=dry_run)
    output.note(
        f"{done.num_sent} of {done.num_files} files sent, {done.sent_bytes / 2**30:.2f} GiB; "
        "the others were there already"
    )
    print(path)
