"""What goes to the cluster and back: code, data, models, Python environments, results.

Code goes the way `pulumi up` does: one release, then `current` (infra/render/delivery.py says what
it holds, infra/render/login.py how it becomes the live one).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath, PurePosixPath
from typing import Final

from infra.clients import slurm
from infra.clients.errors import EndedError, JobsError, NothingThereError, last_words
from infra.clients.pulumi import StackOutputs
from infra.clients.slurm import Carrier, Shell
from infra.clients.ssh import Connection, ConnectionLostError, reopen
from infra.files import alone
from infra.jobs import history
from infra.jobs.history import IS_OWN
from infra.render.delivery import (
    BOOTSTRAP_LOCK,
    WORKLOADS_LOCK,
    PackageSource,
    hash_files,
    pack,
    venv_script,
    version_of,
)
from infra.render.names import shell_file
from infra.render.sbatch import in_memory
from stacks.files import read_bytes
from stacks.spec import StackSpec

# Unpacked aside and renamed, so a release is always whole. A folder that was never live may be what
# a killed `pulumi up` left half copied: it is made anew. Two laptops of one user send one after the
# other: each would take away what the other unpacks.
_INSTALL = """
set -eu
mkdir -p {folder}/releases
cd {folder}
(umask 077; : >> .install.lock); chmod 600 .install.lock; exec 9>> .install.lock
flock 9
if [ ! -e releases/{hash}.whole ]; then
  rm -rf releases/{hash}.part releases/{hash}
  mkdir releases/{hash}.part
  tar -xzm --no-same-owner -C releases/{hash}.part || {{ rm -rf releases/{hash}.part; exit 1; }}
  mv -T releases/{hash}.part releases/{hash}
  touch releases/{hash}.whole
fi
"""


# Of an attached cluster nobody else makes folders, or a release the one that sessions enter.
# Whoever can exchange a folder on the way to them chooses what the next job runs.
_OWN: Final = """
umask 077
roots {folder} || exit
mkdir -p -m 700 {places}
{install}
ln -sfn releases/{hash} current.new
mv -T current.new current
"""


def send(shell: Shell, outputs: StackOutputs, files: Mapping[str, bytes]) -> str:
    """Makes the files a release of the user's own and returns its hash; twice changes nothing.

    It is live for nobody: that, and schedules, are what `pulumi up` changes. Of an attached cluster
    it is live for its one user, whose folders are made as well.
    """
    release = hash_files(files)
    folder = shlex.quote(outputs.own_path)
    install = _INSTALL.format(folder=folder, hash=release)
    if outputs.attached_key is not None:
        places = shlex.join([*outputs.shared.values(), *outputs.places.values()])
        make = _OWN.format(folder=folder, places=places, install=install, hash=release)
        install = f"bash -c {shlex.quote(shell_file('roots') + make)}"
    result = shell.run(install, stdin=pack(files))
    if not result.ok:
        raise JobsError(
            f"{outputs.own_path}: the code was not installed: "
            f"{last_words(result.stderr)}: look at the owner there"
        )
    return release


_PIECE_BYTES = 16 << 20
# A part's name holds its content's hash, so that pieces of two versions are never joined. What
# others have there may have any name, and may be closed.
_LIST = r"""
set -eu
mkdir -p {folder}
cd {folder}
df -B1 --output=avail . | tail -n 1 | tr -d " "
find . -type f -printf '%s %P\0' 2> /dev/null || :
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """One file that goes to the cluster, or comes from it."""

    here: Path
    there: str
    """Below the folder that it goes to; absolute where it comes."""
    size_bytes: int
    sha256: str

    @property
    def part(self) -> str:
        path = PurePosixPath(self.there)
        return str(path.with_name(f".{path.name}.{self.sha256[:16]}.part"))


