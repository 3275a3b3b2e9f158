"""The proof, on this cluster, that runs resume: saves and loads at every world size, and damage.

Usage: torchrun --nproc-per-node=4 -m workloads.train.prove_resume [--folder PATH]
Trains a tiny model with the real order of rows, checkpoints and optimizer. Every size from one rank
to all of them saves, every size loads, under DDP and FSDP2; the losses after a resume must be those
of the run that was not interrupted, and every row must be seen once an epoch. Exits with 0 when
every line says PASS, with 69 when one was not run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from workloads.common.dist import World, world
from workloads.common.exit_codes import ConfigError, ExitCode, WorkloadError, reason_of
from workloads.common.job import end
from workloads.train.checkpoint_config import CheckpointConfig
from workloads.train.checkpoint_format import candidates
from workloads.train.checkpoint_ranks import Ranks
from workloads.train.proof_damage import prove_damage, prove_full_disk, prove_kills
from workloads.train.proof_run import (
    NUM_ROWS,
    NUM_STEPS,
    ROWS_PER_STEP,
    SAVED_STEP,
    Line,
    Outcome,
    Part,
    Run,
    Spread,
    make_run,
    part_of,
    stream,
)

_TIMEOUT_S = 60.0


def prove_sizes(here: World, folder: Path) -> list[Line]:
    """Save at every size, load at every size, both ways to spread; one line for each pair."""
    saved: dict[tuple[int, str], dict[int, float]] = {}
    parts: dict[int, Part | None] = {
        size: part_of(here, size) for size in range(1, here.world_size + 1)
    }
    lines: list[Line] = []
    for size, part in parts.items():
        for spread in _spreads(part):
            assert part is not None
            for kind, config in _kinds().items():
                place = folder / f"{kind}-{spread}-{size}"
                run = make_run(part, spread, place, resume="never", config=config, keep=2)
                saved[size, f"{kind}-{spread}"] = run.train(NUM_STEPS, save_at=SAVED_STEP)
        here.barrier()
    for size, part in parts.items():
        for (from_size, name), expected in _everything(here, saved).items():
            for spread in _spreads(part):
                assert part is not None
                place = folder / f"{name}-{from_size}"
                step = max(candidates([place / "proof" / "run"]), key=lambda each: -each.step)
                run = make_run(
                    part, spread, place, resume=str(step.path), config=CheckpointConfig(), keep=2
                )
                what = f"{name} at {from_size} ranks -> {spread} at {size}"
                exact = from_size == size and name.endswith(spread)
                lines.append(_resumed(run, what, expected, exact=exact))
        here.barrier()
    return lines


def _resumed(run: Run, what: str, expected: dict[int, float], *, exact: bool) -> Line:
    if not run.checkpoints.load(run.state):
        return Line(what=what, outcome="FAIL", detail="nothing was loaded")
    if run.state.progress.step != SAVED_STEP:
        return Line(what=what, outcome="FAIL", detail=f"resumed at {run.state.progress.step}")
    losses = run.train(NUM_STEPS)
    wanted = {step: loss for step, loss in expected.items() if step > SAVED_STEP}
    apart = max(abs(losses[step] - wanted[step]) / abs(wanted[step]) for step in wanted)
    passed = losses == wanted if exact else (losses.keys() == wanted.keys() and apart < 1e-4)
    how = "bit-equal" if losses == wanted else f"losses within {apart:.1e}"
    return Line(what=what, outcome="PASS" if passed else "FAIL", detail=how)


def _everything(here: World, saved: dict[Any, dict[int, float]]) -> dict[Any, dict[int, float]]:
    """What rank 0, which is in every part, has seen."""
    return here.broadcast(saved)


def _spreads(part: Part | None) -> tuple[Spread, ...]:
    if part is None:
        return ()
    # FSDP2 needs a group: one rank without torchrun has none.
    return get_args(Spread) if part.files is not None else ("ddp",)


def _kinds() -> dict[str, CheckpointConfig]:
    return {
        "sharded": CheckpointConfig(),
        "elastic": CheckpointConfig(elastic_every=SAVED_STEP, background=False),
    }


def prove_rows(here: World) -> Line:
    """Count the rows of two epochs dealt to world sizes that change with every step."""
    del here
    what = "rows over changing world sizes"
    seen: list[int] = []
    position = 0
    for step in range(2 * NUM_ROWS // ROWS_PER_STEP):
        size = 1 + step % 4
        for rank in range(size):
            for rows in stream().micro_batches(
                position, rank=rank, world_size=size, micro_batch_size=1, num_rows=ROWS_PER_STEP
            ):
                seen += rows
        position += ROWS_PER_STEP
    epochs = (sorted(seen[:NUM_ROWS]), sorted(seen[NUM_ROWS:]))
    passed = all(epoch == list(range(NUM_ROWS)) for epoch in epochs)
    detail = "each once an epoch" if passed else f"epochs were {epochs}"
    return Line(what=what, outcome="PASS" if passed else "FAIL", detail=detail)


def prove(here: World, folder: Path, *, only_sizes: bool) -> list[Line]:
    """Run all of it, or the saves and loads only; every rank gets rank 0's lines."""
    lines = prove_sizes(here, folder)
    if here.is_main and not only_sizes:
        if here.world_size == 1:
            lines.append(
                Line(
                    what="save and load at several world sizes",
                    outcome="NOT RUN",
                    detail="one rank: start this with torchrun --nproc-per-node=4",
                )
            )
        lines.append(prove_rows(here))
        lines += prove_damage(folder / "damage")
        lines.append(prove_kills(folder / "kills"))
        lines.append(prove_full_disk(folder / "full"))
    return here.broadcast(lines)


