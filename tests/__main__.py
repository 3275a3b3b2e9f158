"""The whole suite in three parts, each as parallel as it can be; a bad status of any is the answer.

    python -m tests [--all] [options of pytest]

Without `--all` the tests with the marker `nightly` are left out, and laws are held against fewer
examples (tests/nightly.py).

`local` has three real Slurm clusters at a time, each of which computes for a fifth of its time and
else waits for Slurm's own clocks, so it runs beside `fast`, a process a core: one more would import
torch and read the 9,000 tests once more. `engine` follows `local` with one process more, as its
tests wait for an engine that waits for an emulator. Files stay whole in one process: their fixtures
are engines and emulators. Every part runs, whatever another one found.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).resolve().parents[1]
_MAX_PROCESSES: Final = 4
"""A process of the engine part may hold 1 GiB with its engine, emulator and API server."""
_NUM_CLUSTERS: Final = 3
"""Each has controller, database, nodes and login node as processes, in folders of its own."""
_ALL: Final = "--all"
_DAILY: Final = ("-m", "not nightly")
_NIGHTLY: Final = ("--hypothesis-profile=nightly",)
APART: Final = ("conformance",)
"""Folders of no part: what they hold against each other is on few machines (make conformance)."""
_SUMMARY: Final = re.compile(r"=+ (.* in [\d.]+s.*?) =+$")
_FAILURE: Final = re.compile(r"(?:FAILED|ERROR) \S.*")
_NO_BYTECODE: Final = "PYTHONDONTWRITEBYTECODE"
"""Set in containers and on CI: each of some thousand processes would compile our modules anew."""
_INTERRUPTED: Final = 2
"""pytest's status after Ctrl-C."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Folders of tests/ that one pytest runs."""

    name: str
    folders: tuple[str, ...]
    processes: int
    """1: in pytest's own process, one test after the other."""

    def command(self, options: Sequence[str]) -> list[str]:
        """The whole command line."""
        spread = ["-n", str(self.processes), "--dist", "loadfile", "--no-loadscope-reorder"]
        folders = [f"tests/{folder}" for folder in self.folders]
        options = [*spread, *folders, *options] if self.processes > 1 else [*folders, *options]
        return [sys.executable, "-m", "pytest", *options]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one part ended."""

    part: Part
    status: int
    seconds: float
    counts: str
    """What pytest counted, such as `12 passed`; its status where it counted nothing."""
    failures: tuple[str, ...] = ()
    """The lines of pytest's summary that name what failed, and why."""


def lanes(num_cores: int) -> tuple[tuple[Part, ...], ...]:
    """What runs at once on a machine with so many cores; the parts of a lane in their order."""
    cores = max(1, min(num_cores, _MAX_PROCESSES))
    computing = ("unit", "components", "workloads", "gpu", "browser")
    return (
        (Part(name="fast", folders=computing, processes=cores),),
        (
            Part(name="local", folders=("local",), processes=_NUM_CLUSTERS),
            Part(name="engine", folders=("engine",), processes=min(cores + 1, _MAX_PROCESSES)),
        ),
    )


def run_part(part: Part, options: Sequence[str]) -> Result:
    """Runs one part and shows all that it prints, each line under the part's name."""
    print(f"\n### {part.name}: {' '.join(part.folders)}, processes: {part.processes}", flush=True)
    begin, counts = time.monotonic(), ""
    failures: list[str] = []
    colors = ["--color=yes"] if sys.stdout.isatty() else []
    with subprocess.Popen(
        part.command([*colors, *options]),
        cwd=CHECKOUT,
        env={name: value for name, value in os.environ.items() if name != _NO_BYTECODE},
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(f"{part.name:<6} | {line}", end="", flush=True)
            plain = re.sub(r"\x1b\[\d*(;\d+)*m", "", line).strip()
            found = _SUMMARY.search(plain)
            failures += _FAILURE.findall(plain) if _FAILURE.match(plain) else []
            counts = found[1] if found else counts
    status = running.returncode
    return Result(
        part=part,
        status=status,
        seconds=time.monotonic() - begin,
        counts=counts or f"pytest ended with status {status} and counted nothing",
        failures=tuple(failures),
    )


def run(
    all_lanes: Sequence[Sequence[Part]],
    options: Sequence[str],
    run_one: Callable[[Part, Sequence[str]], Result] = run_part,
) -> int:
    """Runs every part and prints what each came to; the first status that is not 0, or 0."""

    def run_lane(lane: Sequence[Part]) -> list[Result]:
        ended: list[Result] = []
        for part in lane:
            if not ended or ended[-1].status != _INTERRUPTED:
                ended.append(run_one(part, options))
        return ended

    with ThreadPoolExecutor(len(all_lanes)) as threads:
        results = [result for lane in threads.map(run_lane, all_lanes) for result in lane]
    print("\n### all parts")
    for result in results:
        verdict = "ok    " if result.status == 0 else "FAILED"
        print(f"{verdict} {result.part.name:<8} {result.seconds:5.0f} s  {result.counts}")
        # Once more at the end, where the log of a server begins to be read.
        print(*(f"    {line}\n" for line in result.failures), sep="", end="")
    ran = [result.part for result in results]
    for part in [part for lane in all_lanes for part in lane if part not in ran]:
        print(f"NOT RUN {part.name}")
    return next((result.status for result in results if result.status), 0)


def options_of(words: Sequence[str]) -> list[str]:
    """Options of pytest for the words of the command line."""
    if _ALL in words:
        return [*_NIGHTLY, *(word for word in words if word != _ALL)]
    if "-m" not in words:
        return [*_DAILY, *words]
    # Of two expressions pytest takes the last.
    place = words.index("-m") + 1
    return [*words[:place], f"({words[place]}) and {_DAILY[1]}", *words[place + 1 :]]


if __name__ == "__main__":
    sys.exit(run(lanes(os.cpu_count() or 1), options_of(sys.argv[1:])))
