"""Where a run keeps its state: `<place>/<job>/<run>/`, and the pointers to finished adapters.

Owns names: `checkpoint-N/` and `final/` below the place chkpt, `elastic-checkpoint-N/` below the
place elastic, the link `<chkpt>/<job>/final`, the pointer files `<chkpt>/latest` (what trained
last: evaluate reads it) and `<chkpt>/evaluated` (what passed its evaluation last: serve reads it),
and which checkpoints a run may start from, in which order.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from workloads.common import atomic
from workloads.common.exit_codes import ConfigError
from workloads.common.places import Places
from workloads.common.record import job_id, job_name
from workloads.train.checkpoint_format import Candidate, candidate, candidates

LATEST = "latest"
EVALUATED = "evaluated"
WAYS = ("never", "auto", "requeue")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """Folders of this run; `name` is settled once it is known what the run starts from."""

    chkpt: Path
    elastic: Path
    resume: str
    """requeue, auto, never, or the path of a checkpoint folder."""
    job: str
    own_id: str
    """Slurm's job id: it comes again with a new cluster, when the checkpoints are still there."""
    name: str

    @property
    def path(self) -> Path:
        """Folder of this run below the place chkpt."""
        return self.chkpt / self.job / self.name

    @property
    def elastic_path(self) -> Path:
        """Folder of this run's elastic checkpoints."""
        return self.elastic / self.job / self.name

    @property
    def final(self) -> Path:
        """Folder of the finished adapter or model."""
        return self.path / "final"

    @property
    def is_explicit(self) -> bool:
        """Whether the recipe names one checkpoint folder."""
        return self.resume not in WAYS

    def candidates(self, *, restarted: bool, fingerprint: str) -> list[Candidate]:
        """Return what the run may start from, the best first; good or not is not judged here.

        After a restart that is what it saved itself, whatever it started from at first.
        """
        own = self._of_run(self._last_own()) if restarted else []
        if self.is_explicit:
            named = candidate(Path(self.resume))
            if named is None:
                raise ConfigError(
                    f"train.resume: '{self.resume}' is none of {', '.join(WAYS)} and no folder "
                    "checkpoint-N or elastic-checkpoint-N; write one of these"
                )
            return [*own, named]
        if self.resume in ("never", "requeue"):
            return own
        everything = own
        for run in self._runs():
            everything = everything + [each for each in self._of_run(run) if each not in everything]
        same = [each for each in everything if _fingerprint(each) in (fingerprint, None)]
        # Where only runs with other settings are left, the refusal says so.
        chosen = same if any(_fingerprint(each) for each in same) else everything
        return sorted(chosen, key=lambda each: -each.step)

    def settled(self, start: Path | None, *, restarted: bool) -> RunFolder:
        """Return the folder to write to: its own again after a restart, else an unused one."""
        last = self._last_own()
        if restarted and (start is None or start.parent.name == last):
            return replace(self, name=last)
        return replace(self, name=self._unused())

    def folders_of_elastic(self, found: Path) -> list[Path]:
        """Return where elastic checkpoints of the run of `found` can lie."""
        run = found.parent
        return [run, self.elastic / run.parent.name / run.name]

    def _of_run(self, name: str) -> list[Candidate]:
        return candidates([self.chkpt / self.job / name, self.elastic / self.job / name])

    def _runs(self) -> list[str]:
        places = {self.chkpt / self.job, self.elastic / self.job}
        return sorted(
            {
                path.name
                for place in places
                if place.is_dir()
                for path in place.iterdir()
                if path.is_dir() and not path.is_symlink()
            }
        )

    def _last_own(self) -> str:
        """The folder of this job id with the highest number: `12`, then `12-2`, `12-3`."""
        last, number = self.own_id, 2
        while self._is_used(f"{self.own_id}-{number}"):
            last = f"{self.own_id}-{number}"
            number += 1
        return last

    def _unused(self) -> str:
        last = self._last_own()
        if not self._is_used(last):
            return last
        number = last.removeprefix(self.own_id).removeprefix("-")
        return f"{self.own_id}-{int(number or 1) + 1}"

    def _is_used(self, name: str) -> bool:
        folders = (self.chkpt / self.job / name, self.elastic / self.job / name)
        return any(folder.is_dir() and any(folder.iterdir()) for folder in folders)


def run_folder(places: Places, *, resume: str) -> RunFolder:
    """Return this run's folders, not yet settled; without a place elastic both kinds share one."""
    chkpt = places.path("chkpt")
    return RunFolder(
        chkpt=chkpt,
        elastic=places.path("elastic") if places.has("elastic") else chkpt,
        resume=resume,
        job=job_name("train"),
        own_id=job_id(),
        name=job_id(),
    )


def was_restarted() -> bool:
    """True when Slurm requeued this job or its launcher started these ranks again."""
    if int(os.environ.get("SOPERATOR_STARTS") or 1) > 1:
        return True
    # torchrun does not count a restart for nodes that came or went; SOPERATOR_STARTS does.
    counts = ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")
    return any(int(os.environ.get(name) or 0) > 0 for name in counts)


def publish(folder: RunFolder) -> None:
    """Point `<chkpt>/<job>/final` and `<chkpt>/latest` at the finished adapter of this run."""
    link = folder.path.parent / "final"
    partial = link.with_name(f".final.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    partial.symlink_to(Path(folder.path.name) / "final")
    partial.replace(link)
    atomic.write_text(folder.chkpt / LATEST, f"{folder.final.relative_to(folder.chkpt)}\n")


def publish_evaluated(chkpt: Path, tuned_dir: Path) -> None:
    """Point `<chkpt>/evaluated` at what passed its evaluation: servers take it from there."""
    inside = tuned_dir.is_relative_to(chkpt)
    text = tuned_dir.relative_to(chkpt) if inside else tuned_dir
    atomic.write_text(chkpt / EVALUATED, f"{text}\n")


def resolve_adapter(path: Path) -> Path:
    """Return the adapter folder that `path` is, or that the pointer file or link `path` names."""
    if path.is_file():
        return path.parent / path.read_text(encoding="utf-8").strip()
    if path.is_symlink():
        return path.parent / path.readlink()
    return path


def _fingerprint(found: Candidate) -> str | None:
    try:
        return found.read_marker().fingerprint
    except ValueError:
        return None