def destination(places: Mapping[str, str], target: str, *, name: str) -> str:
    """The absolute path that `<place>[/path]` names; without a path it is `name` in the place."""
    place, _, rest = target.partition("/")
    if place not in places:
        raise JobsError(
            f"{target}: {place!r} is no place of this stack; places are: {', '.join(places)}"
        )
    if in_memory(places[place]):
        raise JobsError(
            f"{target}: {places[place]} is the memory of the login node there, which no worker "
            "sees; push to a shared place, such as data"
        )
    path = PurePosixPath(rest or name)
    if path.is_absolute() or ".." in path.parts:
        raise JobsError(f"{target}: the path after the place stays inside it, without '..'")
    _refuse_unsendable(str(path), path)
    return str(PurePosixPath(places[place]) / path)


def push(
    shell: Carrier, source: Path, target: str, *, log: Callable[[str], None], dry_run: bool = False
) -> int:
    """Makes the absolute path `target` on the cluster equal to `source`; returns the bytes sent.

    Extra files there stay.
    """
    files = _files(source)
    folder = target if source.is_dir() else str(PurePosixPath(target).parent)
    if source.is_file():
        files = [replace(files[0], there=PurePosixPath(target).name)]
    total = sum(file.size_bytes for file in files)
    log(f"{source}: {len(files)} files, {total / 2**30:.2f} GiB to {target}")
    missing, needed = list[_File](), 0
    if not dry_run:
        free, sizes = _listing(shell, folder)
        present = _present(shell, folder, [f for f in files if sizes.get(f.there) == f.size_bytes])
        missing = [file for file in files if present.get(file.there) != file.sha256]
        needed = sum(file.size_bytes - sizes.get(file.part, 0) for file in missing)
        if needed > free:
            raise JobsError(
                f"{folder}: {free / 2**30:.2f} GiB free, {needed / 2**30:.2f} GiB to send; "
                "enlarge the filesystem or remove data"
            )
        for file in missing:
            _send(shell, folder, file, have=sizes.get(file.part, 0), log=log)
    log(
        f"{len(missing)} of {len(files)} files sent, {needed / 2**30:.2f} GiB; the others were "
        "there already"
    )
    return needed


def _files(source: Path) -> list[_File]:
    if source.is_file():
        paths = [source]
    elif source.is_dir():
        paths = sorted(path for path in source.rglob("*") if path.is_file())
    else:
        raise JobsError(f"{source}: no such file or folder here")
    if not paths:
        raise JobsError(f"{source}: has no file, so there is nothing to push")
    files: list[_File] = []
    for path in paths:
        name = path.name if path == source else path.relative_to(source).as_posix()
        _refuse_unsendable(name, path)
        size, digest = path.stat().st_size, _digest(path)
        files.append(_File(here=path, there=name, size_bytes=size, sha256=digest))
    return files


def _refuse_unsendable(name: str, path: PurePath) -> None:
    if re.search("[\n\ud800-\udfff]", name):
        raise JobsError(f"{path!r}: the name holds a line break or is not UTF-8; rename it")


def _listing(shell: Carrier, folder: str) -> tuple[int, dict[str, int]]:
    """Free bytes, and the size of every file that is there already."""
    free, _, listed = _run(shell, _LIST.format(folder=shlex.quote(folder))).partition("\n")
    pairs = (entry.partition(" ") for entry in listed.split("\0"))
    sizes = {name: slurm.count(size) for size, _, name in pairs}
    return slurm.count(free, f"{folder}: df"), sizes


def _present(shell: Carrier, folder: str, files: list[_File]) -> dict[str, str]:
    """SHA-256 of those files on the cluster."""
    if not files:
        return {}
    names = "\0".join(f"./{file.there}" for file in files).encode()
    text = _run(shell, f"cd {shlex.quote(folder)} && xargs -0 sha256sum --zero --", stdin=names)
    pairs = (line.partition("  ") for line in text.split("\0"))
    return {name.removeprefix("./"): digest for digest, _, name in pairs}


