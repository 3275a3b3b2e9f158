"""The image is built, tagged and started as the delivery page says; docker itself is recorded."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
ENTRYPOINT = ROOT / "infra" / "setup" / "image" / "entrypoint.sh"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder at the head of PATH whose docker, torchrun and pulumi write down what they get."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("docker", "torchrun"):
        program(folder / name, 'echo "$(basename "$0") $*"')
    program(folder / "docker", '[ "$1" != manifest ] || exit 1\necho docker "$@"')  # nothing there
    program(folder / "pulumi", 'echo "cr.eu-north1.nebius.cloud/e00Registry"')
    program(folder / "python", "echo 2")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for name in ("REGISTRY", "GITHUB_REF_NAME", "DOCKER", "NNODES", "RANKS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    return folder


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository on main with one commit and the script in it."""
    folder = tmp_path / "checkout"
    (folder / "infra" / "setup" / "image").mkdir(parents=True)
    script = ROOT / "infra" / "setup" / "image" / "build.sh"
    (folder / "infra" / "setup" / "image" / "build.sh").write_bytes(script.read_bytes())
    (folder / "infra" / "setup" / "image" / "build.sh").chmod(0o755)
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=first")
    return folder


def git(folder: Path, *arguments: str) -> str:
    author = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    return subprocess.run(
        ["git", "-C", folder, *author, *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


def build(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [folder / "infra" / "setup" / "image" / "build.sh", *words], capture_output=True, text=True
    )


def sha(folder: Path) -> str:
    return f"sha-{git(folder, 'rev-parse', '--short=12', 'HEAD')}"


@pytest.mark.feature("S001-73", "S003-83")
def test_main_is_tagged_with_its_commit_and_latest_and_a_release_with_its_version(
    checkout: Path, programs: Path
) -> None:
    tags = build(checkout, "tags", "--registry", "ghcr.io/Some-Org").stdout.split()
    assert tags == [f"ghcr.io/some-org/soperator-jobs:{tag}" for tag in (sha(checkout), "latest")]
    git(checkout, "tag", "v1.2.0")
    git(checkout, "tag", "other")
    git(checkout, "checkout", "--quiet", "--detach")
    tags = build(checkout, "tags", "--registry", "ghcr.io/org").stdout.split()
    assert [tag.partition(":")[2] for tag in tags] == [sha(checkout), "v1.2.0"]
    git(checkout, "commit", "--quiet", "--allow-empty", "--message=second")
    tags = build(checkout, "tags").stdout.split()
    assert tags == [f"soperator-jobs:{sha(checkout)}"], "a version is one commit's"
    git(checkout, "checkout", "--quiet", "-b", "maintenance")
    tags = build(checkout, "tags").stdout.split()
    assert tags == [f"soperator-jobs:{sha(checkout)}"], "the latest is main's alone"


def test_a_pull_request_gets_no_tag_but_its_commits(
    checkout: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_REF_NAME", "12/merge")
    assert build(checkout, "tags").stdout.split() == [f"soperator-jobs:{sha(checkout)}"]


@pytest.mark.feature("S001-65", "S003-82")
def test_a_build_names_every_tag_and_the_revision(checkout: Path, programs: Path) -> None:
    first, *_ = build(checkout, "build").stdout.splitlines()
    words = first.split()
    assert words[:4] == ["docker", "buildx", "build", "--load"]
    assert f"REVISION={git(checkout, 'rev-parse', 'HEAD')}" in words
    assert words.count("--tag") == 2
    assert words[-1] == "."


@pytest.mark.feature("S003-83")
def test_the_push_goes_to_the_registry_of_the_stack(checkout: Path, programs: Path) -> None:
    lines = build(checkout, "push", "--stack", "own").stdout.splitlines()
    image = "cr.eu-north1.nebius.cloud/e00registry/soperator-jobs"
    named = f"docker buildx imagetools create --tag {image}:latest {image}:{sha(checkout)}"
    assert lines[:-1] == [f"docker push {image}:{sha(checkout)}", named]
    container = f"cr.eu-north1.nebius.cloud#e00registry/soperator-jobs:{sha(checkout)}"
    assert lines[-1] == f"jobs[].container: {container}"


@pytest.mark.feature("S003-83")
def test_a_tag_that_stacks_pin_is_not_pushed_over(checkout: Path, programs: Path) -> None:
    program(programs / "docker", 'case "$*" in manifest*sha-*) exit 0 ;; esac\necho docker "$@"')
    done = build(checkout, "push", "--registry", "ghcr.io/org")
    image = "ghcr.io/org/soperator-jobs"
    named = f"docker buildx imagetools create --tag {image}:latest {image}:{sha(checkout)}"
    assert done.stdout.splitlines()[0] == named
    assert f"{image}:{sha(checkout)} is there already" in done.stderr


def test_a_version_is_the_image_that_its_commit_has_already(checkout: Path, programs: Path) -> None:
    """It was built anew, so a release was another image than the one that main had tested."""
    git(checkout, "tag", "v1.2.0")
    git(checkout, "checkout", "--quiet", "--detach")
    program(programs / "docker", 'case "$*" in manifest*v1*) exit 1 ;; esac\necho docker "$@"')
    image = "ghcr.io/org/soperator-jobs"
    commits = f"{image}:{sha(checkout)}"
    done = build(checkout, "build", "--registry", "ghcr.io/org")
    assert f"docker pull {commits}" in done.stderr
    assert done.stdout.splitlines() == [
        f"docker tag {commits} {image}:v1.2.0",
        commits,
        f"{image}:v1.2.0",
    ]
    done = build(checkout, "push", "--registry", "ghcr.io/org")
    named = f"docker buildx imagetools create --tag {image}:v1.2.0 {commits}"
    assert done.stdout.splitlines()[:-1] == [named]


def test_a_stack_without_a_registry_is_told_how_to_declare_one(
    checkout: Path, programs: Path
) -> None:
    program(programs / "pulumi", "exit 255")
    done = build(checkout, "push", "--stack", "own")
    assert done.returncode == 1
    assert "declare storage.registry_gib, then pulumi up" in done.stderr


@pytest.mark.feature("S001-65", "S003-82")
def test_a_tree_with_changes_is_built_under_its_own_name_and_never_pushed(
    checkout: Path, programs: Path
) -> None:
    (checkout / "stacks").mkdir()
    (checkout / "stacks" / "Pulumi.own.yaml").write_text("of no image")
    assert build(checkout, "tags").stdout.split()[0] == f"soperator-jobs:{sha(checkout)}"
    (checkout / "workloads").mkdir()
    (checkout / "workloads" / "mine.py").write_text("")
    assert build(checkout, "tags").stdout.split() == [f"soperator-jobs:{sha(checkout)}-dirty"]
    done = build(checkout, "push", "--registry", "ghcr.io/org")
    assert (done.returncode, done.stdout) == (1, "")
    assert "the tree has changes" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "say tags, build or push"),
        (["ship"], "ship: is none of tags, build, push"),
        (["build", "--tag", "x"], "--tag: is none of --stack, --registry, --name"),
        (["push", "--registry"], "--registry: a value is missing"),
        (["push"], "push needs --stack with a registry, or --registry"),
    ],
)
def test_wrong_words_are_refused(
    words: list[str], message: str, checkout: Path, programs: Path
) -> None:
    done = build(checkout, *words)
    assert done.returncode == 1
    assert message in done.stderr


