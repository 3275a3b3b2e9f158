"""Pauses for `soperator reap`, by the stack file and the engine; what else differs is refused.

Owns the calls of the engine. Whether a stack is due, and who is kept off meanwhile, is reap.py's.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from infra.cli import context, output
from infra.cli.pause import switch
from infra.state import CHECKOUT
from stacks.errors import UserError

if TYPE_CHECKING:
    from stacks.spec import StackSpec


def pause_silent(spec: StackSpec) -> int:
    """Exit status; after the end, of what nobody can look into: never made to its end, or cut off.

    Of the first only the worker groups: the engine would make what is missing.
    """
    from infra.operate.idle import is_half_made, worker_groups

    preview = _pulumi("preview", "--json", "--non-interactive", stack=spec.name, quiet=True)
    if preview.returncode or not is_half_made(preview.stdout):
        check_deployed(spec.name)
        return pause(spec.name)
    export = _pulumi("stack", "export", stack=spec.name, quiet=True)
    if export.returncode:
        raise UserError(f"{spec.name}: pulumi stack export: {export.stderr.strip()}")
    groups = worker_groups(export.stdout, {worker.name for worker in spec.nodes.workers})
    code = 1
    if groups:
        output.note(f"{spec.name}: was never made to its end; takes its workers and makes nothing")
        code = pause(spec.name, *(word for urn in groups for word in ("--target", urn)))
    if code == 0 or not groups:
        output.note(
            f"{spec.name}: was never made to its end and has no workers; its other machines are "
            f"paid on: soperator destroy --stack {spec.name}"
        )
    return code


def check_deployed(stack: str) -> None:
    """Refuses a checkout whose `pulumi up` would do more than pause: nobody looks at it."""
    if not is_deployed(stack):
        raise UserError(
            f"{stack}: nothing was paused: this checkout is not what is deployed, and `pulumi up` "
            "would apply all of it; bring the checkout up to date, or deploy it, then run this "
            f"again: pulumi preview --stack {stack}"
        )


def is_deployed(stack: str) -> bool:
    """Whether `pulumi up` would change nothing; what it would change is told."""
    done = _pulumi("preview", "--expect-no-changes", "--non-interactive", stack=stack, quiet=True)
    if done.returncode:
        output.note(f"{done.stdout}{done.stderr}".strip())
    return done.returncode == 0


def pause(stack: str, *options: str) -> int:
    """Exit status of the engine; when it fails, the file says again what it said before."""
    code = 1
    switch(stack, paused=True)
    try:
        code = _pulumi("up", "--yes", "--non-interactive", *options, stack=stack).returncode
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
        raise UserError("pulumi: not on PATH; run `make setup`") from error
