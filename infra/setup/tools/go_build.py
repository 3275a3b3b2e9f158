"""Engine, plugins and kube-apiserver: Go programs built from modules pinned by their hashes."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from importlib import metadata
from pathlib import Path
from typing import IO, Final

from infra.local.engine import LANGUAGE_HOST, STAND_INS, is_usable, link_plugins, search_path
from infra.setup.tools.step import Progress, SetupError, Step, whole_folder
from infra.state import CHECKOUT, KUBE_APISERVER_VERSION, PULUMI_VERSION, Cache, State

_SOURCES: Final = Path(__file__).parent / "go"
_VERSION = re.compile(r"go(\d+)\.(\d+)")
_GO: Final = (1, 26)


def build(
    name: str, package: str, output: Path, progress: Progress, *, variables: Mapping[str, str]
) -> None:
    """Build `package` of the module in go/`name` into the file `output`.

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
    progress.now("go mod download")
    progress.execute(["go", "mod", "download"], cwd=source, env=env, fix=fix)
    link = "-s -w " + " ".join(f"-X {key}={value}" for key, value in variables.items())
    progress.execute(
        ["go", "build", "-v", "-ldflags", link.strip(), "-o", output, package],
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


def engine_step(cache: Cache) -> Step:
    """Make sure that a Pulumi engine with a Python language host can be run."""
    return Step(
        name=f"Pulumi engine v{PULUMI_VERSION}",
        expect="official download, else about 8 minutes of building on 2 cores, once",
        done=lambda: _on_path(cache) or is_usable(cache.pulumi),
        run=lambda progress: _install(cache, progress),
    )


def plugins_step(state: State, cache: Cache) -> Step:
    """Make sure that the plugins of the pinned SDKs can be run: official ones, else stand-ins."""
    return Step(
        name="Pulumi plugins command, kubernetes",
        expect="official download, else stand-ins",
        done=lambda: all(_plugin(state, name).exists() for name in STAND_INS),
        run=lambda progress: _install_plugins(state, cache, progress),
    )


def _on_path(cache: Cache) -> bool:
    others = [
        part
        for part in os.environ.get("PATH", os.defpath).split(os.pathsep)
        if Path(part) != cache.pulumi.parent
    ]
    found = shutil.which("pulumi", path=os.pathsep.join(others))
    return found is not None and is_usable(Path(found))


def _install(cache: Cache, progress: Progress) -> None:
    with whole_folder(cache.pulumi.parent) as folder:
        if _reachable(progress):
            try:
                _download(folder, progress)
                return
            except SetupError as error:
                progress.say(f"the official download ended early: {error}")
        progress.say("building the engine from Go modules instead; later runs skip this")
        build(
            "pulumi",
            _PACKAGE,
            folder / "pulumi",
            progress,
            variables={_VERSION_VARIABLE: f"v{PULUMI_VERSION}"},
        )
        # Beside its engine a language host is found without PATH, and without the warning.
        shutil.copy2(
            CHECKOUT / "infra" / "local" / "plugins" / "bin" / LANGUAGE_HOST, folder / LANGUAGE_HOST
        )


def _download(folder: Path, progress: Progress) -> None:
    """Put the released engine and its language hosts into `folder`; refuse an unknown archive."""
    if platform.machine() != "x86_64":
        raise SetupError(f"no checksum of the release is known for {platform.machine()}")
    url = f"{_SITE}/releases/sdk/pulumi-v{PULUMI_VERSION}-linux-x64.tar.gz"
    with tempfile.TemporaryFile(dir=folder) as file:
        _fetch(url, file, _ENGINE_SHA256, progress)
        with tarfile.open(fileobj=file) as archive:
            for member in archive:
                if member.isfile():
                    member.name = Path(member.name).name
                    archive.extract(member, folder, filter="data")


def _fetch(url: str, file: IO[bytes], sha256: str, progress: Progress) -> None:
    """Write what lies at `url` into `file`, from whose begin it can be read; refuse another sum."""
    found = hashlib.sha256()
    try:
        with urllib.request.urlopen(url, timeout=_SILENT_S) as source:  # noqa: S310
            while chunk := source.read(_CHUNK_BYTES):
                file.write(chunk)
                found.update(chunk)
                progress.now(f"{url}: {file.tell() / 1e6:.0f} MB")
    except (OSError, HTTPException) as error:
        raise SetupError(f"{url}: {error}") from error
    if found.hexdigest() != sha256:
        raise SetupError(
            f"{url}: its SHA-256 is {found.hexdigest()}, not {sha256}; nothing of it is used"
        )
    file.seek(0)


def _install_plugins(state: State, cache: Cache, progress: Progress) -> None:
    env = {
        "PULUMI_HOME": str(state.pulumi_home),
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PATH": search_path(os.environ.get("PATH", os.defpath), cache, state.pulumi_home),
    }
    pulumi = shutil.which("pulumi", path=env["PATH"])
    if pulumi is not None and _reachable(progress):
        for name, package in STAND_INS.items():
            try:
                _install_plugin(pulumi, name, metadata.version(package), env, progress)
            except SetupError as error:
                progress.say(" ".join(str(error).splitlines()[-2:]))
    for name in link_plugins(state.pulumi_home):
        progress.say(f"{name}: the official plugin cannot be had here; our stand-in is used")


def _install_plugin(
    pulumi: str, name: str, version: str, env: Mapping[str, str], progress: Progress
) -> None:
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
        _fetch(f"{_SITE}/releases/plugins/{archive}", file, sums[archive], progress)
        wanted = ["plugin", "install", "resource", name, version, "--reinstall", "--file"]
        progress.execute([pulumi, *wanted, file.name], env=env, fix="a stand-in is next")


def _plugin(state: State, name: str) -> Path:
    folder = f"resource-{name}-v{metadata.version(STAND_INS[name])}"
    return state.pulumi_home / "plugins" / folder / f"pulumi-resource-{name}"


def _reachable(progress: Progress) -> bool:
    """Whether Pulumi's site answers; asked once a step and with a short patience."""
    progress.now(f"asking {_SITE}")
    try:
        with urllib.request.urlopen(_SITE, timeout=_REACHED_IN_S):
            return True
    except urllib.error.HTTPError as error:
        refused = f"answers {error.code}"
    except OSError as error:
        refused = f"cannot be reached ({getattr(error, 'reason', error)})"
    progress.say(f"{_SITE} {refused}: no official download")
    return False


_VERSION_PACKAGE = "k8s.io/component-base/version"


def apiserver_step(cache: Cache) -> Step:
    """Make sure that a kube-apiserver can be run."""
    return Step(
        name=f"kube-apiserver v{KUBE_APISERVER_VERSION}",
        expect="about 8 minutes of building on 2 cores, once",
        done=lambda: shutil.which("kube-apiserver") is not None or cache.kube_apiserver.exists(),
        run=lambda progress: _build(cache, progress),
    )


def _build(cache: Cache, progress: Progress) -> None:
    major, minor, _ = KUBE_APISERVER_VERSION.split(".")
    with whole_folder(cache.kube_apiserver.parent) as folder:
        build(
            "kube-apiserver",
            "k8s.io/kubernetes/cmd/kube-apiserver",
            folder / "kube-apiserver",
            progress,
            variables={
                f"{_VERSION_PACKAGE}.gitVersion": f"v{KUBE_APISERVER_VERSION}",
                f"{_VERSION_PACKAGE}.gitMajor": major,
                f"{_VERSION_PACKAGE}.gitMinor": minor,
            },
        )
