"""Takes a training's node away at random moments, with notice: `python -m tests.bench.kills`.

Two ranks train a tiny model with the product's own checkpoints and stop request. At a random moment
each gets SIGTERM and, after the scaled notice of 6 s, SIGKILL if it is still there. Counted are
committed checkpoints that are not whole, and kills after which more than the running step is lost.
Ends with 1 where any is corrupt or more than one in a hundred kills loses more. Writes
tests/bench/kills.json where all kills were done. `--slurm` does the same to a job of two nodes on
a real Slurm, by each way that a notice comes: a node's SIGTERM and end, a drain, a signal to the
batch script, Slurm's own preemption.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

from infra.clients.ssh import Connection
from infra.local.slurm import pod as pods
from tests.bench.machine import describe
from tests.ports import free_ports

RESULT = Path(__file__).with_suffix(".json")
NOTICE_S = 6.0
_SAVE_EVERY = 25
Kill = tuple[str, int, int, list[int], int, bool]
"""How; step before; last step trained; whole checkpoints; corrupt ones; who outlived the notice."""


@dataclass
class Counts:
    """What came of the kills so far."""

    done: int = 0
    training: int = 0
    corrupt: int = 0
    there_at_the_end: int = 0
    lost_steps: Counter[int] = field(default_factory=Counter)
    ways: Counter[str] = field(default_factory=Counter)


def rank_of(rank: int, port: int, folder: Path, steps: Path, is_again: bool) -> None:
    """Trains until it is told to stop, then saves, as workloads/train/loop.py does."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["SLURM_RESTART_COUNT"] = str(int(is_again))
    from tests.workloads import tiny_run
    from workloads.common.dist import world
    from workloads.common.exit_codes import PreemptedError
    from workloads.recipes.train import CheckpointConfig
    from workloads.train.inputs import StopRequest

    with (folder / "log").open("a") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    try:
        with StopRequest() as stop, world(cpu_threads=1, timeout_s=30) as here, stop.deferred():
            run = tiny_run.make_run(
                here, folder, resume="requeue", stop=stop, keep=3, config=CheckpointConfig()
            )
            run.checkpoints.load(run.state)
            while True:
                step = run.state.progress.step + 1
                (loss,) = run.train(step).values() if step % _SAVE_EVERY == 0 else (run._step(),)
                if here.is_main:
                    steps.write_text(str(step))
                (stopped,) = here.sum([float(bool(stop))])
                if stopped or step % _SAVE_EVERY == 0:
                    run.checkpoints.save(run.state, step, loss=loss)
                if stopped:
                    run.checkpoints.wait()
                    break
    except PreemptedError:
        pass
    os._exit(75)


def main() -> int:
    """Kills, counts and prints; 0 when the promise is kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.kills")
    parser.add_argument("--slurm", action="store_true", help="as root; 20 kills where not said")
    parser.add_argument("--kills", type=int)
    parser.add_argument("--seed", type=int, default=20261124)
    parser.add_argument("--notice", type=float, default=NOTICE_S, help="seconds before the end")
    parser.add_argument("--seconds", type=float, default=1e9, help="end after so many")
    parser.add_argument("--no-write", action="store_false", dest="write")
    options = parser.parse_args()
    # Ends what it started, also where it is told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine, wanted = describe(), options.kills or (20 if options.slurm else 200)
    chance, counts = random.Random(options.seed), Counts()
    kill = under_slurm if options.slurm else of_processes
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        began_s = time.monotonic()
        for what, before, trained, whole, corrupt, was_there in kill(
            Path(name), chance, options.notice
        ):
            found = max(whole, default=0)
            counts.done += 1
            counts.training += trained > before
            counts.corrupt += corrupt
            counts.there_at_the_end += was_there
            counts.lost_steps[trained - found] += 1
            counts.ways[what] += 1
            print(f"{counts.done}: {what}, step {before} to {trained}, saved {found}", flush=True)
            if counts.done == wanted or time.monotonic() - began_s > options.seconds:
                break
    lost = sum(number for steps, number in counts.lost_steps.items() if steps > 1)
    print(
        f"{counts.done} kills, notice {options.notice:g} s: {counts.corrupt} corrupt checkpoints, "
        f"{lost} lost more than the running step, {counts.there_at_the_end} were there at its end"
    )
    if options.write and counts.done == wanted:
        result: dict[str, Any] = {
            "measured_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "machine": machine,
            "seed": options.seed,
            "notice_s": options.notice,
            "num_kills": counts.done,
            "num_kills_by_way": dict(counts.ways),
            "num_kills_in_training": counts.training,
            "num_corrupt_checkpoints": counts.corrupt,
            "num_lost_more_than_the_running_step": lost,
            "num_there_at_the_end_of_the_notice": counts.there_at_the_end,
            "num_kills_by_lost_steps": {
                str(each): counts.lost_steps[each] for each in sorted(counts.lost_steps)
            },
        }
        command = f"python -m tests.bench.kills{' --slurm' if options.slurm else ''}"
        # Another Slurm than Debian's is a figure of its own.
        if options.slurm and os.environ.get(pods.SLURM_SETTING):
            command = f"{pods.SLURM_SETTING}=PREFIX {command}"
        known = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
        text = json.dumps(known | {command: result}, indent=2)
        RESULT.write_text(f"{text}\n", encoding="utf-8")
    return int(counts.corrupt > 0 or lost > counts.done / 100)


def of_processes(folder: Path, chance: random.Random, notice_s: float) -> Iterator[Kill]:
    """Two ranks as processes of this machine, killed at a random moment of each life."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.workloads.tiny_run", "workloads.train.checkpoint"])
    steps, is_again = folder / "steps", False
    while True:
        before = int(steps.read_text() or 0) if steps.exists() else 0
        (port,) = free_ports(1)
        ranks = [
            context.Process(target=rank_of, args=(rank, port, folder, steps, is_again))
            for rank in range(2)
        ]
        for each in ranks:
            each.start()
        # From the first moment on, so that some meet a load, a step or a save.
        time.sleep(chance.uniform(0.2, 6))
        _signal(ranks, signal.SIGTERM)
        end_s = time.monotonic() + notice_s
        for each in ranks:
            each.join(max(0.0, end_s - time.monotonic()))
        was_there = any(each.is_alive() for each in ranks)
        _signal(ranks, signal.SIGKILL)
        for each in ranks:
            each.join()
        trained, is_again = int(steps.read_text() or 0) if steps.exists() else 0, True
        yield "processes", before, trained, *_checkpoints(folder / "proof" / "run"), was_there


