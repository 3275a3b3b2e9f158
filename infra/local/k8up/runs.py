"""One job of k8up as a process: real restic in mounts of its own, the way k8up's pod runs it.

Owns the commands, the process and what it leaves: an exit status and a list of snapshots. Secrets
are in the environment of the process and nowhere on the disk.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from infra.local import process
from infra.local.slurm import pod as pods
from infra.local.slurm.pod import Mount, PodSpec

PREFIX: Final = "k8up-"
"""Start of the names of its processes."""
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OUT: Final = "/out"
_DATA: Final = "/data"
_RESTORE: Final = "/restore"
_RESTIC: Final = "restic --no-cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a job does."""

    steps: tuple[str, ...]
    """Shell commands, one after the other until one fails."""
    mounts: tuple[Mount, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job ended."""

    succeeded: bool
    message: str
    snapshots: tuple[dict[str, Any], ...] | None
    """What the repository holds, as restic prints it; None where the job does not ask."""


def backup(claims: Mapping[str, Path], *, host: str, tags: Sequence[str]) -> Work:
    """Copies each claim's folder into a repository that is made first."""
    marks = " ".join(f"--tag {shlex.quote(tag)}" for tag in tags)
    copies = (
        f"{_RESTIC} backup --host {shlex.quote(host)} {marks} {_DATA}/{shlex.quote(claim)}"
        for claim in claims
    )
    mounts = (
        Mount(path=f"{_DATA}/{claim}", source=folder, read_only=True)
        for claim, folder in claims.items()
    )
    # As k8up does: where it cannot be made, the copy says why.
    made = f"{_RESTIC} cat config > /dev/null 2>&1 || {_RESTIC} init > /dev/null 2>&1 || :"
    return Work(steps=(made, *copies, _listing()), mounts=tuple(mounts))


def prune(retention: Mapping[str, Any]) -> Work:
    """Forgets all but the newest of each day, and frees what they alone held."""
    marks = " ".join(f"--tag {shlex.quote(tag)}" for tag in retention.get("tags") or ())
    keep = int(retention.get("keepDaily") or 14)  # k8up's own default
    forget = f"{_RESTIC} forget --prune --keep-daily {keep} {marks}"
    return Work(steps=(forget, _listing()), mounts=())


def restore(target: Path, *, snapshot: str, host: str, source: str, include: str) -> Work:
    """Writes a snapshot of `source`, or what `include` names of it, into the folder."""
    chosen = shlex.quote(snapshot) if snapshot else f"latest --host {shlex.quote(host)}"
    only = f"--include {shlex.quote(include)}" if include else ""
    # The root of what was copied becomes the root of the target, as k8up's trimmed paths do.
    mount = Mount(path=f"{_RESTORE}{source}", source=target)
    return Work(steps=(f"{_RESTIC} restore {chosen} --target {_RESTORE} {only}",), mounts=(mount,))


@dataclass(frozen=True, slots=True)
class Runner:
    """Jobs of one state folder."""

    folder: Path
    run_dir: Path

    def start(self, name: str, work: Work, environment: Mapping[str, str]) -> None:
        """Starts a job; `environment` has the repository and its keys."""
        shared = self.folder / "shared"
        shared.mkdir(parents=True, exist_ok=True, mode=0o700)
        (shared / "hosts").write_text("127.0.0.1 localhost\n")
        home = self._home(name)
        for part in ("root", "jail", "out"):
            (home / part).mkdir(parents=True, exist_ok=True)
        for mount in work.mounts:
            assert mount.source is not None
            mount.source.mkdir(parents=True, exist_ok=True)
        steps = " && ".join(f"{{ {step}; }}" for step in work.steps)
        script = f"{steps}; echo $? > {_OUT}/status.new; mv {_OUT}/status.new {_OUT}/status"
        spec = PodSpec(
            name=name,
            argv=("/bin/sh", "-c", script),
            jail=home / "jail",
            mounts=(*work.mounts, Mount(path=_OUT, source=home / "out")),
        )
        start = home / "start.sh"
        start.write_text(pods.render_script(spec, self.folder))
        process.start(
            PREFIX + name,
            pods.argv(start),
            run_dir=self.run_dir,
            log=home / "out" / "log",
            env={"PATH": _PATH, "HOME": "/root", "TZ": "UTC", **environment},
        )

    def outcome(self, name: str) -> Outcome | None:
        """How the job ended; None while it runs."""
        if process.alive(PREFIX + name, self.run_dir):
            return None
        out = self._home(name) / "out"
        status = (out / "status").read_text().strip() if (out / "status").exists() else "killed"
        log = (out / "log").read_text(errors="replace") if (out / "log").exists() else ""
        lines = [line for line in log.splitlines() if line.strip()]
        last = lines[-1][:300] if lines else "no output"
        succeeded = status == "0"
        listed = out / "snapshots.json"
        return Outcome(
            succeeded=succeeded,
            message="the job succeeded" if succeeded else f"restic ended with {status}: {last}",
            snapshots=(
                tuple(json.loads(listed.read_text()) or ())
                if succeeded and listed.exists()
                else None
            ),
        )

    def forget(self, name: str) -> None:
        """Ends the job and removes all that it left."""
        process.stop(PREFIX + name, self.run_dir)
        pods.kill(self.folder, name)
        shutil.rmtree(self._home(name), ignore_errors=True)

    def stop_all(self) -> None:
        """Ends every job; one that its object calls running has failed then."""
        for name in self.names():
            self.forget(name)

    def names(self) -> list[str]:
        """Jobs that were started and not forgotten."""
        recorded = process.all_processes(self.run_dir)
        return [each.name.removeprefix(PREFIX) for each in recorded if each.name.startswith(PREFIX)]

    def _home(self, name: str) -> Path:
        return self.folder / "pods" / name


def _listing() -> str:
    return f"{_RESTIC} snapshots --json > {_OUT}/snapshots.json"
