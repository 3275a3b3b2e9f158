"""Installs everything that the project needs on this machine, each thing once.

Finished steps are skipped, an interrupted one is made anew; nothing is left half made. Make calls
it after bootstrap.sh. Exit codes: 0 all there, 1 a step cannot succeed and says what to do.
    python -m infra.setup.tools [--tests]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from importlib import metadata
from pathlib import Path
from typing import IO, Final

from infra import files
from infra.cli import output
from infra.local.engine import LANGUAGE_HOST, STAND_INS, is_usable, link_plugins, search_path
from infra.local.process import LocalError
from infra.state import CHECKOUT, KUBE_APISERVER_VERSION, PULUMI_VERSION, Cache, State

_KEPT_LINES: Final = 15
_SHOWN_CHARS: Final = 90


class SetupError(Exception):
    """Set-up cannot go on; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that set-up makes."""

    name: str
    """What is there afterwards, such as `engine pulumi v3.190.0`."""
    expect: str
    """What the user may expect while it runs: size or time."""
    done: Callable[[], bool]
    run: Callable[[], None]


def execute(
    argv: Sequence[str | Path],
    *,
    fix: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> None:
    """Run a program to its end, its output as progress; `fix` tells what to do if it fails."""
    kept: list[str] = []
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **(env or {})},
        cwd=cwd,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                kept = [*kept, line.rstrip()][-_KEPT_LINES:]
                if line.strip():
                    output.at(line.strip()[:_SHOWN_CHARS])
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        shown = shlex.join(str(part) for part in argv)
        raise SetupError("\n".join([*kept, f"`{shown}` ended with {process.returncode}", fix]))


@contextmanager
def whole_folder(final: Path) -> Iterator[Path]:
    """A fresh folder that takes the place of `final` when the block ends well."""
    final.parent.mkdir(parents=True, exist_ok=True)
    for left in final.parent.glob(f".{final.name}.*"):  # of interrupted runs; set-up holds a lock
        shutil.rmtree(left)
    fresh = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    fresh.chmod(0o755)
    try:
        yield fresh
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    if final.exists():
        old = fresh.with_name(f"{fresh.name}.old")
        final.rename(old)
        fresh.rename(final)
        shutil.rmtree(old)
    else:
        fresh.rename(final)


_SOURCES: Final = Path(__file__).parent / "go"
_VERSION = re.compile(r"go(\d+)\.(\d+)")
_GO: Final = (1, 26)


def build_go(name: str, package: str, program: Path, *, variables: Mapping[str, str]) -> None:
    """Build `package` of the module in go/`name` into the file `program`.

    `variables` are set in the program by the linker. Go's own caches make a second try go on where
    the first was interrupted.
    """
    check_go(name)
    fix = (
        "the Go module proxy must be reachable (`go env GOPROXY`), and 4 GB of disk free; "
        "then run this again: it goes on where it was"
    )
    source = _SOURCES / name
    # GOWORK and GOFLAGS of the user could change what is built.
    env = {
        "GOWORK": "off",
        "GOFLAGS": "-mod=readonly -buildvcs=false -trimpath",
        "CGO_ENABLED": "0",
    }
    output.at("go mod download")
    execute(["go", "mod", "download"], cwd=source, env=env, fix=fix)
    link = "-s -w " + " ".join(f"-X {key}={value}" for key, value in variables.items())
    execute(
        ["go", "build", "-v", "-ldflags", link.strip(), "-o", program, package],
        cwd=source,
        env=env,
        fix=fix,
    )


def check_go(name: str) -> None:
    """Refuse a missing or an old Go."""
    program = shutil.which("go")
    need = ".".join(map(str, _GO))
    if program is None:
        raise SetupError(
            f"{name} is not on PATH and Go, to build it, is not either\n"
            f"install Go {need} or later from https://go.dev/dl, or put {name} on PATH"
        )
    text = subprocess.run([program, "version"], capture_output=True, text=True, check=True).stdout
    found = _VERSION.search(text)
    if found is None or tuple(map(int, found.groups())) < _GO:
        raise SetupError(f"{text.strip()} is too old; install Go {need} or later")


_SITE: Final = "https://get.pulumi.com"
# Of the x86_64 archive: pkgs/tools/admin/pulumi-bin/data.nix of NixOS/nixpkgs at its version
# 3.190.0 (in base 32 there), read 2026-11-23. Change it with PULUMI_VERSION.
_ENGINE_SHA256: Final = "a8cda5a0fd20f433e8ced3116bd5f26080a6481194dd20daa6a9b64390857b50"
_RELEASES: Final = "https://github.com/pulumi/pulumi-{name}/releases/download/v{version}"
_PROCESSORS: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_REACHED_IN_S: Final = 5
_SILENT_S: Final = 60
_CHUNK_BYTES: Final = 1 << 20
_PACKAGE: Final = "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi"
_VERSION_VARIABLE: Final = "github.com/pulumi/pulumi/sdk/v3/go/common/version.Version"


def _on_path(cache: Cache) -> bool:
    others = [
        part
        for part in os.environ.get("PATH", os.defpath).split(os.pathsep)
        if Path(part) != cache.pulumi.parent
    ]
    found = shutil.which("pulumi", path=os.pathsep.join(others))
    return found is not None and is_usable(Path(found))


def _install_engine(cache: Cache) -> None:
    with whole_folder(cache.pulumi.parent) as folder:
        if _reachable():
            try:
                _download(folder)
                return
            except SetupError as error:
                output.note(f"  the official download ended early: {error}")
        output.note("  building the engine from Go modules instead; later runs skip this")
        build_go(
            "pulumi",
            _PACKAGE,
            folder / "pulumi",
            variables={_VERSION_VARIABLE: f"v{PULUMI_VERSION}"},
        )
        # Beside its engine a language host is found without PATH, and without the warning.
        shutil.copy2(
            CHECKOUT / "infra" / "local" / "plugins" / "bin" / LANGUAGE_HOST, folder / LANGUAGE_HOST
        )


def _download(folder: Path) -> None:
    """Put the released engine and its language hosts into `folder`; refuse an unknown archive."""
    if platform.machine() != "x86_64":
        raise SetupError(f"no checksum of the release is known for {platform.machine()}")
    url = f"{_SITE}/releases/sdk/pulumi-v{PULUMI_VERSION}-linux-x64.tar.gz"
    with tempfile.TemporaryFile(dir=folder) as file:
        _fetch(url, file, _ENGINE_SHA256)
        with tarfile.open(fileobj=file) as archive:
            for member in archive:
                if member.isfile():
                    member.name = Path(member.name).name
                    archive.extract(member, folder, filter="data")


def _fetch(url: str, file: IO[bytes], sha256: str) -> None:
    """Write what lies at `url` into `file`, from whose begin it can be read; refuse another sum."""
    found = hashlib.sha256()
    try:
        with urllib.request.urlopen(url, timeout=_SILENT_S) as source:  # noqa: S310
            while chunk := source.read(_CHUNK_BYTES):
                file.write(chunk)
                found.update(chunk)
                output.at(f"{url}: {file.tell() / 1e6:.0f} MB")
    except (OSError, HTTPException) as error:
        raise SetupError(f"{url}: {error}") from error
    if found.hexdigest() != sha256:
        raise SetupError(
            f"{url}: its SHA-256 is {found.hexdigest()}, not {sha256}; nothing of it is used"
        )
    file.seek(0)


def _install_plugins(state: State, cache: Cache) -> None:
    env = {
        "PULUMI_HOME": str(state.pulumi_home),
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PATH": search_path(os.environ.get("PATH", os.defpath), cache, state.pulumi_home),
    }
    pulumi = shutil.which("pulumi", path=env["PATH"])
    if pulumi is not None and _reachable():
        for name, package in STAND_INS.items():
            try:
                _install_plugin(pulumi, name, metadata.version(package), env)
            except SetupError as error:
                output.note(f"  {' '.join(str(error).splitlines()[-2:])}")
    for name in link_plugins(state.pulumi_home):
        output.note(f"  {name}: the official plugin cannot be had here; our stand-in is used")


def _install_plugin(pulumi: str, name: str, version: str, env: Mapping[str, str]) -> None:
    """Install an official plugin whose archive has the checksum that its release's page says.

    The two come from different sites. The engine's own `--checksum` refuses good archives as well:
    v3.190.0 leaves the last piece that it reads out of the sum (seen on 2026-11-23).
    """
    processor = _PROCESSORS.get(platform.machine(), platform.machine())
    archive = f"pulumi-resource-{name}-v{version}-linux-{processor}.tar.gz"
    url = f"{_RELEASES.format(name=name, version=version)}/pulumi-{name}_{version}_checksums.txt"
    try:
        with urllib.request.urlopen(url, timeout=_REACHED_IN_S) as answer:  # noqa: S310
            sums = dict(line.split()[::-1] for line in answer.read().decode().splitlines())
    except (OSError, HTTPException, ValueError) as error:
        raise SetupError(f"{url}: {error}; no plugin is taken without its checksum") from error
    if archive not in sums:
        raise SetupError(f"{url}: has no {archive}; no plugin is taken without its checksum")
    with tempfile.NamedTemporaryFile(suffix=".tar.gz") as file:
        _fetch(f"{_SITE}/releases/plugins/{archive}", file, sums[archive])
        wanted = ["plugin", "install", "resource", name, version, "--reinstall", "--file"]
        execute([pulumi, *wanted, file.name], env=env, fix="a stand-in is next")


def _plugin(state: State, name: str) -> Path:
    folder = f"resource-{name}-v{metadata.version(STAND_INS[name])}"
    return state.pulumi_home / "plugins" / folder / f"pulumi-resource-{name}"


def _reachable() -> bool:
    """Whether Pulumi's site answers; asked once a step and with a short patience."""
    output.at(f"asking {_SITE}")
    try:
        with urllib.request.urlopen(_SITE, timeout=_REACHED_IN_S):
            return True
    except urllib.error.HTTPError as error:
        refused = f"answers {error.code}"
    except OSError as error:
        refused = f"cannot be reached ({getattr(error, 'reason', error)})"
    output.note(f"  {_SITE} {refused}: no official download")
    return False


