"""The account, key and password of backups under the real engine: kept, rotated, found again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine.component_project import component_project, declare, ids_in, lose_the_state
from tests.engine.nebius_project import Emulator, Project, pulumi_binary

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(pulumi_binary() is None, reason="no pulumi: run `make setup`"),
    pytest.mark.usefixtures("forks"),
]
_PROGRAM = """
import json
from dataclasses import replace
from pathlib import Path

import pulumi

from infra.components.base import Kubernetes
from infra.components.buckets import Backups
from infra.components.buckets import Buckets
from stacks.load import load_stack

spec = load_stack("h100-prod")
declared = json.loads(Path(__file__).with_name("declared.json").read_text())
backup = replace(spec.storage.backup, **declared)
nebius = replace(spec.nebius, project_id="project-e00p")
storage = replace(spec.storage, backup=backup)
spec = replace(spec, name="test", storage=storage, nebius=nebius)
bucket = Buckets(spec).backups
backups = Backups(spec, backup, bucket, Kubernetes("none", ""))
pulumi.export("password", backups.password)
"""
# What stands in the Kubernetes cluster is left out: there is none.
_TARGETS = tuple(
    f"--target=urn:pulumi:test::tiny::{each}"
    for each in (
        "soperator:infra:Buckets::test",
        "soperator:infra:Backups::test",
        "**nebius:**",
        "**soperator:random:**",
        "**soperator:time:**",
    )
)


@pytest.fixture
def project(tmp_path: Path, emulator: Emulator) -> Project:
    return component_project(tmp_path / "project", emulator, _PROGRAM)


def up(project: Project, **declared: Any) -> None:
    declare(project, declared)
    project.up(*_TARGETS)


def made(emulator: Emulator) -> dict[str, set[str]]:
    """Kind -> ids that the cloud has, of what the account is made of."""
    kinds = ("accesskey", "accesspermit", "group", "groupmembership", "serviceaccount")
    return {kind: ids_in(emulator, f"{kind}-") for kind in kinds}


def test_a_second_up_rotates_nothing_and_no_secret_lies_open_in_the_state(
    project: Project, emulator: Emulator
) -> None:
    up(project)
    before, password = made(emulator), project.outputs()["password"]
    assert len(before["accesspermit"]) == 2
    up(project)
    assert made(emulator) == before
    assert project.outputs()["password"] == password
    for secret in ("emulated-secret-", password):
        assert secret not in project.state()


def test_a_raised_version_rotates_the_key_or_the_password_and_nothing_else(
    project: Project, emulator: Emulator
) -> None:
    up(project)
    before, password = made(emulator), project.outputs()["password"]
    up(project, key_version=2)
    after = made(emulator)
    assert len(after["accesskey"]) == 1
    assert after.pop("accesskey") != before.pop("accesskey")
    assert after == before
    assert project.outputs()["password"] == password
    up(project, key_version=2, password_version=2)
    assert project.outputs()["password"] != password


def test_a_lost_state_gives_no_right_twice_and_leaves_no_key_behind(
    project: Project, emulator: Emulator
) -> None:
    up(project)
    before = made(emulator)
    lose_the_state(project)
    up(project)
    after = made(emulator)
    assert len(after["accesskey"]) == 1
    assert after.pop("accesskey") != before.pop("accesskey")
    assert after == before
