"""Debian packages that the embedded cloud and the browser tests run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from infra.setup.step import Progress, SetupError, Step

PACKAGES: Final[Mapping[str, str]] = {
    "munge": "munged",
    "slurm-wlm": "slurmctld",
    "slurmdbd": "slurmdbd",
    "mariadb-server": "mariadbd",
    "openssh-server": "sshd",
    "etcd-server": "etcd",
    "restic": "restic",
}
"""Package of Debian 12 -> a program that it brings."""
TEST_PACKAGES: Final[Mapping[str, str]] = {"chromium": "chromium", "prometheus": "promtool"}
_DEBIAN: Final = "12"
_POLICY: Final = Path("/usr/sbin/policy-rc.d")


def step(packages: Mapping[str, str]) -> Step:
    """Install those of the packages whose program is missing."""
    return Step(
        name=f"Debian packages {' '.join(packages)}",
        expect="some minutes",
        done=lambda: not missing(packages),
        run=lambda progress: install(missing(packages), progress),
    )


def missing(packages: Mapping[str, str]) -> list[str]:
    """Packages whose program is on no path."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    return [name for name, program in packages.items() if not shutil.which(program, path=path)]


def install(names: list[str], progress: Progress) -> None:
    """Install packages, but start no service: we run our own daemons, on our own ports."""
    command = f"apt-get install {' '.join(names)}"
    release = Path("/etc/debian_version")
    version = release.read_text().strip() if release.exists() else ""
    if version.split(".")[0] != _DEBIAN:
        raise SetupError(
            f"this is {f'Debian {version}' if version else 'not Debian'}; set-up knows Debian "
            f"{_DEBIAN} only\ninstall what brings these programs, then run this again: "
            + ", ".join({**PACKAGES, **TEST_PACKAGES}[name] for name in names)
        )
    if os.geteuid() != 0:
        raise SetupError(f"packages need root\nrun as root: {command}\nthen run this again")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    # A lock of another apt is waited for; a broken state of dpkg is told, not repaired.
    options = ["-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120"]
    progress.execute(["apt-get", "update"], env=quiet, fix="is the network up? then run this again")
    with _services_stay_down():
        progress.execute(
            ["apt-get", "install", *options, *names],
            env=quiet,
            fix=f"look above, mend it by hand (`{command}`), then run this again",
        )


@contextmanager
def _services_stay_down() -> Iterator[None]:
    """Debian's own switch against starting daemons at installation; left alone if one is set."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()
