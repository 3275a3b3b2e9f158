"""Builds a program from Go modules that are pinned, with their hashes, in infra/setup/go/."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from infra.setup.step import Progress, SetupError

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
