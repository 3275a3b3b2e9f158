"""Installs everything that the project needs on this machine, each thing once.

Finished steps are skipped, an interrupted one is made anew; nothing is left half made. Make calls
it after bootstrap.sh. Exit codes: 0 all there, 1 a step cannot succeed and says what to do.
    python -m infra.setup.tools [--tests]
"""

from __future__ import annotations

import argparse
import fcntl
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console

from infra.cli import output
from infra.local.process import LocalError
from infra.setup.tools import parts
from infra.setup.tools.parts import Progress, SetupError, Step
from infra.state import Cache, State


def steps(*, tests: bool) -> list[Step]:
    """What this machine needs, in order; `tests` adds the browser."""
    cache, state = Cache.from_environ(), State.from_environ()
    return [
        parts.packages_step({**parts.PACKAGES, **(parts.TEST_PACKAGES if tests else {})}),
        *parts.go_steps(state, cache),
        *parts.python_steps(cache),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every step that is not done."""
    parser = argparse.ArgumentParser(prog="python -m infra.setup.tools", description=__doc__)
    parser.add_argument("--tests", action="store_true", help="also what only the tests need")
    options = parser.parse_args(arguments)
    console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
    try:
        with _alone(Cache.from_environ(), console):
            for step in steps(tests=options.tests):
                _run(step, console)
    except (SetupError, LocalError) as error:
        lines = str(error).splitlines() or ["no message"]
        console.print("\n".join(f"setup: {line}" for line in lines), style="red")
        return 1
    except KeyboardInterrupt:
        console.print("setup: interrupted; run it again, it goes on where it was")
        return 130
    return 0


def _run(step: Step, console: Console) -> None:
    if step.done():
        console.print(f"ok    {step.name}")
        return
    console.print(f"make  {step.name} ({step.expect})")
    begin = time.monotonic()
    if console.is_terminal:
        with console.status(step.name) as status:
            step.run(Progress(console, step.name, status))
    else:
        with output.never_silent(step.name):
            step.run(Progress(console, step.name, None))
    if not step.done():
        raise SetupError(f"{step.name}: made, but not found; remove the cache's copy and run again")
    console.print(f"ok    {step.name}, {time.monotonic() - begin:.0f} s")


@contextmanager
def _alone(cache: Cache, console: Console) -> Iterator[None]:
    """One set-up at a time in a cache; a second one waits."""
    try:
        cache.root.mkdir(parents=True, exist_ok=True)
        lock = (cache.root / ".lock").open("w")
    except OSError as error:
        raise SetupError(
            f"SOPERATOR_CACHE: {cache.root} cannot be written ({error.strerror}); "
            "set it to a folder that can"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.print("setup: another one runs in this cache; waiting for it")
            with output.never_silent("waiting for the other set-up"):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
