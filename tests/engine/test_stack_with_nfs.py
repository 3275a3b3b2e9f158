"""A whole stack with an NFS server under the real engine, as far as it needs no Kubernetes API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from stacks.load import STACKS_DIR
from tests.engine.nebius_project import pulumi_binary
from tests.engine.program_env import Answer, Program, running_program

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(pulumi_binary() is None, reason="no pulumi: run `make setup`"),
    pytest.mark.usefixtures("forks"),
]
STACK = "h200-elastic"
NFS = """\
  soperator-stack:nfs:
    {platform: cpu-d3, preset: 8vcpu-32gb, boot_disk: {size_gib: 64}, mount_path: /mnt/nfs,
     data_disks: {size_gib: 93, count: 2}}
"""
INSIDE = ("kubernetes:", "pulumi:providers:kubernetes", "command:", "soperator:kube:")
"""How the types begin that act inside the cluster."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    root = tmp_path_factory.mktemp("state")
    authority = root / "ca.pem"  # what a kubeconfig is made of; nothing is asked there
    authority.write_text("-----BEGIN CERTIFICATE-----\n", encoding="ascii")
    with running_program(root, SOPERATOR_LOCAL_KUBE_CA_FILE=str(authority)) as running:
        yield running


def with_nfs(folder: Path) -> str:
    """The option that gives pulumi the stack with a server."""
    text = (STACKS_DIR / f"Pulumi.{STACK}.yaml").read_text(encoding="utf-8")
    path = folder / f"Pulumi.{STACK}.yaml"
    path.write_text(text.replace("config:\n", f"config:\n{NFS}", 1), encoding="utf-8")
    return f"--config-file={path}"


def outside(answer: Answer) -> list[str]:
    """URNs of a preview that need nothing of the Kubernetes API."""
    states = {step["newState"]["urn"]: step["newState"] for step in answer.document["steps"]}

    @cache
    def is_inside(urn: str) -> bool:
        state = states.get(urn)
        if state is None:
            return False
        needed = [state.get("parent", ""), *state.get("dependencies", [])]
        return state["type"].startswith(INSIDE) or any(map(is_inside, needed))

    return sorted(urn for urn in states if not is_inside(urn))


def test_a_whole_stack_with_a_server_is_made_once_and_destroyed_but_for_its_data(
    program: Program, tmp_path: Path
) -> None:
    """Its address reaches the charts, so the server stands between network and Slurm."""
    config = with_nfs(tmp_path)
    answer = program.preview(STACK, config)
    assert answer.status == 0, answer.text
    assert answer.messages("error") == []
    declared = {(each["type"], each["name"]) for each in answer.graph()}
    assert ("nebius:compute/v1:Instance", f"{STACK}-nfs") in declared
    bill = "\n".join(answer.messages("info"))
    assert "NFS" in bill

    targets = [f"--target={urn}" for urn in outside(answer)]
    assert any(target.endswith(f"::{STACK}-nfs") for target in targets)
    up = ("up", "--yes", "--skip-preview", f"--stack={STACK}", config, *targets)
    made = program(*up)
    assert made.returncode == 0, made.stdout + made.stderr
    again = program(*up, "--expect-no-changes")
    assert again.returncode == 0, again.stdout + again.stderr
    gone = program("destroy", "--yes", "--skip-preview", f"--stack={STACK}", config)
    assert gone.returncode == 0, gone.stdout + gone.stderr
    left = json.loads(program("stack", "export", f"--stack={STACK}").stdout)
    assert left["deployment"].get("resources", []) == []
    emulator = (program.root / "offline" / "nebius").rglob("*")
    kept = b"".join(path.read_bytes() for path in emulator if path.is_file())
    assert f"{STACK}-nfs-data-0".encode() in kept, "the data outlives the stack"
