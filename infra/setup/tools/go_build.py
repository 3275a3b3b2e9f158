"""Engine, plugins and kube-apiserver: Go programs built from modules pinned by their hashes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

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
_REACHED_IN_S: Final = 5
_PACKAGE: Final = "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi"
_VERSION_VARIABLE: Final = "github.com/pulumi/pulumi/sdk/v3/go/common/version.Version"
_INSTALL: Final = (
    "import sys; from pulumi.automation import PulumiCommand; from semver import VersionInfo; "
    "PulumiCommand.install(sys.argv[1], VersionInfo.parse(sys.argv[2]))"
)


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
    root = folder / "download"
    progress.execute(
        [sys.executable, "-c", _INSTALL, root, PULUMI_VERSION], fix="building it is next"
    )
    for file in (root / "bin").iterdir():
        file.rename(folder / file.name)
    shutil.rmtree(root)


def _install_plugins(state: State, cache: Cache, progress: Progress) -> None:
    env = {
        "PULUMI_HOME": str(state.pulumi_home),
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PATH": search_path(os.environ.get("PATH", os.defpath), cache, state.pulumi_home),
    }
    pulumi = shutil.which("pulumi", path=env["PATH"])
    if pulumi is not None and _reachable(progress):
        for name, package in STAND_INS.items():
            wanted = ["plugin", "install", "resource", name, metadata.version(package)]
            try:
                progress.execute(
                    [pulumi, *wanted, "--reinstall"], env=env, fix="a stand-in is next"
                )
            except SetupError as error:
                progress.say(str(error).splitlines()[-2])
    for name in link_plugins(state.pulumi_home):
        progress.say(f"{name}: the official plugin cannot be had here; our stand-in is used")


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
