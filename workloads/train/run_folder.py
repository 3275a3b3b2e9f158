"""The folders of a run: `<place>/<job>/<run>/`, its checkpoints, and pointers to finished weights.

`checkpoint-N/` and `final/` lie below the place chkpt, `elastic-checkpoint-N/` below the place
elastic, unless train.keep_in names another for both. A checkpoint is good when its marker is there
and every file that the marker lists has the size and the SHA-256 it had. `<place>/<job>/final` is a
link; `<chkpt>/latest` names what trained last (evaluate reads it), wherever it lies, and
`<chkpt>/evaluated` what passed its evaluation last (serve reads it).
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from workloads.common import atomic
from workloads.common.exit_codes import ConfigError
from workloads.common.places import Places
from workloads.common.record import job_id, job_name, utc_now
from workloads.data.manifest import sha256

CONFIG, STATE, FULL_WEIGHTS = "config.json", "trainer_state.json", "model.safetensors"
ELASTIC_METADATA = "elastic_metadata.json"


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind of checkpoint is named."""

    prefix: str
    marker: str


SHARDED = Kind("checkpoint", "_SUCCESS")
ELASTIC = Kind("elastic-checkpoint", "_ELASTIC_SUCCESS")
KINDS = (SHARDED, ELASTIC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """Size and SHA-256 of one file."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """Content of `_SUCCESS`: what was saved, and every other file of the folder."""

    step: int
    world_size: int
    fingerprint: str
    loss: float | None
    files: dict[str, Digest]
    committed_at: str = field(default_factory=utc_now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A folder with the name of a checkpoint, good or not."""

    path: Path
    kind: Kind
    step: int

    def read_marker(self) -> Marker:
        """Return the marker; ValueError says why it cannot be read or is not there."""
        try:
            values = json.loads((self.path / self.kind.marker).read_text(encoding="utf-8"))
            files = {name: Digest(**digest) for name, digest in values.pop("files").items()}
            return Marker(**values, files=files)
        except FileNotFoundError:
            raise ValueError("not committed") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{self.kind.marker} cannot be read: {error}") from None

    def problem(self, *, share: int = 0, of: int = 1) -> str | None:
        """Return why it cannot be loaded, None when it is whole; digests of every `of`-th file."""
        if whose := atomic.foreign(self.path):
            return whose
        try:
            marker = self.read_marker()
        except ValueError as error:
            return str(error)
        for index, (name, expected) in enumerate(sorted(marker.files.items())):
            path = self.path / name
            try:
                size = path.stat().st_size
                if size != expected.size_bytes:
                    return f"{name} has {size} bytes instead of {expected.size_bytes}"
                if index % of == share and digest(path).sha256 != expected.sha256:
                    return f"{name} is damaged"
            except FileNotFoundError:
                return f"{name} is missing"
            except OSError as error:
                return f"{name} cannot be read: {error.strerror}"
        return None


def digest(path: Path) -> Digest:
    """Return size and SHA-256 of a file."""
    return Digest(size_bytes=path.stat().st_size, sha256=sha256(path))


def candidate(path: Path) -> Candidate | None:
    """Return the folder `path` as a checkpoint by its name; None for another name."""
    prefix, _, step = path.name.rpartition("-")
    kind = next((each for each in KINDS if each.prefix == prefix), None)
    return Candidate(path=path, kind=kind, step=int(step)) if kind and step.isdigit() else None


def candidates(folders: Iterable[Path]) -> list[Candidate]:
    """Return the checkpoints in `folders`, highest step first, the sharded one of a step first."""
    found = [
        each
        for folder in dict.fromkeys(folders)
        if folder.is_dir()
        for path in folder.iterdir()
        if (each := candidate(path)) is not None
    ]
    return sorted(found, key=lambda each: (-each.step, KINDS.index(each.kind), str(each.path)))


def scratch_path(target: Path) -> Path:
    """A new hidden path beside `target`; a start and a save remove what lies at such paths."""
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")


def remove_old(
    newest: Candidate, *, keep_last: int, best_step: int | None, damaged: Collection[Path]
) -> list[Path]:
    """Remove committed checkpoints beyond the last and the best one, `newest` being the last.

    Those of later steps stay: the run came back from before them, as they could not be loaded.
    Uncommitted and `damaged` ones stay too, and count for nothing.
    """
    of_kind = (each for each in candidates([newest.path.parent]) if each.kind is newest.kind)
    counted = (each for each in of_kind if each.step <= newest.step and each.path not in damaged)
    committed = [each for each in counted if _fingerprint(each) is not None]
    removed = [each for each in committed[keep_last:] if each.step != best_step]
    for each in removed:
        # By one step it counts no more, and what is left of it then goes with the next save.
        hidden = each.path.rename(scratch_path(each.path))
        atomic.fsync_path(hidden.parent)
        shutil.rmtree(hidden, ignore_errors=True)
    return [each.path for each in removed]


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed save, removal or export left in the folder of a run."""
    for left in folder.glob(".*"):
        if left.suffix in (".partial", ".old"):
            shutil.rmtree(left, ignore_errors=True)


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

    def folders(self, run: str = "") -> tuple[Path, Path]:
        """Return the folders of a run and of its elastic checkpoints; of all runs without one."""
        return self.chkpt / self.job / run, self.elastic / self.job / run

    @property
    def path(self) -> Path:
        """Folder of this run below the place chkpt."""
        return self.folders(self.name)[0]

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
        own = candidates(self.folders(self._last_and_next()[0])) if restarted else []
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
        # Not glob, for which a folder that cannot be listed is empty: all would be trained anew.
        there = [path for job in {*self.folders()} if job.is_dir() for path in job.iterdir()]
        runs = {path.name for path in there if path.is_dir() and not path.is_symlink()}
        earlier = [each for run in sorted(runs) for each in candidates(self.folders(run))]
        everything = [*dict.fromkeys([*own, *earlier])]
        same = [each for each in everything if _fingerprint(each) in (fingerprint, None)]
        # Where only runs with other settings are left, the refusal says so.
        chosen = same if any(_fingerprint(each) for each in same) else everything
        return sorted(chosen, key=lambda each: -each.step)

    def settled(self, start: Path | None, *, restarted: bool) -> RunFolder:
        """Return the folder to write to: its own again after a restart, else an unused one."""
        name, unused = self._last_and_next()
        if self._is_used(name) and not (restarted and (start is None or start.parent.name == name)):
            name = unused
        for run in self.folders(name):
            atomic.refuse_foreign(run.parent)
            atomic.refuse_foreign(run)
            remove_leftovers(run)  # a run that has made its last save makes no other
        return replace(self, name=name)

    def _last_and_next(self) -> tuple[str, str]:
        """The last name in use of this job id (`12`, `12-2`, `12-3`), else its first; the next."""
        names = [self.own_id, f"{self.own_id}-2"]
        while self._is_used(names[-1]):
            names.append(f"{self.own_id}-{len(names) + 1}")
        return names[-2], names[-1]

    def _is_used(self, run: str) -> bool:
        return any(each.is_dir() and any(each.iterdir()) for each in self.folders(run))


def run_folder(places: Places, *, resume: str, keep_in: str) -> RunFolder:
    """Return this run's folders in the place `keep_in`, not yet settled.

    Elastic checkpoints of the place chkpt have a place of their own where the stack names one.
    """
    chkpt = places.path(keep_in)
    is_apart = keep_in == "chkpt" and places.has("elastic")
    return RunFolder(
        chkpt=chkpt,
        elastic=places.path("elastic") if is_apart else chkpt,
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


def publish(folder: RunFolder, places: Places) -> None:
    """Point `<job>/final` beside the run and `<chkpt>/latest` at the run's finished weights."""
    link = folder.path.parent / "final"
    partial = link.with_name(f".final.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    partial.symlink_to(Path(folder.path.name) / "final")
    partial.replace(link)
    point((places.path("chkpt") if places.has("chkpt") else folder.chkpt) / LATEST, folder.final)


def point(pointer: Path, to: Path) -> None:
    """Let the file name a folder of weights; relative where both lie in one place."""
    inside = to.is_relative_to(pointer.parent)
    atomic.write_text(pointer, f"{to.relative_to(pointer.parent) if inside else to}\n")


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
