"""What a stack left in the cloud: listed with its price, deleted only when named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.providers.nebius import sdk
from infra.providers.nebius.provider import NebiusProvider
from infra.state import CHECKOUT
from tests.engine.nebius_project import pulumi_binary
from tests.engine.program_env import Program, running_program

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(pulumi_binary() is None, reason="no pulumi: run `make setup`"),
]
FILESYSTEM = "nebius:compute/v1:Filesystem"
_STACK = "urn:pulumi:local::soperator-stack::soperator:infra:Stack"
JAIL = (
    f"{_STACK}::local",
    f"{_STACK}$soperator:infra:Filesystems::local",
    f"{_STACK}$soperator:infra:Filesystems${FILESYSTEM}::local-jail",
)
Orphans = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with running_program(tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture
def soperator(program: Program) -> Orphans:
    """The command in the environment of the program."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "infra.cli.main", "cluster", "orphans", *arguments],
            cwd=CHECKOUT,
            env={**program.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}"
                 + program.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip

    return run


@pytest.fixture
def make(program: Program, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Makes a filesystem that no state knows, as a lost state leaves it; its id."""
    for name in ("SOPERATOR_NEBIUS_ENDPOINT", "NEBIUS_IAM_TOKEN"):
        monkeypatch.setenv(name, program.environ[name])
    sdk.shared_sdk.cache_clear()
    provider = NebiusProvider()

    def filesystem(stack: str, name: str) -> str:
        declared: dict[str, Any] = {
            "metadata": {"parent_id": "project-e00p", "name": name},
            "spec": {"type": "network-ssd", "size_gibibytes": 100},
        }
        inputs, problems = provider.check(FILESYSTEM, {}, declared)
        assert not problems
        urn = f"urn:pulumi:{stack}::soperator-stack::{FILESYSTEM}::{name}"
        return provider.create(FILESYSTEM, urn, inputs, False)[0]

    return filesystem


def listed(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Id -> US dollars a month."""
    assert done.returncode == 0, done.stderr
    return {each["id"]: each["usd_per_month"] for each in json.loads(done.stdout)["leftovers"]}


def test_a_stack_that_left_nothing_says_so(soperator: Orphans) -> None:
    done = soperator("--stack", "local")
    assert (done.returncode, done.stdout) == (0, "local: nothing is left over in project-e00p\n")


def test_two_stacks_of_one_project_never_list_or_delete_each_others(
    soperator: Orphans, make: Callable[..., str]
) -> None:
    mine, other = make("local", "local-lost"), make("prod", "prod-lost")
    assert listed(soperator("--stack", "local", "--format", "json")) == {mine: "8.00"}
    refused = soperator("--stack", "local", "--purge", mine, other)
    assert refused.returncode == 1
    assert f"{other}: not among the orphans of this stack, so nothing was deleted" in (
        refused.stderr
    )
    table = soperator("--stack", "local").stdout
    assert mine in table
    assert "In all $8.00 a month." in table
    done = soperator("--stack", "local", "--purge", mine)
    assert done.returncode == 0, done.stderr
    assert "nothing is left over" in done.stdout


def test_what_a_state_knows_is_no_orphan_until_the_state_is_lost(
    program: Program, soperator: Orphans
) -> None:
    # An up of the jail alone: it ends where the program wants what was left out.
    program("up", "--yes", "--skip-preview", "--stack=local", *(f"--target={urn}" for urn in JAIL))
    assert "computefilesystem-" in program("stack", "export", "--stack=local").stdout
    assert listed(soperator("--stack", "local", "--format", "json")) == {}
    for path in (program.root / "offline").rglob("local.json*"):
        path.unlink()
    (jail,) = listed(soperator("--stack", "local", "--format", "json"))
    assert jail.startswith("computefilesystem-")


def test_ids_without_purge_delete_nothing(soperator: Orphans) -> None:
    done = soperator("--stack", "local", "computefilesystem-1")
    assert done.returncode == 2
    assert "give --purge and the ids together" in done.stderr
