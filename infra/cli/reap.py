"""`soperator reap`: pauses a stack whose declared life is over; for cron and CI."""

from __future__ import annotations

import subprocess
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import context, output
from infra.cli.context import DEFAULT_STACK, IdentityOption, StackOption
from infra.cli.errors import CliError
from infra.cli.output import Format
from infra.cli.pause import switch
from infra.local.state import CHECKOUT

if TYPE_CHECKING:
    from pathlib import Path

    from infra.reap.verdict import Verdict
    from stacks.spec import StackSpec


def command(
    stack: StackOption = DEFAULT_STACK,
    act: Annotated[
        bool, typer.Option("--act", help="Pause it when due; else only say so.")
    ] = False,
    end_jobs: Annotated[
        bool, typer.Option("--end-jobs", help="After its end, also when jobs run or wait.")
    ] = False,
    identity: IdentityOption = None,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,
) -> None:
    """Pause a stack that was idle for its declared hours, or whose declared end has passed."""
    spec = context.spec(stack)
    if spec.lifetime is None:
        raise CliError(
            f"{stack}: lifetime: not declared, so nothing says when the stack is to end; declare "
            f"lifetime.idle_hours or lifetime.until in stacks/Pulumi.{stack}.yaml"
        )
    if spec.nodes.paused:
        if act and not _is_deployed(stack):
            raise CliError(
                f"{stack}: its file says paused, but that is not what is deployed, and machines "
                f"may be paid on; see what runs there, then: pulumi up --stack {stack}"
            )
        output.note(f"{stack}: is paused already")
        return
    found = _verdict(spec, identity, end_jobs=end_jobs)
    acts = act and found.is_due
    if format is Format.JSON:
        output.print_json({"stack": stack, **asdict(found), "acts": acts})
    else:
        print(f"{stack}: {'due' if found.is_due else 'not due'}: {found.reason}")
    if found.is_due and not act:
        output.note(f"{stack}: nothing was done; --act pauses it")
    if acts:
        _check_deployed(stack)
        raise typer.Exit(_pause(stack))


def _verdict(spec: StackSpec, identity: Path | None, *, end_jobs: bool) -> Verdict:
    from infra.reap.activity import activity
    from infra.reap.verdict import verdict
    from infra.render.schedule import placeholders
    from stacks.lifetime import refusal

    assert spec.lifetime is not None
    outputs = context.read(spec.name)
    now = datetime.now(UTC)
    with context.connect(outputs, identity) as connection:
        seen = activity(
            connection,
            outputs.login_host_key,
            now=now,
            # After the end it no longer matters since when nothing runs.
            hours=None if refusal(spec, now) else spec.lifetime.idle_hours,
            placeholders=placeholders(spec),
        )
    return verdict(spec, seen, now, ends_jobs=end_jobs)


def _check_deployed(stack: str) -> None:
    """Refuses a checkout whose `pulumi up` would do more than pause: nobody looks at it."""
    if not _is_deployed(stack):
        raise CliError(
            f"{stack}: nothing was paused: this checkout is not what is deployed, and `pulumi up` "
            "would apply all of it; bring the checkout up to date, or deploy it, then run this "
            f"again: pulumi preview --stack {stack}"
        )


def _is_deployed(stack: str) -> bool:
    """Whether `pulumi up` would change nothing; what it would change is told."""
    done = _pulumi("preview", "--expect-no-changes", "--non-interactive", stack=stack, quiet=True)
    if done.returncode:
        output.note(f"{done.stdout}{done.stderr}".strip())
    return done.returncode == 0


def _pause(stack: str) -> int:
    """Exit status of the engine; when it fails, the file says again what it said before."""
    code = 1
    switch(stack, paused=True)
    try:
        code = _pulumi("up", "--yes", "--non-interactive", stack=stack).returncode
    finally:
        if code:
            # Else the next run would take the stack for paused, and its nodes were paid on.
            switch(stack, paused=False)
            output.note(f"{stack}: pulumi up failed, so the file says running again; see above why")
    return code


def _pulumi(*words: str, stack: str, quiet: bool = False) -> subprocess.CompletedProcess[str]:
    """What the engine did; unless `quiet`, what it prints is the user's."""
    command = ["pulumi", *words, "--stack", stack]
    try:
        return subprocess.run(
            command,
            cwd=CHECKOUT,
            env=context.environ(),
            check=False,
            capture_output=quiet,
            text=True,
        )
    except FileNotFoundError as error:
        raise CliError("pulumi: not on PATH; run `make setup`") from error