_VERSION_PACKAGE = "k8s.io/component-base/version"


def _build_apiserver(cache: Cache) -> None:
    major, minor, _ = KUBE_APISERVER_VERSION.split(".")
    with whole_folder(cache.kube_apiserver.parent) as folder:
        build_go(
            "kube-apiserver",
            "k8s.io/kubernetes/cmd/kube-apiserver",
            folder / "kube-apiserver",
            variables={
                f"{_VERSION_PACKAGE}.gitVersion": f"v{KUBE_APISERVER_VERSION}",
                f"{_VERSION_PACKAGE}.gitMajor": major,
                f"{_VERSION_PACKAGE}.gitMinor": minor,
            },
        )


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


def python_steps(cache: Cache) -> list[Step]:
    """What comes from Python's index: the jobs' environment (the jail image's on the cloud), the
    model, a GGUF there and safetensors here, and the Berkeley Function Calling Leaderboard.
    """
    model, model_lock = cache.models / MODEL, _TOOLS / "model.lock"
    data, data_lock = cache.data / DATA, _TOOLS / "data.lock"
    return [
        Step(
            name="Python environment of the jobs",
            expect="5 GB, linked from uv's cache where the disk is the same",
            done=lambda: cache.workloads_venv.exists(),
            run=lambda: _make_workloads_venv(cache.workloads_venv),
        ),
        Step(
            name=f"model {MODEL}",
            expect="100 MB, then half a minute of conversion",
            done=lambda: _is_made_from(model, model_lock),
            run=lambda: _make_model(model, model_lock),
        ),
        Step(
            name="data BFCL v4",
            expect="5 MB",
            done=lambda: _is_made_from(data, data_lock) and (data / CHECKER).is_dir(),
            run=lambda: _make_data(data, data_lock),
        ),
    ]


