"""The account, key and password of backups under the real engine: kept, rotated, found again."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PUBLIC_KEY
from tests.engine.nebius_project import Emulator, Project, pulumi_binary, running_emulator

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(pulumi_binary() is None, reason="no pulumi: run `make setup`"),
]
_PROGRAM = """
import json
from dataclasses import replace
from pathlib import Path

import pulumi
import pulumi_kubernetes as kubernetes

from infra.components.backups import Backups
from infra.components.buckets import Buckets
from stacks.load import load_stack

spec = load_stack("h100-prod")
declared = json.loads(Path(__file__).with_name("declared.json").read_text())
backup = replace(spec.storage.backup, **declared)
nebius = replace(spec.nebius, project_id="project-e00p")
storage = replace(spec.storage, backup=backup)
spec = replace(spec, name="test", storage=storage, nebius=nebius)
bucket = Buckets("test", spec).backups
backups = Backups("test", spec, backup, bucket=bucket, provider=kubernetes.Provider("none"))
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
def emulator(tmp_path: Path) -> Iterator[Emulator]:
    with running_emulator(tmp_path / "emulator") as emulator:
        yield emulator


@pytest.fixture
def project(tmp_path: Path, emulator: Emulator) -> Project:
    folder = tmp_path / "project"
    folder.mkdir()
    project = Project(folder, emulator.port)
    key = folder / "key.pub"
    key.write_text(PUBLIC_KEY + "\n")
    project.environ["SOPERATOR_SSH_PUBLIC_KEY_FILE"] = str(key)
    (folder / "__main__.py").write_text(_PROGRAM)
    return project


def up(project: Project, **declared: Any) -> None:
    (project.folder / "declared.json").write_text(json.dumps(declared))
    project.up(*_TARGETS)


def made(emulator: Emulator) -> dict[str, set[str]]:
    """Kind -> ids that the cloud has, of what the account is made of."""
    kinds = ("accesskey", "accesspermit", "group", "groupmembership", "serviceaccount")
    with sqlite3.connect(f"file:{emulator.folder / 'nebius.sqlite'}?mode=ro", uri=True) as database:
        ids = [row[0] for row in database.execute("SELECT id FROM resources")]
    return {kind: {id_ for id_ in ids if id_.rpartition("-")[0] == kind} for kind in kinds}


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
    for path in (project.folder / ".pulumi").rglob("test.json*"):
        path.unlink()
    project.run("stack", "init", "test")
    up(project)
    after = made(emulator)
    assert len(after["accesskey"]) == 1
    assert after.pop("accesskey") != before.pop("accesskey")
    assert after == before
