"""What a stack left in the cloud: listed with its price, deleted only when named."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
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
    pytest.mark.usefixtures("forks"),
]
FILESYSTEM = "nebius:compute/v1:Filesystem"
_STACK = "urn:pulumi:local::soperator-stack::soperator:infra:Stack"
JAIL = (
    f"{_STACK}::local",
    f"{_STACK}$soperator:cloud:StateId::local-state",
    f"{_STACK}$soperator:infra:Filesystems::local",
    f"{_STACK}$soperator:infra:Filesystems${FILESYSTEM}::local-jail",
)
TARGETS = [f"--target={urn}" for urn in JAIL]
Orphans = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with running_program(tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture
def soperator(program: Program) -> Orphans:
    """The command in the environment of the program."""
    return partial(cluster, program, "orphans")


def cluster(program: Program, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`soperator cluster` in the environment of the program."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{program.environ['PATH']}"
    return subprocess.run(
        [sys.executable, "-m", "infra.cli.main", "cluster", *arguments],
        cwd=CHECKOUT,
        env={**program.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def elsewhere(program: Program, tmp_path: Path) -> Iterator[Program]:
    """The same cloud, deployed to from another backend."""
    with running_program(tmp_path / "state") as other:
        for name in ("SOPERATOR_NEBIUS_ENDPOINT", "NEBIUS_IAM_TOKEN"):
            other.environ[name] = program.environ[name]
        yield other


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
        inputs, problems = provider.of(FILESYSTEM).check({}, declared)
        assert not problems
        urn = f"urn:pulumi:{stack}::soperator-stack::{FILESYSTEM}::{name}"
        return provider.of(FILESYSTEM).create(urn, inputs)[0]

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
    assert f"{other} is no orphan, so nothing was deleted" in refused.stderr
    table = soperator("--stack", "local").stdout
    assert mine in table
    assert "In all $8.00 a month." in table
    done = soperator("--stack", "local", "--purge", mine)
    assert done.returncode == 0, done.stderr
    assert "nothing is left over" in done.stdout


def up_of_the_jail(program: Program) -> set[str]:
    """Ids of filesystems in the state after an `up` of the jail and the state's id alone."""
    # It ends where the program wants what was left out.
    program("up", "--yes", "--skip-preview", "--stack=local", *TARGETS)
    exported = program("stack", "export", "--stack=local").stdout
    return set(re.findall(r'"(computefilesystem-[a-z0-9]+)"', exported))


@pytest.mark.timeout(900)  # the engine starts 24 times
def test_a_second_backend_has_nothing_of_a_stack_before_it_is_given_over(
    program: Program, elsewhere: Program
) -> None:
    (jail,) = up_of_the_jail(program)
    exported = program("stack", "export", "--stack=local").stdout
    (state_id,) = set(re.findall(r'"state-id": "([0-9a-f]{16})"', exported))

    said = elsewhere.preview("local", *TARGETS).text
    assert f"local: another state has this stack in project-e00p: state {state_id}" in said
    assert f"soperator cluster adopt state {state_id} --stack local" in said
    assert up_of_the_jail(elsewhere) == set()

    done = cluster(elsewhere, "orphans", "--stack", "local")
    assert f"state {state_id}, which is not in this backend; never purged" in done.stdout
    assert jail in done.stdout
    done = cluster(elsewhere, "orphans", "--stack", "local", "--purge", jail)
    assert done.returncode == 1
    assert f"Filesystem local-jail of state {state_id}" in done.stderr
    done = cluster(elsewhere, "adopt", "filesystem", jail, "--as", "jail")
    assert done.returncode == 1
    assert f"soperator cluster adopt state {state_id} --stack local" in done.stderr
    done = cluster(program, "adopt", "filesystem", jail, "--as", "jail")
    assert (done.returncode, "is this stack's already" in done.stdout) == (0, True)

    done = cluster(program, "adopt", "state", state_id)
    assert done.returncode == 1
    assert "is a state of this backend" in done.stderr
    done = cluster(elsewhere, "adopt", "state", "0" * 16)
    assert (done.returncode, "no resource of local" in done.stderr) == (1, True)
    done = cluster(elsewhere, "adopt", "state", state_id)
    assert done.returncode == 0, done.stderr
    gone = program("destroy", "--yes", "--skip-preview", "--stack=local")
    assert gone.returncode != 0
    assert f"{jail}, which was taken from this state" in gone.stdout + gone.stderr
    assert up_of_the_jail(elsewhere) == {jail}

    said = program.preview("local", *TARGETS).text
    assert "local: another state has this stack in project-e00p" in said
    assert "to forget this state: `pulumi stack rm --force local`" in said
    gone = program("refresh", "--yes", "--skip-preview", "--stack=local")
    assert (gone.returncode != 0, f"{jail}, which state" in gone.stdout + gone.stderr) == (
        True,
        True,
    )
    gone = program("destroy", "--yes", "--skip-preview", "--stack=local")
    assert gone.returncode != 0
    assert f"{jail}, which state" in gone.stdout + gone.stderr
    left = elsewhere("destroy", "--yes", "--skip-preview", "--stack=local")
    assert left.returncode == 0, left.stdout + left.stderr
    gone = program("destroy", "--yes", "--skip-preview", "--stack=local")
    assert gone.returncode == 0, "what it had is there no more"


def test_what_a_state_knows_is_no_orphan_until_the_state_is_lost(
    program: Program, soperator: Orphans
) -> None:
    (jail,) = up_of_the_jail(program)
    assert listed(soperator("--stack", "local", "--format", "json")) == {}
    for path in (program.root / "offline").rglob("local.json*"):
        path.unlink()
    lost = json.loads(soperator("--stack", "local", "--format", "json").stdout)
    assert lost["leftovers"] == [], "nobody can tell it from what another backend runs"
    assert [each["id"] for each in lost["of_other_states"]] == [jail]
    done = cluster(program, "adopt", "state", lost["of_other_states"][0]["state_id"])
    assert done.returncode == 0, done.stderr
    assert [*listed(soperator("--stack", "local", "--format", "json"))] == [jail]
    assert soperator("--stack", "local", "--purge", jail).returncode == 0


def test_ids_without_purge_delete_nothing(soperator: Orphans) -> None:
    done = soperator("--stack", "local", "computefilesystem-1")
    assert done.returncode == 2
    assert "give --purge and the ids together" in done.stderr
