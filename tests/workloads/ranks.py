"""Ranks that are forked from a server which has torch and the libraries on it imported already.

As the launcher starts them on one node, but for 8 s of imports a rank. Tests of the launcher, of
its restarts and signals and of how a job ends start workloads.common.launch itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing import connection, forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, Self

from workloads.common.launch import STARTS, cause_of, free_port, shell_status
from workloads.common.record import STARTED_S

REPOSITORY = Path(__file__).parents[2]
_SAVE_S = 30
"""Seconds that the other ranks have once one has failed, as torchrun gives them."""
_SET_DEATH_SIGNAL = 1
"""Linux, prctl.h: PR_SET_PDEATHSIG."""


_ours: set[int | None] = set()
"""Processes of the server that were started here."""


def fork_server() -> ForkServerContext:
    """Returns the context of the one fork server of this process, which runs."""
    context = multiprocessing.get_context("forkserver")
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    if server._forkserver_pid not in _ours:
        server._stop()  # that of a job of the product, which has none of these imports
    context.set_forkserver_preload(["tests.workloads.loaded"])
    with contextlib.chdir(REPOSITORY):  # where it finds that module
        forkserver.ensure_running()
    _ours.add(server._forkserver_pid)
    return context


class Ranks:
    """The ranks of `python COMMAND`; `-m MODULE` or a file is what they run.

    `environment` is beside the test's own. They have ended at the end of a with block.
    """

    def __init__(
        self, *command: str, num_ranks: int = 1, environment: Mapping[str, str] | None = None
    ) -> None:
        self._command = command
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        outputs = [Path(self._folder.name, name) for name in ("stdout", "stderr")]
        self._outputs = outputs
        for output in outputs:
            output.touch()
        shared = {"OMP_NUM_THREADS": "1"} if num_ranks > 1 else {}
        shared |= {**os.environ, "MASTER_PORT": f"{free_port()}", **(environment or {})}
        shared |= {STARTS: "1", STARTED_S: f"{time.time()}", "GROUP_RANK": "0"}
        shared |= {"WORLD_SIZE": f"{num_ranks}", "LOCAL_WORLD_SIZE": f"{num_ranks}"}
        shared["MASTER_ADDR"] = "localhost"
        start = fork_server().Process
        self.processes = [
            start(target=_run, args=(command, shared | {"RANK": n, "LOCAL_RANK": n}, outputs))
            for n in map(str, range(num_ranks))
        ]
        for process in self.processes:
            process.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        self._folder.cleanup()

    def wait(self, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
        """Returns what became of them; the first one that fails ends the others."""
        deadline = time.monotonic() + timeout_s
        running = list(self.processes)
        status = 0
        while running and not status:
            ready = connection.wait(
                [each.sentinel for each in running], deadline - time.monotonic()
            )
            if not ready:
                raise subprocess.TimeoutExpired(self._command, timeout_s, *self._said())
            ended = [each for each in running if each.sentinel in ready]
            running = [each for each in running if each not in ended]
            status = next((each.exitcode for each in ended if each.exitcode), 0)
        for process in running:
            process.terminate()
        for process in running:
            process.join(_SAVE_S)
            process.kill()
            process.join()
        ends = {rank: each.exitcode or 0 for rank, each in enumerate(self.processes)}
        cause = cause_of(status, ends)
        status = status if cause is None else ends[cause]
        return subprocess.CompletedProcess(self._command, shell_status(status), *self._said())

    def _said(self) -> list[str]:
        return [output.read_text(encoding="utf-8") for output in self._outputs]


def run_ranks(
    *command: str,
    num_ranks: int = 1,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 240,
) -> subprocess.CompletedProcess[str]:
    """Returns what became of the ranks of `python COMMAND`, with the launcher's exit status."""
    with Ranks(*command, num_ranks=num_ranks, environment=environment) as ranks:
        return ranks.wait(timeout_s)


def _run(command: Sequence[str], environment: Mapping[str, str], outputs: Sequence[Path]) -> None:
    """Is the process of a rank, from its first to its last line."""
    # The server ends with the process of the tests, whatever ended that.
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    for number, output in enumerate(outputs, 1):
        os.dup2(os.open(output, os.O_WRONLY | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(REPOSITORY)
    if "OMP_NUM_THREADS" in environment:  # which torch reads where it is imported
        import torch

        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    kind, *sys.argv = ("", *command) if command[0] != "-m" else command
    if kind:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
