"""Brings results, run record and log of one job to `<state>/runs/<stack>/<job id>/`.

Owns the archive that crosses the connection. What the files mean is in records.py and infra/report.
"""

from __future__ import annotations

import io
import shlex
import shutil
import tarfile
from pathlib import Path, PurePosixPath

from infra.jobs import history
from infra.jobs.errors import JobsError
from infra.jobs.outputs import StackOutputs
from infra.jobs.ssh import Connection

_NOTHING_EXIT = 66
_PACK = """
set --
if [ -d {results}/{id} ]; then set -- "$@" -C {results} {id}; fi
if [ -f {logs}/{log} ]; then set -- "$@" -C {logs} {log}; fi
[ $# -gt 0 ] || exit {nothing}
exec tar -cz "$@"
"""


def pull(
    connection: Connection, outputs: StackOutputs, job_name: str, job_id: str, *, state: Path
) -> Path:
    """Copies what the job left and returns the local folder; an older pull is replaced whole."""
    log = f"{job_name}_{job_id}.out"
    command = _PACK.format(
        results=shlex.quote(outputs.places["results"]),
        logs=shlex.quote(outputs.places["logs"]),
        id=job_id,
        log=shlex.quote(log),
        nothing=_NOTHING_EXIT,
    )
    result, archive = connection.run_bytes(command)
    if result.exit_code == _NOTHING_EXIT:
        raise JobsError(
            f"job {job_id}: no results and no log on the cluster yet; "
            f"wait for it with `soperator logs {job_id}`"
        )
    if not result.ok:
        raise JobsError(
            f"job {job_id}: {result.stderr.strip() or 'tar: no message'}; pull it again"
        )
    target = history.run_folder(state, outputs.stack, job_id)
    part = target.with_name(f".{job_id}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as members:
        _extract(members, part)
    new = part / job_id
    new.mkdir(exist_ok=True)
    if (part / log).exists():
        (part / log).rename(new / "job.log")
    kept = target / history.SUBMISSION
    if kept.exists():
        shutil.copy2(kept, new / history.SUBMISSION)
    shutil.rmtree(target, ignore_errors=True)
    new.replace(target)
    shutil.rmtree(part)
    return target


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Writes files and folders below `folder`; links and devices stay on the cluster.

    By hand, because extractall() has its filter since 3.11.4 only and Debian 12 ships 3.11.2.
    """
    for member in archive:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts:
            raise JobsError(f"{member.name}: the cluster sent a path outside the job's folder")
        target = folder.joinpath(*path.parts)
        if member.isdir():
            target.mkdir(parents=True, exist_ok=True)
        elif member.isfile():
            target.parent.mkdir(parents=True, exist_ok=True)
            source = archive.extractfile(member)
            assert source is not None  # a regular file has content
            with target.open("wb") as sink:
                shutil.copyfileobj(source, sink)
