"""The jobs' image as podman and buildah make it, and what holds in it; a registry takes it.

How it is made without docker: tests/image_stand.py; of what base, the result says.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.image_stand import prepared, ran, registry

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(1800)]


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


@pytest.fixture(scope="module")
def built(sources, tmp_path_factory) -> Iterator[Built]:
    del sources  # without the folder nothing here is asked for
    clone, docker, base = prepared(tmp_path_factory.mktemp("image"))
    command = ["infra/setup/image/build.sh", "build"]
    made = ran(command, cwd=clone, env={**os.environ, "DOCKER": str(docker)}).stdout.split()
    container = ran(["buildah", "from", f"localhost/{made[-1]}"]).stdout.strip()
    try:
        yield Built(clone=clone, docker=docker, name=made[-1], container=container, base=base)
    finally:
        ran(["buildah", "rm", container])
        # By its id: one of a test has a registry's name too.
        found = ran(["podman", "image", "inspect", f"localhost/{made[-1]}"]).stdout
        ran(["podman", "rmi", "--force", json.loads(found)[0]["Id"]])


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
    with registry(tmp_path) as host:
        team = f"{host}/team"
        ran(["podman", "tag", f"localhost/{built.name}", f"{team}/{built.name}"])
        said = built.script("push", REGISTRY=team)
        assert f"jobs[].container: {host}#team/{built.name}" in said
        place = tmp_path / "registry/docker/registry/v2/repositories/team/soperator-jobs"
        (tag,) = (place / "_manifests/tags").iterdir()
        assert tag.name == built.name.partition(":")[2]
        again = subprocess.run(
            ["infra/setup/image/build.sh", "push"],
            cwd=built.clone,
            env={**os.environ, "DOCKER": str(built.docker), "REGISTRY": team},
            capture_output=True,
            text=True,
            check=True,
        )
        assert "is there already, and is left as it is" in again.stderr
        # Another machine's build takes what is there.
        said = built.script("build", REGISTRY=team)
        assert said.split() == [f"{team}/{built.name}"]
