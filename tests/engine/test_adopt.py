"""What exists already becomes the stack's: by its labels, or by its id in the stack file."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from infra import state
from infra.cli.cluster import cloud as verbs
from infra.cli.main import app
from infra.providers.nebius import sdk
from infra.providers.nebius.provider import NebiusProvider
from infra.providers.nebius.resource_type import ResourceType
from tests.engine.nebius_project import pulumi_binary
from tests.engine.program_env import Program, running_program
from tests.engine.test_orphans import FILESYSTEM, JAIL

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(pulumi_binary() is None, reason="no pulumi: run `make setup`"),
]
SUBNET = "nebius:vpc/v1:Subnet"
_names = (f"by-hand-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with running_program(tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture(autouse=True)
def environment(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's own, in this process."""
    for name, value in program.environ.items():
        monkeypatch.setenv(name, value)
    sdk.shared_sdk.cache_clear()


def adopt(*arguments: str) -> tuple[int, str]:
    """Exit code and everything that was printed."""
    done = CliRunner().invoke(app, ["cluster", "adopt", *arguments])
    return done.exit_code, done.output


def made(
    token: str, *, stack: str | None = None, project_id: str = "project-e00p", **spec: Any
) -> str:
    """The id of a resource that a person made, or another stack; never one of `local`."""
    provider, name = NebiusProvider(), next(_names)
    kind = ResourceType.of_token(provider._api.schema, token)
    metadata: dict[str, Any] = {"parent_id": project_id, "name": name}
    inputs, problems = provider.of(token).check({}, {"metadata": metadata, "spec": spec})
    assert not problems
    if stack is not None:
        urn = f"urn:pulumi:{stack}::soperator-stack::{token}::{name}"
        return provider.of(token).create(urn, inputs)[0]
    operation = provider._api.call(kind.service, "Create", kind.request("Create", inputs))
    return provider._api.wait(kind.service, operation).resource_id


def filesystem(size_gib: int = 256, **changes: Any) -> str:
    return made(FILESYSTEM, **{"type": "network-ssd", "size_gibibytes": size_gib, **changes})


def test_an_adopted_filesystem_is_the_one_that_the_next_up_has(program: Program) -> None:
    jail = filesystem(128)
    status, text = adopt("filesystem", jail, "--as", "jail", "--stack", "local")
    assert (status, text) == (
        0,
        f"{jail} is now 'local-jail' of this stack; `pulumi up --stack local` takes it over\n",
    )
    # An up of the jail alone: it ends where the program wants what was left out.
    targets = [f"--target={urn}" for urn in JAIL]
    program("up", "--yes", "--skip-preview", "--stack=local", *targets)
    exported = program("stack", "export", "--stack=local").stdout
    assert jail in exported
    assert '"size_gibibytes": 256' in exported, "it grew to what the stack declares"
    assert "is this stack's already" in adopt("filesystem", jail, "--as", "jail")[1]
    status, text = adopt("filesystem", jail, "--as", "home")
    assert status == 1
    assert "is 'local-jail' of this stack already, not 'local-jail-submount-home'" in text


Refused = tuple[Callable[[], str], str, str]
REFUSED: dict[str, Refused] = {
    "another stack's": (
        lambda: filesystem(stack="prod"),
        "data",
        "belongs to stack 'prod' of Pulumi project 'soperator-stack'",
    ),
    "another type": (
        lambda: filesystem(type="network-hdd"),
        "data",
        "spec.type (NETWORK_HDD -> NETWORK_SSD) cannot be changed in place",
    ),
    "a larger one": (
        lambda: filesystem(512),
        "data",
        "256 GiB, but it has 512 GiB and cannot shrink",
    ),
    "an unknown role": (
        filesystem,
        "dta",
        "--as dta: local declares no such filesystem (has: jail, controller-spool, accounting,",
    ),
    "one that is not there": (
        lambda: "computefilesystem-e00none",
        "data",
        "computefilesystem-e00none: is no Filesystem that this credential can see; copy the id",
    ),
    "an id of another kind": (
        lambda: "computedisk-e00none",
        "data",
        "computedisk-e00none: is no id of a Filesystem, which starts with 'computefilesystem-'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_become_the_stacks_is_refused_in_a_line(case: str) -> None:
    make, role, message = REFUSED[case]
    status, text = adopt("filesystem", make(), "--as", role, "--stack", "local")
    assert status == 1
    assert message in text
    assert "pulumi refresh" not in text, "no state has it yet"
    assert text.count("\n") == 1, "one line"


def test_a_role_goes_with_a_filesystem_only() -> None:
    assert adopt("subnet", "vpcsubnet-1", "--as", "jail")[0] == 2
    assert adopt("filesystem", "computefilesystem-1")[0] == 2


def test_a_subnet_is_named_in_the_stack_file_and_its_comments_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A subnet is shared: the stack that uses it must not be the one that deletes it."""
    (tmp_path / "stacks").mkdir()
    shutil.copy(state.CHECKOUT / "Pulumi.yaml", tmp_path)
    path = tmp_path / "stacks" / "Pulumi.local.yaml"
    shutil.copy(state.CHECKOUT / "stacks" / path.name, path)
    before = path.read_text()
    network = made("nebius:vpc/v1:Network")
    subnet = made(SUBNET, network_id=network)
    monkeypatch.setattr(verbs.pulumi, "run", partial(verbs.pulumi.run, root=tmp_path))
    status, text = adopt("subnet", subnet, "--stack", "local")
    assert status == 0, text
    after = path.read_text()
    assert f"subnet_id: {subnet}" in after
    for comment in (line for line in before.splitlines() if line.lstrip().startswith("#")):
        assert comment in after
    foreign = made(SUBNET, stack="prod", network_id=network)
    assert "belongs to stack 'prod'" in adopt("subnet", foreign, "--stack", "local")[1]


def test_a_cluster_takes_the_name_and_the_labels_of_the_stacks(program: Program) -> None:
    network = made("nebius:vpc/v1:Network")
    subnet = made(SUBNET, network_id=network)
    plane = {"version": "1.33", "subnet_id": subnet, "etcd_cluster_size": 3}
    cluster = made("nebius:mk8s/v1:Cluster", control_plane=plane)
    status, text = adopt("cluster", cluster, "--stack", "local")
    assert status == 0, text
    provider = NebiusProvider()
    _, found, _ = provider.of("nebius:mk8s/v1:Cluster").read(cluster, {}, {}) or ("", {}, {})
    assert found["metadata"]["name"] == "local-kube"
    assert found["metadata"]["labels"]["stack"] == "local"
    assert found["spec"]["control_plane"] == plane
