"""Brings results, run record and log of one job to `<state>/runs/<stack>/<job id>/`.

Owns what crosses the connection: the bytes that are not here yet, so that a pull goes on where it
was cut, and their SHA-256. What the files mean is in records.py and infra/report.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from infra.jobs import history
from infra.jobs.errors import JobsError, NothingThereError
from infra.jobs.outputs import StackOutputs
from infra.jobs.reconnect import PATIENCE_S, reopen
from infra.jobs.ssh import Connection, ConnectionLostError

LOG_NAME: Final = "job.log"
_POLL_S: Final = 1.0
# Only the bytes that a file has now are hashed and read: a running job goes on writing its log.
_LIST: Final = r"""
find {folder} {log} -type f -printf '%s %p\0' 2>/dev/null | while IFS= read -r -d '' file; do
  hash=$(head -c "${{file%% *}}" -- "${{file#* }}" | sha256sum | cut -c -64)
  printf '%s %s\0' "$hash" "$file"
done
"""
_SEND: Final = "tail -c +{first} -- {path} | head -c {count}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """One file of the job as the cluster has it."""

    remote: str
    local: PurePosixPath
    """Below the job's folder here."""
    size_bytes: int
    sha256: str


def pull(
    connection: Connection,
    outputs: StackOutputs,
    job_name: str,
    job_id: str,
    *,
    state: Path,
    patience_s: float = PATIENCE_S,
) -> Path:
    """Copies what the job left and returns the local folder; an older pull is replaced whole.

    What an interrupted pull brought counts; a lost connection is opened again for `patience_s`.
    """
    files = _list(connection, outputs, job_name, job_id)
    target = history.run_folder(state, outputs.stack, job_id)
    part = target.with_name(f".{job_id}.part")
    try:
        with _alone(part):
            _drop_others(part, files)
            _bring(connection, part, files, patience_s)
            kept = target / history.SUBMISSION
            if kept.exists():
                shutil.copy2(kept, part / history.SUBMISSION)
            shutil.rmtree(target, ignore_errors=True)
            part.replace(target)
    except OSError as error:
        raise JobsError(
            f"{part}: {error.strerror or error}; what came stays there: mend it and pull again"
        ) from error
    return target


@contextmanager
def _alone(part: Path) -> Generator[None]:
    """The folder for this pull; refused where another fills it, which would mix their bytes."""
    part.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(part, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise JobsError(
                f"{part}: another pull of this job is on its way here; wait for its end"
            ) from error
        yield
    finally:
        os.close(descriptor)


def _bring(connection: Connection, part: Path, files: Sequence[_File], patience_s: float) -> None:
    """Every file whole and proven, or an error that names those that are not."""
    for attempt in (1, 2):
        for each in files:
            path = part / each.local
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            if _size(part, each) > each.size_bytes:
                path.write_bytes(b"")
        while missing := [each for each in files if _size(part, each) < each.size_bytes]:
            try:
                _receive(connection, part, missing)
            except ConnectionLostError:
                reopen(connection, patience_s=patience_s)
        damaged = [each for each in files if _digest(part, each) != each.sha256]
        if not damaged:
            return
        for each in damaged:  # begun by an earlier pull, and written anew on the cluster since
            (part / each.local).unlink()
        if attempt == 2:
            names = ", ".join(str(each.local) for each in damaged[:3])
            raise JobsError(
                f"{names}: {len(damaged)} of {len(files)} files are not what the cluster listed a "
                "moment ago; their job still writes them, or a disk is damaged: pull again"
            )


def _list(
    connection: Connection, outputs: StackOutputs, job_name: str, job_id: str
) -> tuple[_File, ...]:
    """Files of the job on the cluster, with sizes and hashes; none is refused."""
    folder = f"{outputs.places['results']}/{job_id}"
    log = outputs.log_path(job_name, job_id)
    script = _LIST.format(folder=shlex.quote(folder), log=shlex.quote(log))
    result, listing = connection.run_bytes("bash -s", stdin=script.encode())
    if not result.ok:
        raise JobsError(f"job {job_id}: {result.stderr.strip() or 'no message'}; pull it again")
    entries = [each.decode(errors="surrogateescape") for each in listing.split(b"\0") if each]
    if not entries:
        raise NothingThereError(
            f"job {job_id}: no results and no log on the cluster yet; "
            f"wait for it with `soperator logs {job_id}`"
        )
    return tuple(_file(each, folder, log) for each in entries)


def _file(entry: str, folder: str, log: str) -> _File:
    """The file of `SHA256 SIZE PATH`; a path that is not below the job's folder is refused."""
    digest, size, path = entry.split(" ", 2)
    local = PurePosixPath(LOG_NAME if path == log else os.path.relpath(path, folder))
    if ".." in PurePosixPath(path).parts or ".." in local.parts:
        raise JobsError(f"{path}: the cluster sent a path outside the job's folder")
    return _File(remote=path, local=local, size_bytes=int(size), sha256=digest)


def _drop_others(part: Path, files: Sequence[_File]) -> None:
    """Removes what an interrupted pull brought and the cluster no longer has."""
    # A pull that was killed as it took the place of the older one left the submission only here.
    wanted = {part / each.local for each in files} | {part / history.SUBMISSION}
    for path in sorted(part.rglob("*"), reverse=True):
        if path.is_symlink() or (path.is_file() and path not in wanted):
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _receive(connection: Connection, part: Path, files: Sequence[_File]) -> None:
    """Appends to each file what it lacks, one after the other in one stream."""
    lacks = [each.size_bytes - _size(part, each) for each in files]
    script = "".join(
        _SEND.format(first=each.size_bytes - count + 1, path=shlex.quote(each.remote), count=count)
        for each, count in zip(files, lacks, strict=True)
    )
    stream = connection.stream("bash -s | gzip -1", poll_s=_POLL_S, stdin=script.encode())
    content = _unpacked(stream)
    held = b""
    for each, count in zip(files, lacks, strict=True):
        with (part / each.local).open("ab") as sink:
            while count > 0:
                held = held or next(content, b"")
                if not held:
                    raise JobsError(f"{each.remote}: got shorter while it was pulled: pull again")
                taken = sink.write(held[:count])
                count, held = count - taken, held[taken:]


def _unpacked(stream: Iterator[bytes]) -> Iterator[bytes]:
    """The bytes that `gzip` packed, as they come; never an empty piece."""
    inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    for chunk in stream:
        if plain := inflate.decompress(chunk):
            yield plain


def _size(part: Path, file: _File) -> int:
    """Bytes of the file that are here."""
    path = part / file.local
    return path.stat().st_size if path.exists() else 0


def _digest(part: Path, file: _File) -> str:
    with (part / file.local).open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
