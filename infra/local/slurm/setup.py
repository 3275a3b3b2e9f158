"""Which Slurm the embedded cloud runs, and whether its clocks are shortened: two variables.

Owns SOPERATOR_SLURM and SOPERATOR_LOCAL_FAST_TIMES. Says where programs and plugins lie; starts
nothing and writes no file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from infra.local.errors import LocalError
from infra.local.slurm.pod import Mount, is_hidden

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