def _send(
    shell: Carrier, folder: str, file: _File, *, have: int, log: Callable[[str], None]
) -> None:
    part, final = (shlex.quote(str(PurePosixPath(folder) / n)) for n in (file.part, file.there))
    if have:
        log(f"{file.there}: continued at {have} of {file.size_bytes} bytes")
    else:
        _run(shell, f'mkdir -p -- "$(dirname -- {part})" && : > {part}')
    with file.here.open("rb") as source:
        source.seek(have)
        while piece := source.read(_PIECE_BYTES):
            _run(shell, f"cat >> {part}", stdin=piece)
    digest = _run(shell, f"sha256sum -- {part}").removeprefix("\\").partition(" ")[0]
    if digest != file.sha256:
        _run(shell, f"rm -f -- {part}")
        raise JobsError(
            f"{file.there}: arrived with another hash and was removed; is it being written here? "
            "Push it again"
        )
    _run(shell, f"sync -- {part} && mv -fT -- {part} {final}")


def _run(shell: Carrier, command: str, *, stdin: bytes = b"") -> str:
    result, _ = shell.run_bytes(command, stdin=stdin)
    if not result.ok:
        reason = result.stderr.strip() or f"exit {result.exit_code}"
        raise JobsError(f"push: {reason}; look at owner and free space, then push again")
    return result.stdout


SCHEMES = ("hf://", "s3://")
FORWARDED = (
    "HF_TOKEN", "HF_ENDPOINT", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
    "AWS_ENDPOINT_URL", "AWS_REGION"
)  # fmt: skip
"""Variables of the user's own shell that the download gets."""


def default_name(source: str) -> str:
    """Folder of the place that a source goes to unless one is named: owner/name, or the prefix."""
    path = source.split("://", 1)[1].partition("@")[0].strip("/")
    if source.startswith("hf://"):
        return path.removeprefix("datasets/").removeprefix("models/")
    return path.rpartition("/")[2]


def fetch(
    connection: Connection,
    *,
    code_path: str,
    source: str,
    target: str,
    environ: Mapping[str, str],
    write: Callable[[bytes], None],
    only_describe: bool = False,
) -> None:
    """Runs the download on the login node and passes its output on; refuses when it did not end."""
    credentials = {name: environ[name] for name in FORWARDED if environ.get(name)}
    options = ["--environment-from-stdin", *(["--describe"] if only_describe else [])]
    words = shlex.join([source, target, *options])
    # The Python environment stands in what `pulumi up` delivered; the login node shares it.
    command = (
        f"{{ cd {shlex.quote(code_path)}/current && "
        'python=$(sed -n \'s/.*"python_env_path": "\\(.*\\)".*/\\1/p\' configs/stack.json) && '
        f'PYTHONPATH=$PWD "$python/bin/python" -m workloads.data.download {words}; }} 2>&1'
    )
    stdin = (json.dumps(credentials) + "\n").encode()
    try:
        for chunk in connection.stream(command, poll_s=_POLL_S, stdin=stdin):
            write(chunk)
    except EndedError as error:
        raise JobsError(f"{source}: not there (exit {error.exit_code}); see above") from error


LOG_NAME: Final = "job.log"
_POLL_S: Final = 1.0
_ENTRY: Final = re.compile(r"([0-9a-f]{64}) (\d{1,18}) (/.+)", re.DOTALL)
_KEPT_FREE_BYTES: Final = 1 << 30
_MAX_FILES: Final = 100_000
# Only the bytes that a file has now are hashed and read: a running job goes on writing its log.
_LIST_RESULTS: Final = r"""
for root in {folder} {log}; do ! is_own "$root" || find "$root" -type f -printf '%s %p\0'; done \
  2>/dev/null | while IFS= read -r -d '' file; do
  hash=$(head -c "${{file%% *}}" -- "${{file#* }}" | sha256sum | cut -c -64)
  printf '%s %s\0' "$hash" "$file"
done
"""
_SEND: Final = "tail -c +{first} -- {path} | head -c {count}\n"


def pull(
    connection: Connection, outputs: StackOutputs, job_name: str, job_id: str, *, state: Path
) -> Path:
    """Copies what the job left and returns the local folder; an older pull is replaced whole.

    What an interrupted pull brought counts; a lost connection is opened again.
    """
    target = history.run_folder(state, outputs.stack, job_id)
    part = target.with_name(f".{job_id}.part")
    files = _list(connection, outputs, job_name, job_id, part)
    # Two pulls would mix their bytes.
    busy = f"{part}: another pull of this job is on its way here; wait for its end"
    try:
        part.mkdir(parents=True, exist_ok=True)
        with alone(part, JobsError(busy)):
            _drop_others(part, files)
            _refuse_more_than_fits(part, files)
            _bring(connection, part, files)
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


