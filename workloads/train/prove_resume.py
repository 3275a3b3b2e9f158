"""The proof, on this cluster, that runs resume: saves and loads at every world size, and damage.

Usage: torchrun --nproc-per-node=4 -m workloads.train.prove_resume [--folder PATH]
Trains a tiny model with the real order of rows, checkpoints and optimizer. Every size from one rank
to all of them saves, every size loads, under DDP and FSDP2; the losses after a resume must be those
of the run that was not interrupted, and every row must be seen once an epoch. Exits with 0 when
every line says PASS, with 69 when one was not run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from workloads.common.dist import World, world
from workloads.common.exit_codes import ConfigError, ExitCode, WorkloadError, reason_of
from workloads.common.log import log
from workloads.job import end
from workloads.recipes.train import CheckpointConfig
from workloads.train.checkpoint import FolderCheckpoints
from workloads.train.checkpoint_state import Ranks
from workloads.train.loop import Progress, Stream, TrainState
from workloads.train.run import StopRequest
from workloads.train.run_folder import RunFolder, candidates
from workloads.train.strategy import AdamW, settle

Spread = Literal["ddp", "fsdp"]
Outcome = Literal["PASS", "FAIL", "NOT RUN"]
NUM_ROWS, ROWS_PER_STEP, NUM_STEPS, SAVED_STEP = 16, 4, 8, 3
_VOCABULARY, _WIDTH, _LENGTH = 37, 24, 12
FINGERPRINT = "proof"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the proof."""

    what: str
    outcome: Outcome
    detail: str


@dataclass(slots=True, kw_only=True)
class Run:
    """A tiny run at one world size."""

    state: TrainState
    module: Any
    checkpoints: FolderCheckpoints

    def train(self, last_step: int, *, save_at: int | None = None) -> dict[int, float]:
        """Train up to `last_step`; return the loss of each step, counted from 1."""
        losses: dict[int, float] = {}
        while self.state.progress.step < last_step:
            loss = self._step()
            step = self.state.progress.step
            losses[step] = loss
            if step == save_at:
                self.checkpoints.save(self.state, step, loss=loss)
        self.checkpoints.wait()
        return losses

    def _step(self) -> float:
        progress, here = self.state.progress, self.state.world
        micro_batches = stream().micro_batches(
            progress.position,
            rank=here.rank,
            world_size=here.world_size,
            micro_batch_size=1,
            num_rows=progress.rows_per_step,
        )
        total = 0.0
        for rows in micro_batches:
            tokens, weight = _batch(rows, here.device)
            loss = self.module(tokens) * weight
            # The wrappers average over ranks; the sum over ranks is wanted.
            (loss * here.world_size / progress.rows_per_step).backward()
            total += float(loss.detach())
        (loss_sum,) = here.sum([total])
        self.state.optimizer.step()
        self.state.optimizer.zero_grad(set_to_none=True)
        self.state.progress = replace(
            progress, step=progress.step + 1, position=progress.position + progress.rows_per_step
        )
        return loss_sum / progress.rows_per_step


class _TinyModel(nn.Module):
    """Predicts the next token from the one before; the loss is summed over a row."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_VOCABULARY, _WIDTH)
        self.layers = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(2))
        self.head = nn.Linear(_WIDTH, _VOCABULARY)

    def forward(self, tokens_T: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of one row."""
        hidden_TD = self.embed(tokens_T[:-1])
        for layer in self.layers:
            hidden_TD = hidden_TD + torch.tanh(layer(hidden_TD))
        return cross_entropy(self.head(hidden_TD), tokens_T[1:])


def stream() -> Stream:
    """Return the rows of the proof: numbers that stand for token sequences."""
    return Stream(packs=range(NUM_ROWS), seed=5, length=lambda row: 0)


