"""A pod of the embedded cloud: one daemon in a root, mounts and host name of its own.

A script builds the root from the host's directories (read-only) and the declared mounts. Nothing is
made in the host's own directories: a mount point that the host lacks gets its parent from the jail,
with the host's entries mounted into it one by one. /etc is a copy: whoever renames a file over
another on the host, as useradd does with passwd, takes what pods have mounted on it away.

Every pod has the jail's passwd, group and shadow files mounted over those of this machine, so that
a user who is made on the login node is the same one for slurmctld and every slurmd. A mount keeps
the file that it was made with: the programs write in place. The programs that power nodes up and
down only leave a request in the shared folder; the operator's stand-in starts or ends slurmd.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from infra.local import process
from infra.local.process import LocalError
from stacks.files import environment

if TYPE_CHECKING:
    import jinja2

STATE_PATH: Final = "/run/soperator"
"""Where a pod sees the folder that the Slurm daemons share: configuration, sockets, spool."""

_FROM_JAIL: Final = ("/home", "/mnt", "/root", "/srv")
"""Directories of the jail filesystem, never of the host."""
_OWN: Final = ("/run", "/tmp")  # noqa: S108
"""Directories that each pod has for itself."""
_COPIED: Final = "/etc"
_ACCOUNT_FILES: Final = ("passwd", "group", "shadow", "gshadow")
_SKIPPED: Final = ("/lost+found", "/swapfile")
_KERNEL: Final = ("/dev", "/proc", "/sys")
MUNGE: Final = "munge"
"""Folder of the shared folder with the key, and with what each munged has for itself."""
PROFILE: Final = "profile"
"""File of the shared folder that is shown as /etc/profile where it is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One mount of a pod: a host path, or a tmpfs of `tmpfs_bytes`."""

    path: str
    source: Path | None = None
    tmpfs_bytes: int | None = None
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSpec:
    """What runs in a pod and what it sees."""

    name: str
    argv: tuple[str, ...]
    jail: Path
    """Host folder with the jail's home, root, mnt and srv."""
    mounts: tuple[Mount, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    has_own_munge: bool = False
    """Whether a munged of its own answers in it, as in a pod of the cloud."""

    @property
    def mounts_hash(self) -> str:
        """Changes when the pod must be made anew, not only its daemon restarted."""
        made_from = (self.jail, self.mounts, self.has_own_munge)
        return hashlib.sha256(repr(made_from).encode()).hexdigest()[:16]


def marker(slurm_dir: Path, pod: str = "") -> str:
    """Name of the pod's root mount: tells its processes from all others on the machine."""
    state = hashlib.sha256(str(slurm_dir.resolve()).encode()).hexdigest()[:12]
    return f"soperator-{state}-{pod}"


def munge_folder(shared: Path, pod: str = "") -> Path:
    """Where a munged keeps its socket: that of a pod, or the one that the others share."""
    return shared / MUNGE / pod


def is_hidden(path: Path) -> bool:
    """Whether a pod does not see this path of the host unless it is mounted."""
    return f"{path}/".startswith(tuple(f"{each}/" for each in (*_FROM_JAIL, *_OWN)))


def render_script(pod: PodSpec, slurm_dir: Path) -> str:
    """The shell script that becomes the pod's daemon."""
    folder, shared = slurm_dir / "pods" / pod.name, slurm_dir / "shared"
    text = _template().render(
        pod=pod,
        root=str(folder / "root"),
        jail=str(pod.jail),
        own_tmp=str(folder / "tmp"),
        shared=str(shared),
        own_munge=munge_folder(shared, pod.name),
        marker=marker(slurm_dir, pod.name),
        shown=[*_shown("/", _shadowed([mount.path for mount in pod.mounts]))],
        mounts=sorted(pod.mounts, key=lambda mount: PurePosixPath(mount.path).parts),
        jailed=_FROM_JAIL,
        accounts=_ACCOUNT_FILES,
        state=STATE_PATH,
        munge=MUNGE,
        profile=PROFILE,
    )
    return f"{text}\n"


@cache
def _template() -> jinja2.Template:
    filters = {"quote": shlex.quote, "join_words": shlex.join}
    return environment(Path(__file__).parent, filters).get_template("pod.sh.j2")


def argv(script: Path) -> list[str]:
    """The command that runs a pod's script in namespaces of its own."""
    return ["unshare", "--mount", "--uts", "--propagation", "private", "/bin/sh", str(script)]


def start(
    pod: PodSpec, slurm_dir: Path, *, name: str, run_dir: Path, log: Path, env: Mapping[str, str]
) -> None:
    """Start the pod's daemon in namespaces of its own, as the process `name`."""
    folder = slurm_dir / "pods" / pod.name
    (folder / "root").mkdir(parents=True, exist_ok=True)
    script = folder / "start.sh"
    script.write_text(render_script(pod, slurm_dir))
    process.start(name, argv(script), run_dir=run_dir, log=log, env=env)


def processes(slurm_dir: Path, pod: str | None = None) -> list[int]:
    """Pids of everything that lives in the pod, or in any pod: daemons, jobs, SSH sessions."""
    return list(filter(_lives_in(slurm_dir, pod), process.pids()))


def kill(slurm_dir: Path, pod: str | None = None, timeout_s: float = 2.5) -> None:
    """End everything in the pod, or in every pod; TERM, then KILL after `timeout_s`."""
    process.end(_lives_in(slurm_dir, pod), timeout_s)


def _lives_in(slurm_dir: Path, pod: str | None) -> Callable[[int], bool]:
    """Whether a process has the root of the pod, or of any: its mount carries the marker."""
    # A space ends the marker of one pod.
    wanted = marker(slurm_dir) if pod is None else marker(slurm_dir, pod) + " "

    def lives(pid: int) -> bool:
        try:
            mounts = Path(f"/proc/{pid}/mountinfo").read_text(errors="replace")
        except OSError:  # it ended meanwhile
            return False
        return any(f" - tmpfs {wanted}" in line for line in mounts.splitlines())

    return lives


def _shown(folder: str, shadowed: set[str]) -> Iterator[tuple[str, str, str]]:
    """How each entry of a directory of the host is shown, its path, and where a link leads."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.path in (*_FROM_JAIL, *_OWN, *_SKIPPED):
            continue
        if entry.is_symlink():
            yield "link", entry.path, str(Path(entry.path).readlink())
        elif entry.path == _COPIED:
            yield "copy", entry.path, ""
        elif entry.path in shadowed:
            # One of the jail's, so that it can take new mount points, with the host's in it.
            yield "jail", entry.path, ""
            yield from _shown(entry.path, shadowed)
        elif entry.is_dir():
            yield "kernel" if entry.path in _KERNEL else "folder", entry.path, ""
        elif entry.is_file():
            yield "file", entry.path, ""


def _shadowed(paths: Sequence[str]) -> set[str]:
    """Host directories that lack a mount point which a pod needs below them."""
    unlike_the_host = (*_FROM_JAIL, *_OWN, *_KERNEL, _COPIED)
    shadowed: set[str] = set()
    for path in paths:
        parents = [str(parent) for parent in PurePosixPath(path).parents][:-1]
        if not parents or f"/{PurePosixPath(path).parts[1]}" in unlike_the_host:
            continue
        if Path(path).is_dir():
            continue
        existing = [parent for parent in parents if Path(parent).is_dir()]
        # Its parents are shown entry by entry too: a read-only one would refuse the mount point.
        shadowed.update(existing)
    return shadowed


SLURM_SETTING: Final = "SOPERATOR_SLURM"
FAST_SETTING: Final = "SOPERATOR_LOCAL_FAST_TIMES"
_SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NEEDED: Final = ("sbin/slurmctld", "sbin/slurmd", "sbin/slurmdbd", "bin/srun", "bin/sbatch")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSetup:
    """The Slurm of every pod: that of the system, or one that was built from source."""

    prefix: Path | None = None
    """Folder with its bin, sbin and lib; None is Debian's."""
    fast_times: bool = False
    """Whether Slurm's waits are shortened for tests; the cluster then recovers too fast."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> SlurmSetup:
        """What the two variables say; refuses a folder without Slurm."""
        fast = environ.get(FAST_SETTING, "")
        if fast not in ("", "0", "1"):
            raise LocalError(f"{FAST_SETTING}: '{fast}'; set it to 1 (short waits) or unset it")
        text = environ.get(SLURM_SETTING)
        prefix = _prefix(text) if text else None
        return cls(prefix=prefix, fast_times=fast == "1")

    @property
    def path(self) -> str:
        """PATH of every pod."""
        own = "" if self.prefix is None else f"{self.prefix}/sbin:{self.prefix}/bin:"
        return own + _SYSTEM_PATH

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """What every pod sees of it beside the system's own folders."""
        if self.prefix is None or not is_hidden(self.prefix):
            return ()
        return (Mount(path=str(self.prefix), source=self.prefix, read_only=True),)

    @property
    def version(self) -> str:
        """Such as 25.11.3, as slurmctld says it; a word for none where it is not installed."""
        if shutil.which("slurmctld", path=self.path) is None:
            return "(not installed)"
        done = subprocess.run(
            ["slurmctld", "-V"],
            env={"PATH": self.path},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()[-1]

    @property
    def has_pmix(self) -> bool:
        """Whether steps can be started with PMIx, as Soperator's are by default."""
        if self.prefix is not None:
            return (self.prefix / "lib" / "slurm" / "mpi_pmix.so").exists()
        # Debian's plugin opens the library by the name that its package libpmix-dev brings.
        return any(Path("/usr/lib").glob("*/pmix2/lib/libpmix.so"))

    @property
    def has_pyxis(self) -> bool:
        """Whether a step can run in an image: NVIDIA's plugin, and enroot in the same folder."""
        needed = ("lib/slurm/spank_pyxis.so", "bin/enroot", "bin/mksquashfs")
        return self.prefix is not None and all((self.prefix / name).exists() for name in needed)

    def describe(self) -> str:
        """Version, place and clocks for people."""
        clocks = f"; shortened times ({FAST_SETTING}=1)" if self.fast_times else ""
        return f"Slurm {self.version} of {self.prefix or 'the system'}{clocks}"


def _prefix(text: str) -> Path:
    prefix = Path(text).expanduser()
    if not prefix.is_absolute():
        raise LocalError(
            f"{SLURM_SETTING}: '{text}' is not absolute; give the full path of a folder"
        )
    missing = [name for name in _NEEDED if shutil.which(prefix / name) is None]
    if missing:
        raise LocalError(
            f"{SLURM_SETTING}: {prefix} has no {', '.join(missing)}; give the --prefix that a "
            "Slurm built from source was installed to, or unset it for the system's own"
        )
    return prefix


PROGRAMS: Final = f"{STATE_PATH}/bin"
"""Before every other folder on the PATH of the login node."""
RESUME: Final = "resume"
SUSPEND: Final = "suspend"
FOLDER: Final = "power"
REQUESTS: Final = f"{FOLDER}/requests"
PARTIAL: Final = ".new"
"""End of the name of a request that is being written: no part of one is read without the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call of slurmctld's."""

    path: Path
    powers_up: bool
    nodes: tuple[str, ...]


def program(verb: str) -> str:
    """Path of the program in a pod."""
    return f"{STATE_PATH}/{FOLDER}/{verb}"


def requests(shared: Path) -> tuple[Request, ...]:
    """Everything that was asked for and not yet forgotten, oldest first."""
    folder = shared / REQUESTS
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return tuple(
        Request(
            path=path,
            powers_up=path.name.endswith(f"-{RESUME}"),
            nodes=tuple(path.read_text().split()),
        )
        for path in paths
        if not path.name.endswith(PARTIAL)
    )


def forget(done: Iterable[Request]) -> None:
    """Removes requests that are in the NodeSetPowerState."""
    for request in done:
        request.path.unlink(missing_ok=True)