def under_slurm(folder: Path, chance: random.Random, notice_s: float) -> Iterator[Kill]:
    """A job of two nodes, queued again after each kill, and its checkpoints between two lives."""
    from tests.local import test_faults as faults

    with faults.faulty_cluster(folder) as cluster:
        cluster.deliver(faults.release(cluster.spec))
        with Connection(cluster.outputs.endpoint(cluster.identity)) as connection:
            job = faults.Watched(cluster, connection, "requeue")
            chkpt = cluster.path(cluster.outputs.places["chkpt"]) / job.id / "proof" / "run"
            for number in count(1):
                job.wait(lambda: job.state() == "RUNNING", "start")
                before = max(_checkpoints(chkpt)[0], default=0)
                # A start takes seconds, of which some kills get theirs.
                is_early = chance.random() < 0.2
                if not is_early:
                    job.wait(lambda n=before: job.last_step() > n, "step")
                time.sleep(chance.uniform(0, 6))
                way = chance.choice(("node", "node", "drain", "signal", "preemption"))
                name, was_there = f"worker-{chance.randrange(2)}", False
                if way == "node":
                    cluster.lose(name, signal.SIGTERM)
                    time.sleep(notice_s)
                    was_there = bool(pods.processes(cluster.runtime.folder, name))
                    cluster.lose(name, signal.SIGKILL)
                elif way == "drain":
                    faults.as_root(
                        cluster, f"scontrol update nodename={name} state=drain reason=preempted"
                    )
                elif way == "signal":
                    job.run(f"scancel --batch --signal=USR1 {job.id}")
                else:
                    faults.preempt(job)
                job.wait(lambda n=number: job.restarts() == n, "requeue")
                whole, corrupt = _checkpoints(chkpt)
                yield (
                    f"{way}{' of a start' if is_early else ''}",
                    before,
                    max(job.last_step(), before),
                    whole,
                    corrupt,
                    was_there,
                )
                cluster.bring_back()
                faults.as_root(cluster, f"scontrol update nodename={name} state=resume || true")


def _signal(ranks: list[Any], number: int) -> None:
    for each in ranks:
        if each.is_alive() and each.pid:
            os.kill(each.pid, number)


def _checkpoints(run: Path) -> tuple[list[int], int]:
    """Steps of the checkpoints that are whole, and how many committed ones are not."""
    from workloads.train.run_folder import candidates

    made = candidates([run])
    # What is another user's counts for nobody: asked as the job's own user.
    user = run.stat().st_uid if made else os.geteuid()
    with mock.patch("os.geteuid", return_value=user):
        whole = [each.step for each in made if each.problem() is None]
    return whole, len(made) - len(whole)


if __name__ == "__main__":
    sys.exit(main())
