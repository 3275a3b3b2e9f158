"""The batch script's last act: runs srun, passes signals on, requeues what saved, lets a job grow.

Slurm signals the batch process only (`--signal=B:USR1@...`) and never gives a running job the nodes
back that it lost. This process, on the job's first node, sends SIGUSR1 on to the ranks, which save;
puts a preempted job back into the queue; and does the same to a job that runs with fewer nodes than
it may have once they are there again. On preemptible nodes it also looks every second whether Slurm
drains one of them or switches it off, and keeps srun from ending the step before the ranks saved.
Standard library only.
Usage: python -m workloads.common.supervise [options] -- srun ...
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
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
_ENDED_WITH_NODE = frozenset({signal.SIGTERM, 128 + signal.SIGTERM})
"""The same of SIGTERM, which a node sends to all its processes before it stops, and a job's end."""
_POLL_S = 0.2
_TIMES_SEEN = 2
_TOLD_BY = (signal.SIGUSR1, signal.SIGTERM)
_AWAKE_S = 0.01
_ASK_S = 5.0
"""A controller that does not answer must not keep this process from seeing the end of its step."""
_HEARD_S = 5.0
"""The end of a step on a node that is gone may never be heard of."""
LEAVING = frozenset({"DRAIN", "FAIL", "POWER_DOWN", "POWERING_DOWN", "REBOOT_ISSUED"})
"""Flags of a node that goes while its job still runs: `scontrol show node`, State=."""


def ask(*command: str) -> str:
    """Return what a Slurm command prints; empty when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ASK_S)
    except subprocess.TimeoutExpired:
        return ""
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
        sinfo = "sinfo", "-h", "-p", self.partition, "-o", "%D %t"
        found = {"idle": self.ask(*sinfo)}
        if held:
            found["alloc mix"] = self.ask(*sinfo, "-n", held)
        number = 0
        for states, lines in found.items():
            for line in lines.splitlines():
                count, _, state = line.partition(" ")
                # `idle*` does not answer, `idle~` is switched off: Slurm starts nothing there now.
                number += int(count) if state in states.split() else 0
        return number

    def leaving_nodes(self, names: str, nodesets: Collection[str]) -> list[str]:
        """Return those of the nodes, in Slurm's notation, that are to go and of `nodesets`."""
        found: list[str] = []
        for line in self.ask("scontrol", "--oneliner", "show", "node", names).splitlines():
            # ALLOCATED+DRAIN, or ALLOCATED*+DRAIN of one that does not answer.
            words = re.match(r"NodeName=(\S+)-\d+ .* State=(\S+)", line)
            if words and words[1] in nodesets and LEAVING & set(re.split("[*+]+", words[2])):
                found.append(line.split()[0].partition("=")[2])
        return found

    def is_preempted(self) -> bool:
        """Whether its grace time runs: Slurm tells steps of it, and no batch script."""
        return self.ask("squeue", "-h", "-j", self.id, "-O", "PreemptTime")[:1].isdigit()

    def signal_steps(self) -> None:
        """Send SIGUSR1 to every task by Slurm's daemons, as srun would."""
        subprocess.Popen(["scancel", "--signal=USR1", self.id], stdin=subprocess.DEVNULL)

    def requeue(self) -> bool:
        """Put it back into the queue; False when Slurm refuses."""
        # Slurm accounts a requeue with what its steps ended with, and hears of an end after srun
        # does (22.05: slurmstepd tells srun, then cleans up, then tells slurmctld).
        until_s = time.monotonic() + _HEARD_S
        steps = "squeue", "-h", "-s", "-j", self.id, "-o", "%i"
        while re.search(r"\.\d+$", self.ask(*steps), re.MULTILINE) and time.monotonic() < until_s:
            time.sleep(_POLL_S)
        requeue = "scontrol", "requeue", self.id
        return subprocess.run(requeue, capture_output=True, check=False).returncode == 0