def _bring(connection: Connection, part: Path, files: Sequence[_File]) -> None:
    """Every file whole and proven, or an error that names those that are not."""
    for attempt in (1, 2):
        for each in files:
            each.here.parent.mkdir(parents=True, exist_ok=True)
            each.here.touch()
            if _size(each.here) > each.size_bytes:
                each.here.write_bytes(b"")
        while missing := [each for each in files if _size(each.here) < each.size_bytes]:
            try:
                _receive(connection, missing)
            except ConnectionLostError:
                reopen(connection)
        damaged = [each for each in files if _digest(each.here) != each.sha256]
        if not damaged:
            return
        for each in damaged:  # begun by an earlier pull, and written anew on the cluster since
            each.here.unlink()
        if attempt == 2:
            names = ", ".join(str(each.here.relative_to(part)) for each in damaged[:3])
            raise JobsError(
                f"{names}: {len(damaged)} of {len(files)} files are not what the cluster listed a "
                "moment ago; their job still writes them, or a disk is damaged: pull again"
            )


def _list(
    connection: Connection, outputs: StackOutputs, job_name: str, job_id: str, part: Path
) -> list[_File]:
    """Files of the job on the cluster, to come into `part`; none is refused."""
    folder = f"{outputs.places['results']}/{job_id}"
    log = outputs.log_path(job_name, job_id)
    script = IS_OWN + _LIST_RESULTS.format(folder=shlex.quote(folder), log=shlex.quote(log))
    result, listing = connection.run_bytes("bash -s", stdin=script.encode())
    if not result.ok:
        raise JobsError(f"job {job_id}: {result.stderr.strip() or 'no message'}; pull it again")
    entries = [each.decode(errors="surrogateescape") for each in listing.split(b"\0") if each]
    if not entries and outputs.shared:
        return _list(connection, outputs.before, job_name, job_id, part)
    if not entries:
        raise NothingThereError(
            f"job {job_id}: no results and no log on the cluster yet; "
            f"wait for it with `soperator logs {job_id} -s {outputs.stack}`"
        )
    if len(entries) > _MAX_FILES:
        raise JobsError(
            f"job {job_id}: {len(entries):,} files, and at most {_MAX_FILES:,} come here: copy "
            f"{folder} by rsync or scp"
        )
    found = [_file(each, folder, log, part) for each in entries]
    # What was asked for is written down here alone, and never what the cluster says of it; there
    # are disks to which a capital letter is none.
    own = history.SUBMISSION
    return [each for each in found if each.here.relative_to(part).parts[0].lower() != own]


def _file(entry: str, folder: str, log: str, part: Path) -> _File:
    """The file of `SHA256 SIZE PATH`; a path that is not below the job's folder is refused."""
    described = _ENTRY.fullmatch(entry)
    if described is None:
        raise JobsError(f"{folder}: the cluster sent {entry[:80]!r} for a file; pull it again")
    digest, size, path = described.groups()
    local = PurePosixPath(LOG_NAME if path == log else os.path.relpath(path, folder))
    if ".." in (*PurePosixPath(path).parts, *local.parts) or not local.parts:
        raise JobsError(f"{path}: the cluster sent a path outside the job's folder")
    return _File(here=part / local, there=path, size_bytes=int(size), sha256=digest)


def _refuse_more_than_fits(part: Path, files: Sequence[_File]) -> None:
    """Refuses a job that would fill this machine's disk, before a byte of it comes."""
    needed = sum(each.size_bytes - min(each.size_bytes, _size(each.here)) for each in files)
    free = shutil.disk_usage(part).free
    if needed > free - _KEPT_FREE_BYTES:
        raise JobsError(
            f"{part}: the job left {needed / 2**30:.2f} GiB in {len(files)} files, and "
            f"{free / 2**30:.2f} GiB are free here, of which {_KEPT_FREE_BYTES >> 30} stay; make "
            "room, or copy by scp what you need of it"
        )