def main(arguments: Sequence[str] | None = None) -> ExitCode:
    """Prove, print the table, return 0 when everything passed."""
    parser = argparse.ArgumentParser(prog="python -m workloads.train.prove_resume")
    parser.add_argument("--folder", type=Path, help="shared by all nodes; default: place chkpt")
    parser.add_argument("--only-sizes", action="store_true", help="no damage, no kills")
    options = parser.parse_args(arguments)
    try:
        with world(cpu_threads=1) as here:
            folder = Ranks(here, timeout_s=_TIMEOUT_S).agree(lambda: _proof_folder(options.folder))
            try:
                lines = prove(here, folder, only_sizes=options.only_sizes)
            finally:
                if here.is_main:
                    shutil.rmtree(folder, ignore_errors=True)
            if here.is_main:
                _print(lines, here)
            # Else torchrun ends rank 0 with the first rank that leaves with a status.
            here.barrier()
    except WorkloadError as error:
        print(f"{error.exit_code.name}: {reason_of(error)}", file=sys.stderr)
        return error.exit_code
    outcomes = {line.outcome for line in lines}
    if "FAIL" in outcomes:
        return ExitCode.FAILED
    return ExitCode.NOT_RUN if "NOT RUN" in outcomes else ExitCode.OK


def _proof_folder(given: Path | None) -> Path:
    place = given or Path(os.environ.get("SOPERATOR_PLACE_CHKPT", tempfile.gettempdir()))
    try:
        place.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="proof-", dir=place))
    except OSError as error:
        raise ConfigError(
            f"--folder {place}: {error.strerror}; name a folder that all nodes share and you may "
            "write to"
        ) from error


def _print(lines: Sequence[Line], here: World) -> None:
    width = max(len(line.what) for line in lines)
    for line in lines:
        print(f"{line.outcome:8}{line.what:{width}}  {line.detail}")
    counts = {name: sum(line.outcome == name for line in lines) for name in get_args(Outcome)}
    told = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(f"{told}; {here.world_size} ranks on {here.device.type}", flush=True)


if __name__ == "__main__":
    end(main())