def start(*words: str) -> list[str]:
    done = subprocess.run([ENTRYPOINT, *words], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.feature("S001-61")
def test_the_entry_point_runs_the_benchmark_on_every_gpu_by_torchrun(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "node-0")
    monkeypatch.setenv("NNODES", "2")
    words = start("benchmark", "--mode", "distributed")
    assert words[0] == "torchrun"
    assert {"--nnodes=2", "--node-rank=0", "--nproc-per-node=2", "--master-addr=node-0"} <= {*words}
    assert words[-5:-2] == ["workloads/accept/benchmark.py", "--config", "accept_gpu"]
    assert words[-2:] == ["--mode", "distributed"], "what is typed comes last, and wins"


@pytest.mark.feature("S001-61", "S001-66")
def test_the_entry_point_runs_any_other_program_as_it_is(programs: Path) -> None:
    assert start("torchrun", "--nnodes=2", "x.py") == ["torchrun", "--nnodes=2", "x.py"]


@pytest.mark.feature("S001-19", "S001-65", "S001-66")
def test_everything_that_the_image_copies_is_sent_to_the_builder() -> None:
    """The build's context leaves out what .dockerignore does not name."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    sent = [line.removeprefix("!") for line in lines if line.startswith("!")]
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
        for source in line.split()
    ]
    assert len(copied) == 6
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(Path(source).is_relative_to(each) for each in sent), source
    (locks,) = re.findall(r"^COPY (.+) /locks/$", DOCKERFILE, re.MULTILINE)
    assert {Path(lock).name for lock in locks.split()} == {*re.findall(r"/locks/(\S+)", DOCKERFILE)}
    image = (ROOT / "infra" / "setup" / "image" / "image.lock").read_text()
    assert re.search(r"^pytest==", image, re.MULTILINE)


@pytest.mark.feature("S001-19")
def test_the_image_starts_the_entry_point_with_what_it_installed() -> None:
    (venv,) = re.findall(r"--python (\S+)/bin/python ", DOCKERFILE)
    (entry,) = re.findall(r"^COPY \S+/entrypoint\.sh (\S+)$", DOCKERFILE, re.MULTILINE)
    path = f"ENV PATH={venv}/bin:"
    for line in (f"COPY --from=packages {venv} {venv}\n", path, f'ENTRYPOINT ["{entry}"]\n'):
        assert f"\n{line}" in DOCKERFILE


@pytest.mark.feature("S001-19")
def test_the_image_has_the_python_of_the_lock_files() -> None:
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    (base,) = set(bases)
    (version,) = re.fullmatch(r"python:(3\.\d+)-slim-bookworm@sha256:[0-9a-f]{64}", base).groups()
    assert f"--python-version {version}" in (ROOT / "Makefile").read_text()