def _make_workloads_venv(final: Path) -> None:
    lock = CHECKOUT / "requirements-workloads.lock"
    with whole_folder(final) as folder:
        uv = _uv()
        venv = [uv, "venv", "--quiet", "--relocatable", "--allow-existing"]
        execute([*venv, "--python", sys.executable, folder], fix=_NETWORK)
        # Jobs see this folder read-only: without compiled files each one would compile torch anew.
        sync = [uv, "pip", "sync", "--require-hashes", "--compile-bytecode"]
        execute([*sync, "--python", folder / "bin" / "python", lock], fix=_NETWORK)


def _make_model(final: Path, lock: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch, whole_folder(final) as folder:
        target = Path(scratch)
        _install_locked(lock, target)
        made = folder / MODEL
        # The jobs' own code converts it; here that code is a program, never an import.
        execute(
            [sys.executable, "-m", "workloads.data.convert_gguf", target, made],
            cwd=CHECKOUT,
            fix="look above; then run this again",
        )
        for file in made.iterdir():
            file.rename(folder / file.name)
        made.rmdir()
        shutil.copyfile(lock, folder / _STAMP)


def _make_data(final: Path, lock: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch, whole_folder(final) as folder:
        _install_locked(lock, Path(scratch))
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


def _install_locked(lock: Path, target: Path) -> None:
    install = [_uv(), "pip", "install", "--require-hashes", "--no-deps", "--target", target]
    execute([*install, "--python", sys.executable, "-r", lock], fix=_NETWORK)


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


def packages_step(packages: Mapping[str, str]) -> Step:
    """Install those of the packages whose program is missing."""
    return Step(
        name=f"Debian packages {' '.join(packages)}",
        expect="some minutes",
        done=lambda: not missing(packages),
        run=lambda: install(missing(packages)),
    )


def missing(packages: Mapping[str, str]) -> list[str]:
    """Packages whose program is on no path."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    return [name for name, program in packages.items() if not shutil.which(program, path=path)]


def install(names: list[str]) -> None:
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
    execute(["apt-get", "update"], env=quiet, fix="is the network up? then run this again")
    with _services_stay_down():
        execute(
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


def steps(*, tests: bool) -> list[Step]:
    """What this machine needs, in order; `tests` adds the browser.

    Pulumi's engine with a Python language host, its plugins and kube-apiserver are official
    downloads, or built from Go modules that are pinned by their hashes.
    """
    cache, state = Cache.from_environ(), State.from_environ()
    return [
        packages_step({**PACKAGES, **(TEST_PACKAGES if tests else {})}),
        Step(
            name=f"Pulumi engine v{PULUMI_VERSION}",
            expect="official download, else about 8 minutes of building on 2 cores, once",
            done=lambda: _on_path(cache) or is_usable(cache.pulumi),
            run=lambda: _install_engine(cache),
        ),
        Step(
            name="Pulumi plugins command, kubernetes",
            expect="official download, else stand-ins",
            done=lambda: all(_plugin(state, name).exists() for name in STAND_INS),
            run=lambda: _install_plugins(state, cache),
        ),
        Step(
            name=f"kube-apiserver v{KUBE_APISERVER_VERSION}",
            expect="about 8 minutes of building on 2 cores, once",
            done=lambda: bool(shutil.which("kube-apiserver")) or cache.kube_apiserver.exists(),
            run=lambda: _build_apiserver(cache),
        ),
        *python_steps(cache),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every step that is not done."""
    parser = argparse.ArgumentParser(prog="python -m infra.setup.tools", description=__doc__)
    parser.add_argument("--tests", action="store_true", help="also what only the tests need")
    options = parser.parse_args(arguments)
    try:
        with _alone(Cache.from_environ()):
            for step in steps(tests=options.tests):
                _run(step)
    except (SetupError, LocalError) as error:
        lines = str(error).splitlines() or ["no message"]
        output.note(*(f"setup: {line}" for line in lines))
        return 1
    except KeyboardInterrupt:
        output.note("setup: interrupted; run it again, it goes on where it was")
        return 130
    return 0


def _run(step: Step) -> None:
    if step.done():
        output.note(f"ok    {step.name}")
        return
    output.note(f"make  {step.name} ({step.expect})")
    begin = time.monotonic()
    with output.never_silent(step.name):
        step.run()
    if not step.done():
        raise SetupError(f"{step.name}: made, but not found; remove the cache's copy and run again")
    output.note(f"ok    {step.name}, {time.monotonic() - begin:.0f} s")


@contextmanager
def _alone(cache: Cache) -> Iterator[None]:
    """One set-up at a time in a cache; a second one waits."""

    def wait(_pid: str) -> None:
        output.note("setup: another one runs in this cache; waiting for it")
        waiting.enter_context(output.never_silent("waiting for the other set-up"))

    with ExitStack() as held:
        try:
            with ExitStack() as waiting:
                held.enter_context(files.alone(cache.root / ".lock", SetupError(), wait))
        except OSError as error:
            raise SetupError(
                f"SOPERATOR_CACHE: {cache.root} cannot be written ({error.strerror}); "
                "set it to a folder that can"
            ) from error
        yield


if __name__ == "__main__":
    sys.exit(main())
