"""The proof, on this cluster, that runs resume: the job `train`, saved and loaded at every size.

Usage: torchrun --nproc-per-node=4 -m workloads.train.prove_resume [--folder PATH]
Trains a tiny vision transformer as any recipe is trained. Every size from one rank to all of them
saves, every size loads, under DDP and FSDP2, both kinds of checkpoint; the losses after a resume
must be those of the run that was not interrupted. Exits with 0 when every line says PASS, with 69
when one was not run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import torch
from torch.distributed.rendezvous import rendezvous

from workloads.common.dist import environment_rank
from workloads.common.exit_codes import ConfigError, ExitCode, WorkloadError, reason_of
from workloads.common.launch import free_port
from workloads.job import end, run_job
from workloads.train.finish import Criterion, Outcome, verdict
from workloads.train.inputs import train

NUM_STEPS = 5
SAVED = {"checkpoint": 2, "elastic-checkpoint": 3}
"""Step after which a run saves each kind."""
_SETTINGS = (
    *(f"train.max_steps={NUM_STEPS}", "train.gate=null", "train.weight_decay=0.1"),
    *("train.micro_batch_size=2", "train.gradient_accumulation=1", "train.keep_last=9"),
)
_PATIENCE = timedelta(hours=6)
"""How long a rank waits for its turn: most runs are of fewer ranks than were started."""


class Ranks:
    """The ranks that torchrun started, the first of which train together in each run."""

    def __init__(self) -> None:
        self.rank, _, self.size = environment_rank()
        self._store: Any = None
        self._num_told = 0
        if self.size > 1:
            self._store, _, _ = next(rendezvous("env://", timeout=_PATIENCE))
            # Each run meets at a port of its own instead.
            os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"

    def hear(self, value: str) -> str:
        """Return rank 0's `value` on every rank."""
        if self._store is None:
            return value
        self._num_told += 1
        key = f"prove_resume/{self._num_told}"
        if self.rank == 0:
            self._store.set(key, value)
        return self._store.get(key).decode()

    def run(self, folder: Path, name: str, size: int, *settings: str) -> dict[int, float] | str:
        """Run the job on the first `size` ranks; on rank 0 the loss by step, or why it failed."""
        port = self.hear(str(free_port()))
        if self.rank >= size:
            return {}
        os.environ |= {"WORLD_SIZE": str(size), "MASTER_PORT": port} if self.size > 1 else {}
        os.environ |= {"SLURM_JOB_ID": name, "SOPERATOR_JOB": "proof"}
        for place in ("chkpt", "results"):
            os.environ[f"SOPERATOR_PLACE_{place.upper()}"] = str(folder / place)
        arguments = ["--recipe", "vit_full_1xcpu"]
        for setting in (*_SETTINGS, *settings):
            arguments += ["--set", setting]
        with (
            (folder / f"{name}.{self.rank}.log").open("w", encoding="utf-8") as log_file,
            contextlib.redirect_stdout(log_file),
            contextlib.redirect_stderr(log_file),
        ):
            code = run_job("train", train, arguments)
        if self.rank > 0:
            return {}
        results = folder / "results" / name
        if code is not ExitCode.OK:
            return f"{code.name}: {json.loads((results / 'run_record.json').read_text())['reason']}"
        lines = (results / "loss_curve.jsonl").read_text().splitlines()
        return {line["step"]: line["loss"] for line in map(json.loads, lines)}


