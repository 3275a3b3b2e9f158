"""Runs the pulumi CLI on a stack: output to a file, short progress, and locks of dead runs removed.

Owns what a killed run leaves in the file backend. The environment is the caller's.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from infra.cli import output
from infra.clients import pulumi
from infra.local import engine
from infra.local.engine import PROJECT
from infra.state import CHECKOUT
from stacks.errors import UserError

_LAST_LINES = 12
_WAIT_S = 0.5
_PROGRESS_EVERY = 10
_CHANGE = re.compile(r"^ +[-+~]+ *(\d+ \w+)$", re.MULTILINE)


def run(
    arguments: Sequence[str],
    *,
    stack: str,
    environ: Mapping[str, str],
    log: Path,
    say: Callable[[str], None],
) -> str:
    """Runs `pulumi <arguments> --stack S`; its whole output goes to `log`.

    Returns what it did in words, such as `resources: 52 created`.
    """
    release_lock(stack, backend=_backend(environ), environ=environ, say=say)
    log.parent.mkdir(parents=True, exist_ok=True)
    command = ["pulumi", *arguments, "--stack", stack, "--yes", "--non-interactive"]
    done = 0
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [*command, "--color=never"],
            cwd=CHECKOUT,
            env=dict(environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            if line.strip():
                output.at(f"pulumi {arguments[0]}: {' '.join(line.split())}")
            if line.rstrip().endswith((" created", " updated", " deleted", "s)")):
                done += 1
                if done % _PROGRESS_EVERY == 0:
                    say(f"pulumi {arguments[0]}: {done} resources")
        code = process.wait()
    if code != 0:
        raise UserError(_failure(arguments[0], code, log))
    return changes(log.read_text(encoding="utf-8"))


def changes(printed: str) -> str:
    """The counts at the end of what pulumi printed; where it changed nothing, that."""
    found = _CHANGE.findall(printed.rpartition("\nResources:\n")[2])
    return f"resources: {', '.join(found)}" if found else "nothing to change"


def release_lock(
    stack: str,
    *,
    backend: Path | None,
    environ: Mapping[str, str],
    say: Callable[[str], None],
) -> None:
    """Waits for a pulumi that works on the stack, and removes the lock of one that was killed."""
    if backend is None:
        return
    told = False
    while True:
        if engine.clear_dead(backend, stack):
            say("a killed run left the stack locked; unlocked")
            # What it was about to create is found or made anew by its plugin; the engine would warn
            # of it at every run. Of the stack's own resource alone, this asks no cloud. It fails,
            # rightly, where the killed run had made nothing at all.
            target = f"urn:pulumi:{stack}::{PROJECT}::pulumi:pulumi:Stack::{PROJECT}-{stack}"
            forget = ["refresh", "--clear-pending-creates", "--target", target]
            options = ["--yes", "--skip-preview", "--non-interactive", "--stack", stack]
            pulumi.run([*forget, *options], environ=environ)
        pids = engine.holders(backend, stack)
        if not pids:
            return
        if not told:
            say(f"pulumi (pid {pids[0]}) of an earlier run still works on {stack}; waiting for it")
            told = True
        time.sleep(_WAIT_S)


def _backend(environ: Mapping[str, str]) -> Path | None:
    url = environ.get("PULUMI_BACKEND_URL", "")
    return Path(url.removeprefix("file://")) if url.startswith("file://") else None


def _failure(verb: str, code: int, log: Path) -> str:
    lines = [line.rstrip() for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
    errors = [line.strip() for line in lines if "error:" in line] or lines[-_LAST_LINES:]
    shown = "\n".join(dict.fromkeys(errors[-_LAST_LINES:]))
    return f"pulumi {verb} ended with {code}; its whole output is in {log}\n{shown}"
