"""Checkpoints `checkpoint-N/`: committed whole or not at all, never deleted when damaged.

Owns the folder format: trained weights as safetensors, trainer.pt (optimizer, RNG of every rank),
trainer_state.json (step, data position), and `_SUCCESS` with the SHA-256 of every file, which is
written last, before the folder gets its name.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from workloads.common import atomic
from workloads.common.dist import World
from workloads.common.exit_codes import ConfigError, DataError
from workloads.common.log import log
from workloads.common.record import utc_now

SUCCESS = "_SUCCESS"
WEIGHTS, TRAINER, STATE = "trained.safetensors", "trainer.pt", "trainer_state.json"
_NAME = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands between two train steps."""

    step: int
    """Train steps done."""
    position: int
    """Packed rows that all ranks together have consumed."""
    world_size: int
    fingerprint: str
    """Hash of what must not change across a resume: data, model and the settings of training."""


def trained_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights that training changes, by name."""
    return {
        name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad
    }


def rng_state(device: torch.device) -> dict[str, Any]:
    """Return the random state of this rank."""
    return {
        "python": random.getstate(),
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device).cpu() if device.type == "cuda" else None,
    }


def save(
    folder: Path,
    *,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    world: World,
    keep_last: int,
) -> None:
    """Commit `folder/checkpoint-<step>`; every rank calls it. Older committed ones are removed."""
    rng_states = world.gather(rng_state(world.device))
    if world.is_main:
        target = folder / f"checkpoint-{progress.step}"
        if target.exists() and problem(target) is None:
            log(f"{target} is already committed")
        else:
            if target.exists():
                aside = target.with_name(f"damaged-{target.name}-{utc_now()}")
                log(f"{target} is damaged; kept as {aside.name}")
                target.rename(aside)
            with atomic.new_directory(target) as partial:
                _write(partial, model, optimizer, progress, rng_states)
            log(f"saved {target}")
        _remove_old(folder, keep_last=keep_last, newest=progress.step)
    world.barrier()


def _write(
    partial: Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    rng_states: list[dict[str, Any]],
) -> None:
    weights = {name: w.contiguous().cpu() for name, w in trained_weights(model).items()}
    save_file(weights, partial / WEIGHTS)
    torch.save({"optimizer": optimizer.state_dict(), "rng": rng_states}, partial / TRAINER)
    (partial / STATE).write_text(json.dumps(asdict(progress)), encoding="utf-8")
    digests = {path.name: _sha256(path) for path in sorted(partial.iterdir())}
    marker = {"step": progress.step, "committed_at": utc_now(), "sha256": digests}
    (partial / SUCCESS).write_text(json.dumps(marker), encoding="utf-8")


def _remove_old(folder: Path, *, keep_last: int, newest: int) -> None:
    """Remove committed checkpoints beyond `keep_last`; uncommitted or damaged ones stay."""
    committed = [path for path in checkpoints(folder) if (path / SUCCESS).is_file()]
    older = [path for path in committed if _step(path) <= newest]
    for path in older[:-keep_last]:
        # Without its marker a folder that is half removed does not count as committed.
        (path / SUCCESS).unlink()
        shutil.rmtree(path)


def _step(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return int(match.group(1)) if match else -1


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoint folders in `folder`, lowest step first, good or not."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if _step(path) >= 0), key=_step)


def problem(path: Path) -> str | None:
    """Return why `path` cannot be loaded; None when it is committed and whole."""
    try:
        marker = json.loads((path / SUCCESS).read_text(encoding="utf-8"))
        for name, digest in marker["sha256"].items():
            if _sha256(path / name) != digest:
                return f"{name} is damaged"
    except FileNotFoundError as error:
        name = Path(error.filename).name
        return "not committed" if name == SUCCESS else f"{name} is missing"
    except (OSError, ValueError, KeyError, AttributeError) as error:
        return f"{SUCCESS} cannot be read: {error}"
    return None


def newest_good(folder: Path) -> Path | None:
    """Return the committed, whole checkpoint of the highest step; others are named and left."""
    for path in reversed(checkpoints(folder)):
        reason = problem(path)
        if reason is None:
            return path
        log(f"skipped {path}: {reason}")
    return None


def load(
    path: Path,
    *,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    world: World,
    fingerprint: str,
) -> Progress:
    """Restore weights, optimizer, random state and position from `path`; return the position."""
    try:
        progress = Progress(**json.loads((path / STATE).read_text(encoding="utf-8")))
        weights = load_file(path / WEIGHTS)
        trainer = torch.load(path / TRAINER, map_location="cpu", weights_only=True)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path}: is not a checkpoint of this format: {error}") from error
    if progress.fingerprint != fingerprint:
        raise ConfigError(
            f"{path}: was made with another model, data set or train settings; "
            "use those again, or start anew with --resume never"
        )
    own = trained_weights(model)
    if own.keys() != weights.keys():
        raise ConfigError(f"{path}: holds other weights than this recipe trains")
    with torch.no_grad():
        for name, weight in own.items():
            weight.copy_(weights[name])
    optimizer.load_state_dict(trainer["optimizer"])
    if progress.world_size == world.world_size:
        _restore_rng(trainer["rng"][world.rank], world.device)
    else:
        log(
            f"resumed at world size {world.world_size}, saved at {progress.world_size}: "
            "random state starts from the seed, data go on where they were"
        )
    return progress


def _restore_rng(state: dict[str, Any], device: torch.device) -> None:
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
