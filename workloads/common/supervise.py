"""The batch script's last act: runs srun, passes signals on, requeues what saved, lets a job grow.

Slurm signals the batch process only (`--signal=B:USR1@...`) and never gives a running job the nodes
back that it lost. This process, on the job's first node, sends SIGUSR1 on to the ranks, which save;
puts a preempted job back into the queue; and does the same to a job that runs with fewer nodes than
it may have once they are there again. Standard library only.
Usage: python -m workloads.common.supervise [options] -- srun ...
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from workloads.common import atomic
from workloads.common.exit_codes import ExitCode
from workloads.common.log import log

MAX_REQUEUES = 100
"""A job that never gets further than its start must not circle in the queue for ever."""
_LIMIT_SLACK_S = 60
_ENDED_BY_IT = frozenset({signal.SIGUSR1, 128 + signal.SIGUSR1})
"""What srun says of tasks that SIGUSR1 ended: 22.05 the signal's number alone."""
_POLL_S = 0.2
_TIMES_SEEN = 2


def ask(*command: str) -> str:
    """Return what a Slurm command prints; empty when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


@dataclass(slots=True, kw_only=True)
class Job:
    """This Slurm job, as the controller sees it."""

    id: str
    partition: str
    ask: Callable[..., str] = ask

    def is_running(self) -> bool:
        """False once it is cancelled, preempted by Slurm, or over its time limit."""
        return self.ask("squeue", "-h", "-j", self.id, "-o", "%T") == "RUNNING"

    def seconds_left(self) -> int | None:
        """Return the time to its limit; None without one."""
        text = self.ask("squeue", "-h", "-j", self.id, "-o", "%L")
        days, _, clock = text.rpartition("-")
        parts = clock.split(":")
        if not all(part.isdigit() for part in parts):
            return None
        seconds = 0
        for part in parts:
            seconds = seconds * 60 + int(part)
        return seconds + (int(days) * 86400 if days.isdigit() else 0)

    def num_available_nodes(self) -> int:
        """Return the nodes that a new start could have: idle ones, and those that it holds."""
        held = self.ask("squeue", "-h", "-j", self.id, "-o", "%N")
        found = {"idle": self.ask("sinfo", "-h", "-p", self.partition, "-o", "%D %t")}
        if held:
            found["alloc mix"] = self.ask(
                "sinfo", "-h", "-p", self.partition, "-n", held, "-o", "%D %t"
            )
        number = 0
        for states, lines in found.items():
            for line in lines.splitlines():
                count, _, state = line.partition(" ")
                # `idle*` does not answer, `idle~` is switched off: Slurm starts nothing there now.
                number += int(count) if state in states.split() else 0
        return number

    def requeue(self) -> bool:
        """Put it back into the queue; False when Slurm refuses."""
        done = subprocess.run(["scontrol", "requeue", self.id], capture_output=True, check=False)
        return done.returncode == 0


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """Runs one step and decides what comes after it."""

    job: Job
    command: Sequence[str]
    max_nodes: int
    nodes_file: Path | None
    exit_file: Path | None
    save_s: int
    look_every_s: float
    is_stopping: bool = False
    wants_growth: bool = False
    times_seen: int = 0
    """Looks in a row that found more nodes than are in use."""

    def run(self) -> int:
        """Return the status of the job; a requeue ends this process before that."""
        for path in (self.exit_file, self.nodes_file):
            if path is not None:
                atomic.own_folder(path.parent, below=path.parent.parent)
                path.unlink(missing_ok=True)
        step = subprocess.Popen(self.command)

        def pass_on(number: int, frame: FrameType | None) -> None:
            del frame
            if not self.is_stopping:
                log(f"{signal.Signals(number).name}: the ranks save and end")
            self.is_stopping = True
            # srun takes SIGTERM as an order to kill; it hands SIGUSR1 on to every task.
            step.send_signal(signal.SIGUSR1)

        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, pass_on)
        looked_s = time.monotonic()
        while step.poll() is None:
            time.sleep(_POLL_S)
            if time.monotonic() - looked_s >= self.look_every_s:
                looked_s = time.monotonic()
                if not self.is_stopping and self.can_grow():
                    self.wants_growth = True
                    pass_on(signal.SIGUSR1, None)
        return self._after(step.returncode)

    def can_grow(self) -> bool:
        """Whether a new start would have more nodes than the ranks run on now."""
        if self.nodes_file is None or not self.nodes_file.is_file():
            return False
        now = int(self.nodes_file.read_text(encoding="utf-8").strip() or 0)
        if not 0 < now < self.max_nodes:
            return False
        available = min(self.job.num_available_nodes(), self.max_nodes)
        # Twice in a row: a node that has just come back may go again.
        self.times_seen = self.times_seen + 1 if available > now else 0
        if self.times_seen >= _TIMES_SEEN:
            log(f"{available} nodes are there again, {now} are in use: saving to use them")
        return self.times_seen >= _TIMES_SEEN

    def _after(self, status: int) -> int:
        status = 128 - status if status < 0 else status
        if status and self.exit_file is not None and self.exit_file.is_file():
            # srun has the highest status of all nodes; the first one says why the job failed.
            status = int(self.exit_file.read_text(encoding="utf-8").strip() or status)
        if self.is_stopping and status in _ENDED_BY_IT:
            log("the signal came before a rank could take it: there is nothing to save")
            status = int(ExitCode.PREEMPTED)
        if status != ExitCode.PREEMPTED:
            return status
        reason = self._why_not_again()
        if reason is not None:
            log(f"stopped; {reason}")
            return status
        log("stopped; back into the queue")
        if not self.job.requeue():
            log("Slurm refused the requeue: submit the job again with --resume auto")
        return status

    def _why_not_again(self) -> str | None:
        if not self.job.is_running():
            return "Slurm ends this job itself"
        left_s = self.job.seconds_left()
        if not self.wants_growth and left_s is not None and left_s <= self.save_s + _LIMIT_SLACK_S:
            return "its time limit is reached: submit it again with --resume auto to go on"
        if int(os.environ.get("SLURM_RESTART_COUNT") or 0) >= MAX_REQUEUES:
            return f"it was requeued {MAX_REQUEUES} times: submit it again with --resume auto"
        return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command after `--`."""
    parser = argparse.ArgumentParser(prog="python -m workloads.common.supervise")
    parser.add_argument("--max-nodes", type=int, required=True)
    parser.add_argument("--save-s", type=int, required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    command = [word for index, word in enumerate(options.command) if index or word != "--"]
    environment = os.environ
    return Supervisor(
        job=Job(
            id=environment["SLURM_JOB_ID"], partition=environment.get("SLURM_JOB_PARTITION", "")
        ),
        command=command,
        max_nodes=options.max_nodes,
        nodes_file=_path("SOPERATOR_NODES_FILE"),
        exit_file=_path("SOPERATOR_EXIT_FILE"),
        save_s=options.save_s,
        look_every_s=float(environment.get("SOPERATOR_LOOK_EVERY_S", "60")),
    ).run()


def _path(name: str) -> Path | None:
    value = os.environ.get(name)
    return Path(value) if value else None


if __name__ == "__main__":
    sys.exit(main())