def _drop_others(part: Path, files: Sequence[_File]) -> None:
    """Removes what an interrupted pull brought and the cluster no longer has."""
    # A pull that was killed as it took the place of the older one left the submission only here.
    wanted = {each.here for each in files} | {part / history.SUBMISSION}
    for path in sorted(part.rglob("*"), reverse=True):
        if path.is_symlink() or (path.is_file() and path not in wanted):
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _receive(connection: Connection, files: Sequence[_File]) -> None:
    """Appends to each file what it lacks, one after the other in one stream."""
    lacks = [each.size_bytes - _size(each.here) for each in files]
    script = "".join(
        _SEND.format(first=each.size_bytes - count + 1, path=shlex.quote(each.there), count=count)
        for each, count in zip(files, lacks, strict=True)
    )
    stream = connection.stream("bash -s | gzip -1", poll_s=_POLL_S, stdin=script.encode())
    content = _unpacked(stream)
    held = b""
    for each, count in zip(files, lacks, strict=True):
        with each.here.open("ab") as sink:
            while count > 0:
                held = held or next(content, b"")
                if not held:
                    raise JobsError(f"{each.there}: got shorter while it was pulled: pull again")
                taken = sink.write(held[:count])
                count, held = count - taken, held[taken:]


def _unpacked(stream: Iterator[bytes]) -> Iterator[bytes]:
    """The bytes that `gzip` packed, as they come; never an empty piece."""
    inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    for chunk in stream:
        # Piece by piece: a chunk may stand for a thousand times its bytes.
        while plain := inflate.decompress(chunk, _PIECE_BYTES):
            yield plain
            chunk = inflate.unconsumed_tail


def _size(path: Path) -> int:
    """Bytes of the file that are here."""
    return path.stat().st_size if path.exists() else 0


def _digest(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


_NOTHING_TRIED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Venv:
    """The environment that jobs run with from now on."""

    path: str
    version: str
    """Of its lock file, 12 hex digits."""
    seconds: int | None
    """What making it took; None: it was there."""
    size_mib: int | None


def lock_files(root: Path, lock: Path | None = None) -> dict[str, bytes]:
    """What is sent: the lock of the environment (the checkout's by default) and that of uv."""
    chosen = lock or root / WORKLOADS_LOCK
    try:
        content = read_bytes(chosen)
    except OSError as error:
        raise JobsError(f"--lock {chosen}: cannot be read ({error.strerror})") from error
    if b"--hash=sha256:" not in content:
        raise JobsError(
            f"--lock {chosen}: no line has a hash; make it with uv pip compile --generate-hashes"
        )
    bootstrap = root / "infra" / "setup" / "tools" / BOOTSTRAP_LOCK
    return {WORKLOADS_LOCK: content, BOOTSTRAP_LOCK: bootstrap.read_bytes()}


def make(
    shell: Carrier, spec: StackSpec, files: Mapping[str, bytes], source: PackageSource
) -> Venv:
    """Makes the environment of the lock the live one; making it twice changes nothing."""
    lock = files[WORKLOADS_LOCK]
    result, _ = shell.run_bytes(venv_script(spec, lock, source), stdin=pack(files))
    if not result.ok:
        message = result.stderr.strip() or "no message"
        if result.exit_code == _NOTHING_TRIED:
            raise JobsError(f"{spec.python_env_path}: {message.splitlines()[-1]}")
        raise JobsError(
            f"{spec.python_env_path}: not made, the one before is as it was: {message}\n"
            "can the login node reach the index? --index names another, --wheelhouse a folder"
        )
    found = re.fullmatch(r"same|made ([0-9]{1,9}) ([0-9]{1,9})", result.stdout.strip())
    if found is None:
        raise JobsError(f"{spec.python_env_path}: unexpected answer: {result.stdout!r}")
    seconds, size_mib = (None if each is None else int(each) for each in found.groups())
    return Venv(
        path=spec.python_env_path, version=version_of(lock), seconds=seconds, size_mib=size_mib
    )
