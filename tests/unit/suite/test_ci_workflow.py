"""The workflow of every change is well-formed and pinned, and runs what people run."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
# YAML 1.1 reads the key `on` as true; BaseLoader leaves every scalar as text.
WORKFLOW: dict[str, Any] = yaml.load(TEXT, yaml.BaseLoader)
JOBS: dict[str, Any] = WORKFLOW["jobs"]


def steps(job: str) -> list[dict[str, Any]]:
    return JOBS[job]["steps"]


def commands(job: str) -> list[str]:
    return [step["run"] for step in steps(job) if "run" in step]


@pytest.mark.feature("S001-72")
def test_it_runs_on_main_develop_versions_and_every_pull_request():
    push = {"branches": ["main", "develop"], "tags": ["v*"]}
    assert WORKFLOW["on"] == {"push": push, "pull_request": ""}


@pytest.mark.feature("S001-18", "S001-67", "S002-83")
def test_it_runs_the_commands_that_people_run():
    """A check that only the server knows is one that nobody can repeat."""
    assert commands("check") == ["make lint", "make lint-delivery", "make test-fast", "make docs"]
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    assert {command.split()[1] for command in commands("check")} <= targets
    assert JOBS["image"]["needs"] == "check"
    assert "continue-on-error" not in TEXT, "what fails is seen"
    recipe = re.search(r"^test-fast:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert recipe is not None
    assert re.search(r"-m pytest -m '[^']+'\n", recipe[1]), "all folders of tests"


@pytest.mark.feature("S001-68", "S001-70")
def test_the_image_is_tested_by_its_own_tag_before_it_is_pushed():
    login, build, test, push = commands("image")
    assert login.startswith("docker login ghcr.io"), "else the commit's image cannot be seen"
    assert build == "infra/setup/image/build.sh build"
    tag = '"$(infra/setup/image/build.sh tags | head -n 1)"'
    assert test == f"docker run --rm {tag} pytest /app/tests -v"
    assert push == "infra/setup/image/build.sh push"


@pytest.mark.feature("S001-69", "S001-71", "S002-83")
def test_only_main_and_versions_are_pushed_and_only_versions_released():
    push = steps("image")[-1]["if"]
    main_or_tag = "(github.ref == 'refs/heads/main' || github.ref_type == 'tag')"
    assert push == f"github.event_name == 'push' && {main_or_tag}"
    release = JOBS["release"]
    assert release["if"] == "github.event_name == 'push' && github.ref_type == 'tag'"
    assert release["needs"] == ["check", "image"], "a version that failed a check is no release"


def test_the_dev_container_is_built_and_runs_the_demo():
    build, demo = commands("devcontainer")
    assert build.split()[:3] == ["docker", "buildx", "build"]
    assert "--privileged" in demo.split(), "the local stack makes mount namespaces"
    assert demo.endswith("make demo REDUCED=1 DESTROY=1")


def test_the_dev_container_is_a_debian_with_what_set_up_does_not_install():
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert container["runArgs"] == ["--privileged"]
    assert container["remoteUser"] == "root"
    assert container["postCreateCommand"] == "make setup"
    dockerfile = (ROOT / ".devcontainer" / container["build"]["dockerfile"]).read_text()
    (go,) = re.findall(r"^FROM golang:([\d.]+)-bookworm@", dockerfile, re.MULTILINE)
    build = (ROOT / "infra" / "setup" / "tools" / "__main__.py").read_text()
    assert f"_GO: Final = ({go.replace('.', ', ')})" in build
    assert "python3.11-venv" in dockerfile


def test_every_image_that_we_build_on_is_named_by_its_digest():
    """A tag is whatever the registry says it is today; what renews the digest looks there."""
    renewed = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())["updates"]
    (docker,) = [each for each in renewed if each["package-ecosystem"] == "docker"]
    listed = subprocess.run(
        ["git", "ls-files", "*Dockerfile*"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    assert {f"/{Path(name).parent}".removesuffix("/.") or "/" for name in listed} == {
        each.rstrip("/") or "/" for each in docker["directories"]
    }
    for name in listed:
        text = (ROOT / name).read_text()
        bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
        assert bases, name
        assert all(re.search(r"@sha256:[0-9a-f]{64}$", base) for base in bases), name


def test_its_python_is_the_one_of_the_lock_files():
    (version,) = [
        step["with"]["python-version"]
        for step in steps("check")
        if "python" in step.get("uses", "")
    ]
    assert f"--python-version {version}" in MAKEFILE


@pytest.mark.feature("S001-18")
def test_every_action_is_pinned_to_a_commit_and_no_secret_is_used():
    used = re.findall(r"uses: (\S+) ?(.*)", TEXT)
    assert len(used) == 7
    for action, comment in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action)
        assert re.fullmatch(r"# v\d+\.\d+\.\d+", comment)
    assert "secrets." not in TEXT


@pytest.mark.feature("S001-18")
def test_every_job_may_read_and_only_the_one_that_writes_may_write():
    assert WORKFLOW["permissions"] == {"contents": "read"}
    given = {name: job["permissions"] for name, job in JOBS.items() if "permissions" in job}
    assert given == {
        "image": {"contents": "read", "packages": "write"},
        "release": {"contents": "write"},
    }


def test_no_text_of_a_pull_request_is_run_as_shell():
    """`${{ ... }}` in a `run` would paste foreign text into the script."""
    for job in JOBS:
        for command in commands(job):
            assert "${{" not in command
