"""Where a run keeps its state: `<chkpt>/<job>/<job id>/`, and the pointers to finished adapters.

Owns names: `checkpoint-N/` and `final/` in the run folder, the link `<chkpt>/<job>/final`, the
pointer file `<chkpt>/latest` that evaluate reads, and which checkpoint a run starts from.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from workloads.common import atomic
from workloads.common.exit_codes import ConfigError
from workloads.common.log import log
from workloads.common.record import job_id, job_name
from workloads.train import checkpoint

LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """Folder of this run and the checkpoint it starts from."""

    chkpt: Path
    path: Path
    resume_from: Path | None

    @property
    def final(self) -> Path:
        """Folder of the finished adapter or model."""
        return self.path / "final"


def was_restarted() -> bool:
    """True when Slurm requeued this job or torchrun restarted its processes."""
    counts = ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")
    return any(int(os.environ.get(name) or 0) > 0 for name in counts)


def choose(chkpt: Path, *, resume: str) -> RunFolder:
    """Return this run's folder and start; only rank 0 may call it."""
    job = chkpt / job_name("train")
    own = job / job_id()
    if resume not in ("never", "auto", "requeue"):
        path = Path(resume)
        reason = checkpoint.problem(path)
        if reason is not None:
            raise ConfigError(f"train.resume {path}: {reason}; name a committed checkpoint folder")
        return RunFolder(chkpt=chkpt, path=_unused(own), resume_from=path)
    if resume == "never" or (resume == "requeue" and not was_restarted()):
        return RunFolder(chkpt=chkpt, path=_unused(own), resume_from=None)
    start = checkpoint.newest_good(own)
    if start is not None:
        return RunFolder(chkpt=chkpt, path=own, resume_from=start)
    if resume == "auto":
        start = _newest_of_earlier_runs(job)
    if start is None:
        log("no committed checkpoint to resume from; starting at step 0")
    return RunFolder(chkpt=chkpt, path=_unused(own), resume_from=start)


def _unused(own: Path) -> Path:
    """Return `own`, or the next free name: job ids start again at 1 with a new cluster."""
    path, number = own, 2
    while path.exists() and any(path.iterdir()):
        path = own.with_name(f"{own.name}-{number}")
        number += 1
    return path


def _newest_of_earlier_runs(job: Path) -> Path | None:
    if not job.is_dir():
        return None
    runs = [path for path in job.iterdir() if path.is_dir() and not path.is_symlink()]
    found = [start for run in runs if (start := checkpoint.newest_good(run)) is not None]
    return max(found, key=_committed_at, default=None)


def _committed_at(path: Path) -> tuple[str, int]:
    marker = json.loads((path / checkpoint.SUCCESS).read_text(encoding="utf-8"))
    return marker["committed_at"], marker["step"]


def publish(folder: RunFolder) -> None:
    """Point `<chkpt>/<job>/final` and `<chkpt>/latest` at the finished adapter of this run."""
    link = folder.path.parent / "final"
    partial = link.with_name(f".final.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    partial.symlink_to(Path(folder.path.name) / "final")
    partial.replace(link)
    atomic.write_text(folder.chkpt / LATEST, f"{folder.final.relative_to(folder.chkpt)}\n")


def resolve_adapter(path: Path) -> Path:
    """Return the adapter folder that `path` is, or that the pointer file `path` names."""
    if path.is_file():
        return path.parent / path.read_text(encoding="utf-8").strip()
    return path
