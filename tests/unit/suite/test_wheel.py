"""The wheel holds what the code reads: stacks, price books, templates, plugins' launchers."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.installed_wheel import check

ROOT = Path(__file__).parents[3]
PACKAGES = ("stacks", "cost", "infra", "workloads")


def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module", autouse=True)
def no_other_code() -> Iterator[None]:
    """Without the PYTHONPATH of who runs the tests: it would win over the wheel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONPATH", raising=False)
        yield


@pytest.fixture(scope="module")
def soperator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of an environment that has the wheel, and the packages of this one."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    leave = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tree / name, ignore=leave)
    for path in (
        *ROOT.glob("requirements*.in"),
        *map(ROOT.joinpath, ("pyproject.toml", "README.md", "LICENSE")),
    ):
        shutil.copy(path, tree)
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(folder)!r})"
    run(sys.executable, "-c", build, cwd=tree)
    (wheel,) = folder.glob("*.whl")
    env = folder / "env"
    run(sys.executable, "-m", "venv", "--without-pip", env, cwd=folder)
    (packages,) = env.glob("lib/python3*/site-packages")
    # Without this line the environment is empty; the checkout is in none of these packages' paths.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    uv = Path(sys.executable).with_name("uv")
    python = env / "bin" / "python"
    run(uv, "pip", "install", "--offline", "--no-deps", "--python", python, wheel, cwd=folder)
    return env / "bin" / "soperator"


def test_the_wheel_prices_every_shipped_stack_and_starts_the_plugins(soperator: Path) -> None:
    shown = run(
        soperator.with_name("python"), "-c", "import infra, sys; print(infra.__path__)",
        cwd=soperator.parent,
    ).stdout  # fmt: skip
    assert str(ROOT) not in shown
    assert check(soperator) == []


def test_the_wheel_has_every_file_of_the_packages(soperator: Path) -> None:
    (packages,) = soperator.parents[1].glob("lib/python3*/site-packages")
    tracked = run("git", "ls-files", *PACKAGES, cwd=ROOT).stdout.splitlines()
    assert [path for path in tracked if not (packages / path).is_file()] == []


def test_the_command_says_its_version(soperator: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert run(soperator, "--version", cwd=soperator.parent).stdout == f"soperator {version}\n"
