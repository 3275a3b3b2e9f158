"""Measures what a checkpoint costs training: `make bench-checkpoint`.

The same state is saved in turn with and without the background, on one rank, into one folder; the
stall is the time until training may go on. Prints both and writes tests/bench/checkpoint.json; ends
with 1 when the stall is over its share of the synchronous save.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from tests.bench.machine import describe
from workloads.common.dist import World
from workloads.recipes.train import CheckpointConfig
from workloads.train.checkpoint import FolderCheckpoints, capture, num_local_bytes
from workloads.train.inputs import StopRequest
from workloads.train.loop import Progress, TrainState
from workloads.train.run_folder import RunFolder
from workloads.train.strategy import build_optimizer

RESULT = Path(__file__).with_name("checkpoint.json")
MAX_SHARE = 0.10
"""Longest stall of a background save, as a share of the synchronous one (docs/performance.md)."""
_NUM_LAYERS, _WIDTH = 8, 1600


def main() -> int:
    """Measures, prints, writes; 0 when the median stall keeps its share."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.checkpoint")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to save; default: the temporary folder")
    parser.add_argument("--no-write", action="store_false", dest="write")
    options = parser.parse_args()
    # As a rank that shares its machine; a copy by more threads waits for the slowest of them.
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    state = _state(device)
    folder = Path(tempfile.mkdtemp(prefix="bench-checkpoint-", dir=options.folder))
    try:
        samples = _measure(state, folder, options.runs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    share = medians["background_stall_s"] / medians["synchronous_save_s"]
    result: dict[str, Any] = {
        "measured_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": "python -m tests.bench.checkpoint",
        "machine": describe(),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "state_mib": num_local_bytes(capture(state)) // 2**20,
        "samples": samples,
        "medians": medians,
        "stall_share": share,
        "max_stall_share": MAX_SHARE,
    }
    for name, value in medians.items():
        print(f"{name:24}{value:8.3f}")
    print(f"{'stall_share':24}{share:8.3f}  at most {MAX_SHARE:.2f}")
    if options.write:
        RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return int(share > MAX_SHARE)


def _state(device: torch.device) -> TrainState:
    """A model after one step of AdamW: weights and two moments of each."""
    layers = [torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(_NUM_LAYERS)]
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = build_optimizer([*model.parameters()], lr=1e-3, weight_decay=0.0)
    model(torch.ones(1, _WIDTH, device=device)).sum().backward()
    optimizer.step()
    return TrainState(
        model=model,
        optimizer=optimizer,
        scaler=torch.amp.GradScaler(enabled=False),
        strategy="ddp",
        world=World(rank=0, local_rank=0, world_size=1, device=device),
        progress=Progress(step=0, position=0, rows_per_step=1, world_size=1, fingerprint="bench"),
    )


def _measure(state: TrainState, folder: Path, runs: int) -> dict[str, list[float]]:
    ways = {
        "synchronous_save_s": _checkpoints(state, folder, background=False),
        "background_stall_s": _checkpoints(state, folder, background=True),
    }
    samples: dict[str, list[float]] = {name: [] for name in ways}
    step = 0
    # The first of each allocates the copy and makes the plan; both stay for the whole run.
    for number in range(runs + 1):
        for name, checkpoints in ways.items():
            step += 1
            before_s = time.perf_counter()
            checkpoints.save(state, step)
            elapsed_s = time.perf_counter() - before_s
            checkpoints.wait()
            if number:
                samples[name].append(elapsed_s)
    return samples


def _checkpoints(state: TrainState, folder: Path, *, background: bool) -> FolderCheckpoints:
    runs = RunFolder(
        chkpt=folder, elastic=folder, resume="never", job="bench", own_id="run", name="run"
    )
    return FolderCheckpoints(
        folder=runs,
        world=state.world,
        config=CheckpointConfig(background=background),
        keep_last=1,
        stop=StopRequest(),
    )


if __name__ == "__main__":
    sys.exit(main())
