"""Filesystems and buckets under the real engine: kept by destroy, found again, grown, purged."""

from __future__ import annotations

from pathlib import Path

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

from infra.components.buckets import Buckets
from infra.components.storage import Filesystems
from stacks.load import load_stack
from stacks.spec.storage import FilesystemType

spec = load_stack("h100-prod")
declared = json.loads(Path(__file__).with_name("declared.json").read_text())
jail = replace(
    spec.storage.jail,
    size_gib=declared.get("jail_gib", 1024),
    type=FilesystemType(declared.get("type", "network-ssd")),
)
storage = replace(spec.storage, jail=jail, purge_on_destroy=declared.get("purge", False))
nebius = replace(spec.nebius, project_id="project-e00p")
spec = replace(spec, name="test", storage=storage, nebius=nebius)
filesystems = Filesystems(spec)
Buckets(spec)
pulumi.export("jail", filesystems.ids["jail"])
"""
DESTROY = ("destroy", "--yes", "--skip-preview")


@pytest.fixture
def project(tmp_path: Path, emulator: Emulator) -> Project:
    return component_project(tmp_path / "project", emulator, _PROGRAM)


def stored(emulator: Emulator) -> set[str]:
    """Ids of every filesystem and bucket that the cloud has."""
    return ids_in(emulator, "computefilesystem", "storagebucket")


def test_destroy_keeps_the_data_and_the_next_up_has_it_again(
    project: Project, emulator: Emulator
) -> None:
    project.up()
    before, jail = stored(emulator), project.outputs()["jail"]
    assert jail in before
    assert any(id_.startswith("storagebucket") for id_ in before)
    project.run(*DESTROY)
    assert stored(emulator) == before
    assert f"adopted {jail}" in project.up()
    assert stored(emulator) == before
    assert project.outputs()["jail"] == jail
    project.up("--expect-no-changes")


def test_a_lost_state_finds_everything_again(project: Project, emulator: Emulator) -> None:
    project.up()
    before, jail = stored(emulator), project.outputs()["jail"]
    lose_the_state(project)
    project.up()
    assert stored(emulator) == before
    assert project.outputs()["jail"] == jail
    project.up("--expect-no-changes")


def test_what_is_found_again_grows_to_what_is_declared(
    project: Project, emulator: Emulator
) -> None:
    project.up()
    before = stored(emulator)
    project.run(*DESTROY)
    declare(project, {"jail_gib": 1280})
    project.up()
    assert stored(emulator) == before
    assert '"size_gibibytes": 1280' in project.state()


def test_purge_deletes_at_destroy_once_an_up_has_applied_it(
    project: Project, emulator: Emulator
) -> None:
    project.up()
    declare(project, {"purge": True})
    project.up()
    project.run(*DESTROY)
    assert stored(emulator) == set()


def test_a_smaller_filesystem_is_refused_in_the_preview_with_both_sizes(project: Project) -> None:
    project.up()
    declare(project, {"jail_gib": 512})
    output = project.run("preview", fails=True)
    assert "spec.size_gibibytes" in output
    assert "512 GiB, but it has 1024 GiB and cannot shrink" in output


def test_another_type_is_refused_and_the_old_type_has_its_data_back(
    project: Project, emulator: Emulator
) -> None:
    """A replacement would be empty; the engine has forgotten the old one by then."""
    project.up()
    before, jail = stored(emulator), project.outputs()["jail"]
    declare(project, {"type": "network-hdd"})
    output = project.up(fails=True)
    assert f"{jail}, which an earlier run of this stack made and kept" in output
    assert "soperator cluster orphans" in output
    declare(project, {})
    project.up()
    assert stored(emulator) == before
    assert project.outputs()["jail"] == jail
