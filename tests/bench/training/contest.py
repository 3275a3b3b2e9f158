"""Lets trainers step in turn, one at a time, and reads what each step cost.

Every trainer is a process of its own on one thread that stops after each of its steps until its
next turn. A round is one step of everybody, so what a round is compared with met the same machine
within seconds. Counted is CPU time of the whole process (what its other threads do counts too):
other work on the machine takes turns on the CPU without being counted. What it still does is to
share caches and memory with the step that is measured; rounds and medians are for that.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Trainer = Callable[["Turns"], float]
"""Trains, tells every step to `Turns`, and returns the mean loss per label token of all steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of one trainer."""

    num_tokens: int
    """Tokens that are not padding."""
    cpu_s: float


class Turns:
    """The trainer's end of the line."""

    def __init__(self, line: Connection, *, shares_process: bool = False) -> None:
        self._line, self._counted_s, self._shares = line, 0.0, shares_process

    def step(self, num_tokens: int) -> None:
        """Tell of a step that has ended, and wait for the next turn."""
        now = time.process_time()
        self._line.send(Step(num_tokens=num_tokens, cpu_s=now - self._counted_s))
        self._counted_s = now
        self._line.recv()
        if self._shares:  # the others have used the time between
            self._counted_s = time.process_time()


def hold(
    trainers: dict[str, Trainer], *, num_steps: int, logs: Path, in_one_process: bool = False
) -> tuple[list[dict[str, Step]], dict[str, float]]:
    """Return the steps of every round after the first, and each trainer's mean loss.

    The first step pays for warm-up and is not compared. What a trainer prints goes to a file in
    `logs`; RuntimeError names it when one ends early. `in_one_process`: as threads, which saves
    their starts, for trainers that are all ours.
    """
    started = _started_here if in_one_process else _started
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with contextlib.ExitStack() as stack:
        lines = {
            name: stack.enter_context(started(name, trainer, logs / f"{name}.log"))
            for name, trainer in trainers.items()
        }
        for name, line in lines.items():  # one at a time: loading a model is no step
            _go(line)
            _told(name, line, logs)
        rounds: list[dict[str, Step]] = []
        for number in range(1, num_steps):
            found: dict[str, Step] = {}
            # In turn the other way round: who comes first may find the caches of others.
            for name in list(lines)[:: -1 if number % 2 else 1]:
                _go(lines[name])
                found[name] = _told(name, lines[name], logs)
            rounds.append(found)
        losses: dict[str, float] = {}
        for name, line in lines.items():
            _go(line)
            losses[name] = _told(name, line, logs)
    return rounds, losses


def _go(line: Connection) -> None:
    with contextlib.suppress(BrokenPipeError):  # told by the read that follows
        line.send(None)


def _told(name: str, line: Connection, logs: Path) -> Any:
    try:
        return line.recv()
    except (EOFError, ConnectionResetError) as error:
        log = logs / f"{name}.log"
        text = log.read_text(encoding="utf-8", errors="replace")
        raise RuntimeError(f"{name} ended early:\n{text[-3000:]}") from error


@contextlib.contextmanager
def _started(name: str, trainer: Trainer, log: Path) -> Iterator[Connection]:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(trainer, theirs, log), name=name, daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        process.terminate()
        process.join()


@contextlib.contextmanager
def _started_here(name: str, trainer: Trainer, log: Path) -> Iterator[Connection]:
    ours, theirs = get_context("spawn").Pipe()

    def run() -> None:
        import torch

        try:
            theirs.recv()
            torch.set_num_threads(1)
            theirs.send(trainer(Turns(theirs, shares_process=True)))
        except EOFError:
            pass  # another trainer ended early
        except Exception:
            log.write_text(traceback.format_exc(), encoding="utf-8")
        finally:
            theirs.close()

    log.touch()
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield ours
    finally:
        ours.close()
        thread.join()


def _run(trainer: Trainer, line: Connection, log: Path) -> None:
    with log.open("wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    line.recv()  # before anything is loaded, so that trainers are made ready one by one
    import torch

    torch.set_num_threads(1)
    line.send(trainer(Turns(line)))


def rates(rounds: Sequence[dict[str, Step]], name: str) -> list[float]:
    """Return a trainer's useful tokens per CPU second, a value a round."""
    return [each[name].num_tokens / each[name].cpu_s for each in rounds]