def _batch(rows: Sequence[int], device: torch.device) -> tuple[torch.Tensor, float]:
    """Tokens of a micro batch of one row; a rank that came out short weighs it with 0."""
    numbers = random.Random(rows[0] if rows else 0)
    tokens = [numbers.randrange(_VOCABULARY) for _ in range(_LENGTH)]
    return torch.tensor(tokens, device=device), 1.0 if rows else 0.0


def make_run(
    part: Part,
    spread: Spread,
    folder: Path,
    *,
    resume: str,
    config: CheckpointConfig,
    keep: int,
    stop: StopRequest | None = None,
) -> Run:
    """Return a run before its first step."""
    here = part.world
    torch.manual_seed(3)
    model = _TinyModel().to(here.device)
    module: Any = model
    if spread == "fsdp":
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        assert here.group is not None
        mesh = DeviceMesh.from_group(here.group, here.device.type)
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif here.is_distributed:
        module = nn.parallel.DistributedDataParallel(
            model,
            device_ids=[here.local_rank] if here.device.type == "cuda" else None,
            process_group=here.group,
        )

        def blank_loss() -> torch.Tensor:
            tokens, weight = _batch([], here.device)
            return module(tokens) * weight

        settle(module, blank_loss)
    state = TrainState(
        model=model,
        optimizer=AdamW(model.parameters(), lr=0.01, weight_decay=0.1),
        scaler=None,
        strategy=spread,
        world=here,
        progress=Progress(
            step=0,
            position=0,
            rows_per_step=ROWS_PER_STEP,
            world_size=here.world_size,
            fingerprint=FINGERPRINT,
        ),
    )
    runs = RunFolder(
        chkpt=folder, elastic=folder, resume=resume, job="proof", own_id="run", name="run"
    )
    checkpoints = FolderCheckpoints(
        folder=runs,
        world=here,
        config=config,
        keep_last=keep,
        stop=StopRequest() if stop is None else stop,
        group=part.files,
    )
    return Run(state=state, module=module, checkpoints=checkpoints)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some of the ranks, as a run sees them."""

    world: World
    files: Any
    """Their gloo group for checkpoints."""


def part_of(here: World, size: int) -> Part | None:
    """Return the first `size` ranks; None on the others. Every rank calls it."""
    if not here.is_distributed:
        return Part(world=here, files=None)
    ranks = list(range(size))
    group, files = dist.new_group(ranks), dist.new_group(ranks, backend="gloo")
    if here.rank >= size:
        return None
    return Part(world=replace(here, world_size=size, group=group), files=files)


_NUM_KILLS = 4
_FULL_BYTES = 4096
"""Bytes that a file has at most on the disk that is full."""


def prove_damage(folder: Path) -> list[Line]:
    """Break the newest checkpoint in every way; the one before it must be taken, and told."""

    def truncate(path: Path) -> None:
        shard = next(path.glob("*.distcp"))
        os.truncate(shard, shard.stat().st_size // 2)

    def flip(path: Path) -> None:
        shard = next(path.glob("*.distcp"))
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 1
        shard.write_bytes(data)

    damages: dict[str, Callable[[Path], None]] = {
        "truncated shard": truncate,
        "flipped bit": flip,
        "missing marker": lambda path: (path / "_SUCCESS").unlink(),
        "missing metadata": lambda path: (path / ".metadata").unlink(),
    }
    return [
        _after_damage(folder / name.replace(" ", "-"), name, damage)
        for name, damage in damages.items()
    ]


def _after_damage(folder: Path, name: str, damage: Callable[[Path], None]) -> Line:
    _Victim(folder, steps=3).end()
    newest = folder / "proof" / "run" / "checkpoint-3"
    damage(newest)
    code, told = _Victim(folder, steps=3, resume=1).end()
    skipped = f"skipped {newest}" in told
    resumed = "checkpoint-2 at step 2" in told
    kept = any(newest.parent.glob("damaged-checkpoint-3-*")) or newest.is_dir()
    passed = code == 0 and skipped and resumed and kept
    detail = "the one before it was taken, and told" if passed else told[-300:]
    return Line(what=name, outcome="PASS" if passed else "FAIL", detail=detail)


def prove_kills(folder: Path) -> Line:
    """Kill a process that saves all the time, at random moments; it must always go on."""
    what = f"kill -9 at {_NUM_KILLS} random moments of saves"
    moments = random.Random(11)
    last = -1
    for _ in range(_NUM_KILLS):
        killed = _Victim(folder, steps=100_000, resume=1)
        killed.saved.acquire()
        time.sleep(moments.uniform(0, 0.05))
        killed.process.kill()
        killed.end()
        good = [each for each in candidates([folder / "proof" / "run"]) if each.problem() is None]
        if not good or good[0].step <= last:
            return Line(what=what, outcome="FAIL", detail=f"newest good after {last}: {good[:1]}")
        last = good[0].step
    code, told = _Victim(folder, steps=1, resume=1).end()
    passed = code == 0 and f"at step {last}" in told
    detail = f"continued at step {last}" if passed else told[-300:]
    return Line(what=what, outcome="PASS" if passed else "FAIL", detail=detail)


def prove_full_disk(folder: Path) -> Line:
    """Let no file grow beyond 4 KB after the second save, as on a full disk."""
    what = "full disk"
    code, told = _Victim(folder, steps=5, full_after=2).end()
    good = [each for each in candidates([folder / "proof" / "run"]) if each.problem() is None]
    passed = (
        code == int(ExitCode.NOT_SAVED)
        and [each.step for each in good] == [2, 1]
        and "checkpoint-3 was not saved" in told
    )
    detail = f"exit {code}, good: {[each.path.name for each in good]}"
    return Line(what=what, outcome="PASS" if passed else "FAIL", detail=detail)


class _Victim:
    """A process of one rank that saves after every step."""

    def __init__(self, folder: Path, **options: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / f"{uuid.uuid4().hex}.log"
        # A server that has torch already starts them: it is in no process group of ours.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["workloads.train.checkpoint", "workloads.train.strategy"])
        self.saved = context.Semaphore(0)
        self.process = context.Process(
            target=victim, args=(folder, self._log, self.saved), kwargs=options
        )
        self.process.start()

    def end(self) -> tuple[int, str]:
        """Wait; return its exit code and what it told."""
        self.process.join()
        return self.process.exitcode or 0, self._log.read_text(encoding="utf-8")


def victim(
    folder: Path,
    log_file: Path,
    saved: Any,
    *,
    steps: int,
    resume: int = 0,
    full_after: int | None = None,
) -> None:
    """Train on one rank and save after every step; with `full_after` no file grows after it."""
    with log_file.open("w", encoding="utf-8") as told:
        os.dup2(told.fileno(), sys.stderr.fileno())
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_RESTART_COUNT"):
        os.environ.pop(name, None)
    if resume:
        os.environ["SLURM_RESTART_COUNT"] = "1"
    torch.set_num_threads(1)
    here = World(rank=0, local_rank=0, world_size=1, device=torch.device("cpu"))
    part = Part(world=here, files=None)
    run = make_run(part, "ddp", folder, resume="requeue", config=CheckpointConfig(), keep=3)
    try:
        run.checkpoints.load(run.state)
        for number in range(1, steps + 1):
            if full_after is not None and number > full_after:
                run.checkpoints.wait()
                resource.setrlimit(resource.RLIMIT_FSIZE, (_FULL_BYTES, resource.RLIM_INFINITY))
            step = run.state.progress.step + 1
            run.train(step)
            run.checkpoints.save(run.state, step, loss=1.0)
            if number > 1:
                saved.release()
        run.checkpoints.wait()
    except WorkloadError as error:
        log(reason_of(error))
        end(error.exit_code)


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
        for (from_size, name), expected in here.broadcast(saved).items():
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
