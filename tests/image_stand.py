"""The jobs' image made on this machine: podman where docker is, and a registry on loopback.

infra/setup/image/build.sh takes any program with docker's words. The base of the Dockerfile is
pulled, or, where no registry is reached, an image of this machine with that name (`podman import`).
Containers run in a chroot: as root, without what a container engine needs of the kernel.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from infra.local.process import is_listening
from infra.operate.conformance.sources import NotRunError
from infra.state import CHECKOUT
from tests.ports import free_ports

PROGRAMS = ("podman", "buildah", "docker-registry")
_DOCKER = """#!/bin/bash
export BUILDAH_ISOLATION=chroot
case "$1 ${2:-}" in
  "buildx build") set -- "$@" --layers=false --network=host BASE ;;
  "push "*) shift; set -- push --tls-verify=false "$@" ;;
  "pull "*) shift; set -- pull --tls-verify=false "$@" ;;
  # podman 4 inspects lists of manifests alone; the registry is asked as docker asks it.
  "manifest inspect")
    place=${3#*/} tag=${3##*:}
    exec curl -fsS -o /dev/null -H "Accept: application/vnd.oci.image.manifest.v1+json" \\
      -H "Accept: application/vnd.docker.distribution.manifest.v2+json" \\
      "http://${3%%/*}/v2/${place%:*}/manifests/$tag" ;;
esac
exec podman "$@"
"""


def ran(
    command: Sequence[str], *, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What the command did; it ends well."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {(done.stdout + done.stderr)[-3000:]}"
    return done


def prepared(folder: Path) -> tuple[Path, Path, str]:
    """A clone of HEAD, the program in docker's place, and of what an image of it is made."""
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        raise NotRunError(f"not installed: {', '.join(missing)} (Debian's packages of these names)")
    if os.geteuid() != 0:
        raise NotRunError("the image is built in a chroot, which takes root")
    clone = folder / "clone"
    ran(["git", "clone", "-q", str(CHECKOUT), str(clone)])
    ran(["git", "-C", str(clone), "checkout", "-q", "--detach"])
    docker, options = folder / "docker", _base_options(clone)
    docker.write_text(_DOCKER.replace("BASE", options))
    docker.chmod(0o755)
    return clone, docker, "of this machine" if options else "declared"


def _base_options(clone: Path) -> str:
    """Options of a build that take the base of this machine, where the declared one is not had."""
    text = (clone / "Dockerfile").read_text(encoding="utf-8")
    (declared,) = set(re.findall(r"^FROM (python:\S+)", text, re.MULTILINE))
    name = declared.partition("@")[0]
    if subprocess.run(["podman", "pull", "-q", f"docker.io/library/{declared}"]).returncode == 0:
        return ""
    if subprocess.run(["podman", "image", "exists", f"docker.io/library/{name}"]).returncode != 0:
        raise NotRunError(f"no base: {declared} cannot be pulled, and podman has no image {name}")
    return f"--build-context {declared}=container-image://docker.io/library/{name}"


@contextlib.contextmanager
def registry(folder: Path) -> Iterator[str]:
    """HOST:PORT of an empty registry whose files are in the folder."""
    (port,) = free_ports(1)
    config = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    (folder / "config.yml").write_text(json.dumps(config))
    serving = subprocess.Popen(
        ["docker-registry", "serve", str(folder / "config.yml")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not is_listening(port):
            assert serving.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        serving.terminate()
        serving.wait()