def prove(ranks: Ranks, folder: Path) -> Iterator[Criterion]:
    """Save at every size, load at every size; yield one line for each pair, of use on rank 0."""
    ways = [
        (size, spread)
        for size in range(1, ranks.size + 1)
        for spread in (("ddp", "fsdp") if size > 1 else ("ddp",))
    ]
    save = f"train.checkpoint_every={SAVED['checkpoint']}"
    both = f'train.checkpoint={{"elastic_every": {SAVED["elastic-checkpoint"]}}}'
    expected = {
        (size, spread): ranks.run(
            folder, f"{spread}-{size}", size, f"train.strategy={spread}", save, both
        )
        for size, spread in ways
    }
    for (from_size, saved_by), whole in expected.items():
        for kind, step in SAVED.items():
            saved = folder / "chkpt" / "proof" / f"{saved_by}-{from_size}" / f"{kind}-{step}"
            for size, spread in ways:
                losses = ranks.run(
                    *(folder, f"{saved.parent.name}-{kind}-{spread}-{size}", size),
                    *(f"train.strategy={spread}", f"train.resume={saved}"),
                    "train.checkpoint_every=0",
                )
                exact = (from_size, saved_by) == (size, spread)
                what = f"{kind} of {saved_by} at {from_size} ranks -> {spread} at {size}"
                yield _compared(what, whole, losses, step, exact=exact)


def _compared(
    what: str, whole: dict[int, float] | str, losses: dict[int, float] | str, step: int, *,
    exact: bool,
) -> Criterion:  # fmt: skip
    if isinstance(whole, str) or isinstance(losses, str):
        return Criterion(what, "FAIL", whole if isinstance(whole, str) else f"{losses}")
    wanted = {number: loss for number, loss in whole.items() if number >= step}
    if losses.keys() != wanted.keys():
        return Criterion(what, "FAIL", f"trained the steps {sorted(losses)}")
    apart = max((abs(losses[n] / wanted[n] - 1) for n in wanted), default=0.0)
    how = "bit-equal" if losses == wanted else f"losses within {apart:.1e}"
    passed = losses == wanted if exact else apart < 1e-4
    return Criterion(what, "PASS" if passed else "FAIL", how)


def main(arguments: Sequence[str] | None = None) -> ExitCode:
    """Prove, print the table, return 0 when everything passed."""
    parser = argparse.ArgumentParser(prog="python -m workloads.train.prove_resume")
    parser.add_argument("--folder", type=Path, help="shared by all nodes; default: place chkpt")
    place = parser.parse_args(arguments).folder or Path(
        os.environ.get("SOPERATOR_PLACE_CHKPT", tempfile.gettempdir())
    )
    # A job of its own, of which nothing that is declared for the job around it holds.
    for name in [name for name in os.environ if name.startswith(("SOPERATOR_", "SLURM_"))]:
        del os.environ[name]
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        ranks = Ranks()
        folder = Path(ranks.hear(str(_proof_folder(place)) if ranks.rank == 0 else ""))
    except WorkloadError as error:
        print(f"{error.exit_code.name}: {reason_of(error)}", file=sys.stderr)
        return error.exit_code
    lines = list(prove(ranks, folder))
    if ranks.size == 1:
        reason = "one rank: start this with torchrun --nproc-per-node=4"
        lines.append(Criterion("several world sizes", "NOT RUN", reason))
    outcomes = [line.outcome for line in lines]
    codes = {"PASS": ExitCode.OK, "FAIL": ExitCode.FAILED, "NOT RUN": ExitCode.NOT_RUN}
    if ranks.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
        for line in lines:
            print(f"{line.outcome:8}{line.name:{max(len(x.name) for x in lines)}}  {line.detail}")
        counts = (f"{outcomes.count(name)} {name}" for name in get_args(Outcome))
        device = "cuda" if torch.cuda.is_available() else "cpu"
        print(f"{', '.join(counts)}; {ranks.size} ranks on {device}", flush=True)
    # Rank 0's, on all of them; else torchrun ends it with the first that leaves with a status.
    return ExitCode(int(ranks.hear(str(int(codes[verdict(lines)])))))


def _proof_folder(place: Path) -> Path:
    try:
        place.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="proof-", dir=place))
        for name in ("chkpt", "results"):
            (folder / name).mkdir()
    except OSError as error:
        raise ConfigError(
            f"--folder {place}: {error.strerror}; name a folder that all nodes share and you may "
            "write to"
        ) from error
    return folder


if __name__ == "__main__":
    end(main())
