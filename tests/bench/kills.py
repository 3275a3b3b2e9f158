"""Takes a training's node away at random moments, with notice: `python -m tests.bench.kills`.

Two ranks train a tiny model with the product's own checkpoints and stop request. At a random moment
each gets SIGTERM and, after the scaled notice of 6 s, SIGKILL if it is still there. Counted are
committed checkpoints that are not whole, and kills after which more than the running step is lost.
Ends with 1 where any is corrupt or more than one in a hundred kills loses more.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.ports import free_ports

NOTICE_S = 6.0
_SAVE_EVERY = 25


def rank_of(rank: int, port: int, folder: Path, steps: Path, is_again: bool) -> None:
    """Trains until it is told to stop, then saves, as workloads/train/loop.py does."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["SLURM_RESTART_COUNT"] = str(int(is_again))
    from tests.workloads import tiny_run
    from workloads.common.dist import world
    from workloads.common.exit_codes import PreemptedError
    from workloads.recipes.train import CheckpointConfig
    from workloads.train.run import stop_request

    with (folder / "log").open("a") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    try:
        with stop_request() as stop, world(cpu_threads=1, timeout_s=30) as here, stop.deferred():
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
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=20261124)
    parser.add_argument("--notice", type=float, default=NOTICE_S, help="seconds before the end")
    parser.add_argument("--seconds", type=float, default=1e9, help="end after so many")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.workloads.tiny_run", "workloads.train.checkpoint"])
    num_corrupt = num_lost = num_killed = done = 0
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        folder, steps = Path(name), Path(name, "steps")
        while done < options.kills and time.monotonic() - began_s < options.seconds:
            before = int(steps.read_text() or 0) if steps.exists() else 0
            (port,) = free_ports(1)
            ranks = [
                context.Process(target=rank_of, args=(rank, port, folder, steps, done > 0))
                for rank in range(2)
            ]
            for each in ranks:
                each.start()
            # From the first moment on, so that some meet a load, a step or a save.
            time.sleep(chance.uniform(0.2, 6))
            _signal(ranks, signal.SIGTERM)
            end_s = time.monotonic() + options.notice
            for each in ranks:
                each.join(max(0.0, end_s - time.monotonic()))
            num_killed += any(each.is_alive() for each in ranks)
            _signal(ranks, signal.SIGKILL)
            for each in ranks:
                each.join()
            found, corrupt = _checkpoints(folder)
            trained = int(steps.read_text() or 0) if steps.exists() else 0
            done += 1
            num_corrupt += corrupt
            lost = trained - found
            num_lost += lost > 1
            print(f"{done}: step {before} to {trained}, saved {found}", flush=True)
    print(
        f"{done} kills, notice {options.notice:g} s: {num_corrupt} corrupt checkpoints, "
        f"{num_lost} lost more than the running step, {num_killed} were there at its end"
    )
    return int(num_corrupt > 0 or num_lost > done / 100)


def _signal(ranks: list[Any], number: int) -> None:
    for each in ranks:
        if each.is_alive() and each.pid:
            os.kill(each.pid, number)


def _checkpoints(folder: Path) -> tuple[int, int]:
    """The newest step that is whole, and how many committed ones are not."""
    from workloads.train.run_folder import candidates

    made = candidates([folder / "proof" / "run"])
    whole = [each.step for each in made if each.problem() is None]
    return max(whole, default=0), len(made) - len(whole)


if __name__ == "__main__":
    sys.exit(main())
