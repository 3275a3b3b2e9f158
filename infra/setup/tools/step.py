"""One step of set-up: what it makes, whether that is there, and how it is made.

Owns the running of outside programs with their progress, and the exchange of a finished folder for
an unfinished one, so that an interruption at any moment leaves either nothing or the whole.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from infra.cli import output

_KEPT_LINES: Final = 15
_SHOWN_CHARS: Final = 90


class SetupError(Exception):
    """Set-up cannot go on; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that set-up makes."""

    name: str
    """What is there afterwards, such as `engine pulumi v3.190.0`."""
    expect: str
    """What the user may expect while it runs: size or time."""
    done: Callable[[], bool]
    run: Callable[[Progress], None]


class Progress:
    """Tells the user what a step does now: a spinner on a terminal, else what is said again."""

    def __init__(self, console: Console, name: str, status: Status | None) -> None:
        self._console, self._name, self._status = console, name, status
        self._begin = time.monotonic()

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(f"  {text}")

    def now(self, text: str) -> None:
        """What goes on at the moment."""
        seconds = time.monotonic() - self._begin
        text = text.strip()[:_SHOWN_CHARS]
        if self._status is not None:
            self._status.update(f"{self._name}  {seconds:.0f} s  [dim]{escape(text)}[/dim]")
        else:
            output.at(f"{self._name}: {text}")

    def execute(
        self,
        argv: Sequence[str | Path],
        *,
        fix: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Run a program to its end, its output as progress; `fix` tells what to do if it fails."""
        kept: list[str] = []
        with subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **(env or {})},
            cwd=cwd,
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    kept = [*kept, line.rstrip()][-_KEPT_LINES:]
                    if line.strip():
                        self.now(line)
            except BaseException:
                process.terminate()
                raise
        if process.returncode != 0:
            shown = shlex.join(str(part) for part in argv)
            raise SetupError("\n".join([*kept, f"`{shown}` ended with {process.returncode}", fix]))


@contextmanager
def whole_folder(final: Path) -> Iterator[Path]:
    """A fresh folder that takes the place of `final` when the block ends well."""
    final.parent.mkdir(parents=True, exist_ok=True)
    for left in final.parent.glob(f".{final.name}.*"):  # of interrupted runs; set-up holds a lock
        shutil.rmtree(left)
    fresh = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    fresh.chmod(0o755)
    try:
        yield fresh
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    if final.exists():
        old = fresh.with_name(f"{fresh.name}.old")
        final.rename(old)
        fresh.rename(final)
        shutil.rmtree(old)
    else:
        fresh.rename(final)