@dataclass(slots=True)
class Guard:
    """Keeps the srun of ranks, or of a server in an image, on preemptible nodes mostly asleep.

    A node that is taken signals all its processes, and srun (22.05; 25.11 by its source) answers
    SIGTERM with SIGKILL to every task of the step, on all nodes, before any could save. It waits by
    sigwait, so neither a mask nor a handler of ours keeps it away; while it is stopped it hears
    nothing. It needs a moment now and then to forward output and to see how tasks end.
    """

    step: subprocess.Popen[bytes]
    preemptible: Collection[str]
    nodes_file: Path | None
    exit_file: Path | None
    save_s: float
    held_until_s: float | None = None
    """None: nobody has been told to save."""
    is_over: bool = False
    is_asleep: bool = False

    def _is_on(self) -> bool:
        """Whether there are ranks or a server, and none of them has ended."""
        files = self.nodes_file, self.exit_file
        if not self.preemptible or self.is_over or None in files:
            return False
        began, ended = (file is not None and file.is_file() for file in files)
        return began and not ended

    def holds(self) -> bool:
        """Stop srun until the ranks have saved; False where it can be asked to tell them."""
        if not self._is_on():
            return False
        self._sleep()
        self.held_until_s = self.held_until_s or time.monotonic() + self.save_s
        return True

    def rest(self) -> None:
        """Wait for the time between two looks, with srun stopped for most of it."""
        if not self._is_on():
            self.is_over = self.is_over or self.held_until_s is not None
            self._wake()
            time.sleep(_POLL_S)
            return
        if self.held_until_s is None:
            # A handler that stops srun must not come between the look and the waking.
            signal.pthread_sigmask(signal.SIG_BLOCK, _TOLD_BY)
            if self.held_until_s is None:
                self._wake()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _TOLD_BY)
            time.sleep(_AWAKE_S)
        elif time.monotonic() > self.held_until_s:
            self.is_over = True
            return
        self._sleep()
        time.sleep(_POLL_S)

    def _sleep(self) -> None:
        self.is_asleep = True
        self.step.send_signal(signal.SIGSTOP)

    def _wake(self) -> None:
        """Not where it is awake: srun writes a line into the job's log each time."""
        if self.is_asleep:
            self.is_asleep = False
            self.step.send_signal(signal.SIGCONT)


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
    nodes: str = ""
    """Of the job, in Slurm's notation."""
    preemptible: Collection[str] = ()
    """Nodesets of which Slurm drains a node that is about to be taken; others finish their work."""
    watch_every_s: float = 1.0
    serves: bool = False
    """A server ends only when it is told to, with 0 where it returned no answer unfinished."""
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
        guard = Guard(step, self.preemptible, self.nodes_file, self.exit_file, self.save_s)

        heard: set[int] = set()

        def pass_on(number: int, _: FrameType | None) -> None:
            is_new = number not in heard
            heard.add(number)
            if self.serves and self.is_stopping and is_new:
                guard.holds()  # one notice comes by several ways; a server told twice hurries
                return
            if not self.is_stopping:
                what = "the server ends its answers" if self.serves else "the ranks save and end"
                log(f"{signal.Signals(number).name}: {what}")
            self.is_stopping = True
            if guard.holds():
                self.job.signal_steps()
            else:
                # srun takes SIGTERM as an order to kill; it hands SIGUSR1 on to every task.
                step.send_signal(signal.SIGUSR1)

        for number in _TOLD_BY:
            signal.signal(number, pass_on)
        looked_s = watched_s = time.monotonic()
        while step.poll() is None:
            guard.rest()
            if self.serves and guard.is_over and self.exit_file and self.exit_file.is_file():
                step.kill()  # it would wait for the end of a step whose node may be gone: KillWait
            now_s = time.monotonic()
            is_due = now_s - watched_s >= self.watch_every_s
            if self.preemptible and not self.is_stopping and is_due:
                watched_s = now_s
                why = ", ".join(self.job.leaving_nodes(self.nodes, self.preemptible))
                why = f"{why} is drained or about to stop" if why else ""
                if not why and self.serves and self.job.is_preempted():
                    why = "Slurm makes room for another job"
                if why and not self.is_stopping:  # a server that is told twice hurries
                    log(why)
                    pass_on(signal.SIGUSR1, None)
            if now_s - looked_s >= self.look_every_s:
                looked_s = now_s
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
        if status in _ENDED_WITH_NODE or (self.is_stopping and status in _ENDED_BY_IT):
            log("the signal came before a rank could take it: there is nothing to save")
            status = int(ExitCode.PREEMPTED)
        if status != ExitCode.PREEMPTED and not (self.serves and status == ExitCode.OK):
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
    parser.add_argument("--serves", action="store_true")
    parser.add_argument("--preemptible", action="append", default=[], metavar="NODESET")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    command = [word for index, word in enumerate(options.command) if index or word != "--"]
    environ = os.environ
    return Supervisor(
        job=Job(id=environ["SLURM_JOB_ID"], partition=environ.get("SLURM_JOB_PARTITION", "")),
        command=command,
        max_nodes=options.max_nodes,
        nodes_file=_path("SOPERATOR_NODES_FILE"),
        exit_file=_path("SOPERATOR_EXIT_FILE"),
        save_s=options.save_s,
        nodes=environ.get("SLURM_JOB_NODELIST", ""),
        preemptible=options.preemptible,
        serves=options.serves,
        look_every_s=float(environ.get("SOPERATOR_LOOK_EVERY_S", "60")),
    ).run()


def _path(name: str) -> Path | None:
    return Path(value) if (value := os.environ.get(name)) else None


if __name__ == "__main__":
    sys.exit(main())
