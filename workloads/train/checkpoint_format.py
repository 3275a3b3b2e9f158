"""The folders of both kinds of checkpoint: names, marker, digests; standard library only.

Owns what makes a folder a good checkpoint: its marker is there, and every file that the marker
lists has the size and the SHA-256 it had. Reads and judges; deletes only what it was told to.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from workloads.common import atomic
from workloads.common.record import utc_now

CONFIG, STATE, FULL_WEIGHTS = "config.json", "trainer_state.json", "model.safetensors"
ELASTIC_METADATA = "elastic_metadata.json"


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind of checkpoint is named."""

    prefix: str
    marker: str

    def step_of(self, name: str) -> int | None:
        """Return N of `<prefix>-N`; None for another name."""
        number = name.removeprefix(f"{self.prefix}-")
        return int(number) if number != name and number.isdigit() else None


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

    def to_json(self) -> str:
        """Return the marker as the text of its file."""
        return json.dumps(asdict(self), indent=1)


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
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return Digest(size_bytes=file.tell(), sha256=sha256)


def candidate(path: Path) -> Candidate | None:
    """Return the folder `path` as a checkpoint by its name; None for another name."""
    for kind in KINDS:
        step = kind.step_of(path.name)
        if step is not None:
            return Candidate(path=path, kind=kind, step=step)
    return None


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


def move_aside(path: Path) -> Path:
    """Rename a folder that is in the way, as nothing here deletes a damaged one; its new path."""
    aside = path.with_name(f"damaged-{path.name}-{utc_now()}")
    path.rename(aside)
    return aside


def remove_old(
    newest: Path, kind: Kind, *, keep_last: int, keep_best: bool, damaged: Collection[Path] = ()
) -> list[Path]:
    """Remove committed checkpoints beyond the last and the best, `newest` being the last.

    Those of later steps stay: the run came back from before them, as they could not be loaded.
    Uncommitted and `damaged` ones stay too, and count for nothing.
    """
    step = kind.step_of(newest.name)
    assert step is not None, newest
    committed: list[tuple[Candidate, Marker]] = []
    for each in candidates([newest.parent]):
        if each.kind is kind and each.step <= step and each.path not in damaged:
            try:
                committed.append((each, each.read_marker()))
            except ValueError:
                continue
    losses = [marker.loss for _, marker in committed if marker.loss is not None]
    removed: list[Path] = []
    for each, marker in committed[keep_last:]:
        if keep_best and losses and marker.loss == min(losses):
            continue
        # Without its marker a folder that is half removed does not count as committed.
        (each.path / kind.marker).unlink()
        atomic.fsync_path(each.path)
        shutil.rmtree(each.path)
        removed.append(each.path)
    return removed
