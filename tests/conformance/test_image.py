"""The jobs' image as podman and buildah make it, and what holds in it; a registry takes it.

podman stands where docker is: infra/setup/image/build.sh takes any program with docker's words. The
base of the Dockerfile is pulled, or, where no registry is reached, an image of this machine with
that name (`podman import`), which the result says. Containers run in a chroot: as root, without
what a container engine needs of the kernel.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.local.process import is_listening
from infra.operate.conformance.sources import NotRunError
from infra.state import CHECKOUT
from tests.ports import free_ports

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(1800)]
_PROGRAMS = ("podman", "buildah", "docker-registry")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The image of a clone without changes, and the words that made it."""

    clone: Path
    docker: Path
    name: str
    container: str
    base: str
    """Of what the image is made: `declared` or `of this machine`."""

    def script(self, verb: str, **environ: str) -> str:
        """What build.sh prints for the verb."""
        command = ["infra/setup/image/build.sh", verb]
        env = {**os.environ, "DOCKER": str(self.docker), **environ}
        return ran(command, cwd=self.clone, env=env).stdout

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The image's entry point with these words."""
        inside = ["buildah", "run", "--isolation", "chroot", self.container, "--"]
        return subprocess.run(
            [*inside, "/usr/local/bin/entrypoint", *words],
            capture_output=True,
            text=True,
            check=False,
        )


def ran(
    command: Sequence[str], *, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {(done.stdout + done.stderr)[-3000:]}"
    return done


@pytest.fixture(scope="module")
def built(sources, tmp_path_factory) -> Iterator[Built]:
    del sources  # without the folder nothing here is asked for
    if missing := [name for name in _PROGRAMS if shutil.which(name) is None]:
        raise NotRunError(f"not installed: {', '.join(missing)} (Debian's packages of these names)")
    if os.geteuid() != 0:
        raise NotRunError("the image is built in a chroot, which takes root")
    folder = tmp_path_factory.mktemp("image")
    clone = folder / "clone"
    ran(["git", "clone", "-q", str(CHECKOUT), str(clone)])
    ran(["git", "-C", str(clone), "checkout", "-q", "--detach"])
    docker = folder / "docker"
    options = base_options(clone)
    docker.write_text(_DOCKER.replace("BASE", options))
    docker.chmod(0o755)
    command = ["infra/setup/image/build.sh", "build"]
    made = ran(command, cwd=clone, env={**os.environ, "DOCKER": str(docker)}).stdout.split()
    container = ran(["buildah", "from", f"localhost/{made[-1]}"]).stdout.strip()
    try:
        base = "of this machine" if options else "declared"
        yield Built(clone=clone, docker=docker, name=made[-1], container=container, base=base)
    finally:
        ran(["buildah", "rm", container])
        ran(["podman", "rmi", "--force", f"localhost/{made[-1]}"])


def base_options(clone: Path) -> str:
    """Options of a build that take the base of this machine, where the declared one is not had."""
    text = (clone / "Dockerfile").read_text(encoding="utf-8")
    (declared,) = set(re.findall(r"^FROM (python:\S+)", text, re.MULTILINE))
    name = declared.partition("@")[0]
    if subprocess.run(["podman", "pull", "-q", f"docker.io/library/{declared}"]).returncode == 0:
        return ""
    if subprocess.run(["podman", "image", "exists", f"docker.io/library/{name}"]).returncode != 0:
        raise NotRunError(f"no base: {declared} cannot be pulled, and podman has no image {name}")
    return f"--build-context {declared}=container-image://docker.io/library/{name}"


@pytest.mark.feature("S001-19", "S001-65", "S003-82")
def test_the_image_is_named_by_its_commit_and_says_it(built: Built, record_property) -> None:
    commit = ran(["git", "-C", str(built.clone), "rev-parse", "HEAD"]).stdout.strip()
    assert built.name == f"soperator-jobs:sha-{commit[:12]}"
    (image,) = json.loads(ran(["podman", "image", "inspect", f"localhost/{built.name}"]).stdout)
    assert image["Labels"]["org.opencontainers.image.revision"] == commit
    assert built.script("tags").split() == [built.name]
    record_property("versions", f"base {built.base}")
    record_property("bytes of the image", image["Size"])


@pytest.mark.feature("S001-19", "S001-66")
def test_its_tests_pass_in_it(built: Built, record_property) -> None:
    done = built.run("pytest", "-q", "-p", "no:cacheprovider", "/app/tests")
    assert done.returncode == 0, done.stdout[-3000:]
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) >= 9
    record_property("tests in the image", int(passed))


@pytest.mark.feature("S001-61")
def test_its_benchmark_starts_ranks_and_is_no_success_without_a_gpu(built: Built) -> None:
    done = built.run("benchmark", "--mode", "health")
    assert done.returncode != 0
    assert "no gates for platform" in done.stderr
    rehearsed = "/usr/local/bin/entrypoint benchmark --mode health --config accept_cpu"
    line = f"RANKS_PER_NODE=2 {rehearsed} --output /root/result.json >&2 && cat /root/result.json"
    done = built.run("bash", "-c", line)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)
    assert (result["outcome"], result["hardware"]["world_size"]) == ("PASS", 2)
    commit = ran(["git", "-C", str(built.clone), "rev-parse", "HEAD"]).stdout.strip()
    assert (result["run"]["launcher"], result["run"]["git_revision"]) == ("torchrun", commit)


@pytest.mark.feature("S003-83")
def test_a_registry_takes_it_and_a_second_push_sends_nothing(built: Built, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    config = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(tmp_path / "registry")}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    (tmp_path / "config.yml").write_text(json.dumps(config))
    serving = subprocess.Popen(
        ["docker-registry", "serve", str(tmp_path / "config.yml")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not is_listening(port):
            assert serving.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        registry = f"127.0.0.1:{port}/team"
        ran(["podman", "tag", f"localhost/{built.name}", f"{registry}/{built.name}"])
        said = built.script("push", REGISTRY=registry)
        assert f"jobs[].container: 127.0.0.1:{port}#team/{built.name}" in said
        place = tmp_path / "registry/docker/registry/v2/repositories/team/soperator-jobs"
        (tag,) = (place / "_manifests/tags").iterdir()
        assert tag.name == built.name.partition(":")[2]
        again = subprocess.run(
            ["infra/setup/image/build.sh", "push"],
            cwd=built.clone,
            env={**os.environ, "DOCKER": str(built.docker), "REGISTRY": registry},
            capture_output=True,
            text=True,
            check=True,
        )
        assert "is there already, and is left as it is" in again.stderr
        # Another machine's build takes what is there.
        said = built.script("build", REGISTRY=registry)
        assert said.split() == [f"{registry}/{built.name}"]
    finally:
        serving.terminate()
        serving.wait()
