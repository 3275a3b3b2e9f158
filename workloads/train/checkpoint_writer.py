"""One save: a torch DCP writer whose last act is to commit the folder.

Owns the order of a commit: every rank's file is written, flushed and hashed; then rank 0, which has
the answers of all, writes the metadata and the marker and renames the scratch folder to its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from workloads.common import atomic
from workloads.common.log import log
from workloads.train.checkpoint_format import Digest, Kind, Marker, digest, move_aside

METADATA = ".metadata"


class Answer(list[WriteResult]):
    """What one rank wrote, with the digests of its files; DCP carries it to rank 0."""

    digests: Mapping[str, Digest]


class CommittingWriter(FileSystemWriter):
    """Writes into `scratch`; `finish`, on rank 0, makes it `target`."""

    def __init__(
        self,
        scratch: Path,
        target: Path,
        *,
        kind: Kind,
        marker: Marker,
        own_files: Mapping[str, Callable[[Path], None]],
        after_commit: Callable[[], None],
    ) -> None:
        """`own_files`: what rank 0 writes beside the slices, by name; empty on other ranks."""
        super().__init__(scratch, sync_files=True, overwrite=False)
        self._scratch, self._target = scratch, target
        self._kind, self._marker = kind, marker
        self._own_files = own_files
        self._after_commit = after_commit

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's files and return what they hold."""
        for name, write in self._own_files.items():
            write(self._scratch / name)
            atomic.fsync_path(self._scratch / name)
        answer = Answer(super().write_data(plan, planner).value())
        names = {result.storage_data.relative_path for result in answer} | set(self._own_files)
        answer.digests = {name: digest(self._scratch / name) for name in sorted(names)}
        future: Future[list[WriteResult]] = Future()
        future.set_result(answer)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commit; DCP calls it on rank 0 when every rank has written."""
        super().finish(metadata, results)
        files: dict[str, Digest] = {METADATA: digest(self._scratch / METADATA)}
        for answer in results:
            assert isinstance(answer, Answer)
            files |= answer.digests
        marker = replace(self._marker, files=files)
        atomic.write_text(self._scratch / self._kind.marker, marker.to_json())
        if self._target.exists():
            log(f"{self._target} is damaged; kept as {move_aside(self._target).name}")
        self._scratch.rename(self._target)
        atomic.fsync_path(self._target.parent)
        self._after_commit()


def json_writer(text: str) -> Callable[[Path], None]:
    """Return what writes `text` to a path."""

    def write(path: Path) -> None:
        path.write_text(text, encoding="utf-8")

    return write


def weights_writer(weights: dict[str, Any]) -> Callable[[Path], None]:
    """Return what writes whole weights as safetensors to a path."""

    def write(path: Path) -> None:
        from safetensors.torch import save_file

        save_file(weights, path, metadata={"format": "pt"})
        path.chmod(0o644)  # safetensors writes 0600; who evaluates may be another user

    return write
