"""What others need to help, in one file, without secrets."""

from __future__ import annotations

import os
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from infra.cli import context, output
from infra.cli.context import IdentityOption, StackOption
from infra.cli.output import NOT_RUN
from infra.clients.pulumi import StackOutputs
from infra.clients.slurm import Shell
from infra.operate.support.bundle import Redactor, write_bundle
from infra.operate.support.collect import (
    Once,
    Part,
    known,
    parts_here,
    parts_of_cluster,
    parts_of_kube,
)
from infra.state import DEFAULT_STACK, State
from stacks.errors import UserError


def support_bundle(
    stack: StackOption = DEFAULT_STACK,
    file: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it.")
    ] = None,
    emails: Annotated[
        bool, typer.Option("--redact-emails", help="Take addresses of people out too.")
    ] = False,
    preview: Annotated[
        bool, typer.Option("--preview/--no-preview", help="Ask the engine what `up` would do.")
    ] = True,
    identity: IdentityOption = None,
) -> None:
    """Gather state, logs and findings into one file; exit code 69 when a part is missing."""
    now = datetime.now(UTC)
    path = file or Path(f"support-{stack}-{now:%Y%m%dT%H%M%SZ}.tar.gz")
    if os.path.lexists(path):  # also a link that leads nowhere: the parts take minutes
        raise UserError(f"--output {path}: is there already; name another file")
    if not path.parent.is_dir():
        raise UserError(f"--output {path}: no folder {path.parent}; make it; nothing was written")
    state = State.from_environ()
    with output.never_silent("support bundle"), ExitStack() as closing:
        environ = context.environ()
        redactor = Redactor(known(state, {**os.environ, **environ}), emails=emails)
        parts = _parts(stack, state, environ, identity, closing, preview=preview)
        try:
            made = write_bundle(
                parts, path, stack=stack, redactor=redactor, now=now, say=output.note
            )
        except OSError as error:
            raise UserError(f"--output {path}: {error.strerror}; nothing was written") from error
    print(made.index, end="")
    print(path)
    raise typer.Exit(NOT_RUN if made.not_run else 0)


def _parts(
    stack: str,
    state: State,
    environ: dict[str, str],
    identity: Path | None,
    closing: ExitStack,
    *,
    preview: bool,
) -> list[Part]:
    def opened(closing: ExitStack) -> tuple[StackOutputs, Shell]:
        outputs = context.caller(stack, identity)
        return outputs, closing.enter_context(context.connect(outputs, identity))

    parts = parts_here(stack, state, environ, preview=preview)
    parts += parts_of_cluster(Once(closing, opened))
    kube = parts_of_kube(lambda: context.spec(stack), lambda: context.kube_client(stack))
    return [*parts, *kube]
