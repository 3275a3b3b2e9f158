"""Faults planted in the API by `soperator local fault`: what an `up` says, and that the next heals.

The real engine, the native provider and the emulator's own process.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from infra.local.cloud import EMULATOR, Cloud, plant_fault
from infra.state import Cache, Ports, State
from tests.engine.nebius_project import (
    Emulator,
    Project,
    filesystem,
    pulumi_binary,
    running_emulator,
)
from tests.nightly import at_night

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(pulumi_binary() is None, reason="no pulumi: run `make setup`"),
]
CREATE, UPDATE, DELETE = (rf"FilesystemService\.{verb}$" for verb in ("Create", "Update", "Delete"))


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    """The embedded cloud whose only running part is the emulator."""
    return Cloud(state=State(tmp_path), cache=Cache.from_environ(), ports=Ports(17800))


@pytest.fixture
def emulator(cloud: Cloud) -> Iterator[Emulator]:
    with running_emulator(cloud.state.local / EMULATOR) as running:
        yield running


@pytest.fixture
def project(tmp_path: Path, emulator: Emulator) -> Project:
    """A project that declares one filesystem."""
    folder = tmp_path / "project"
    folder.mkdir()
    made = Project(folder, emulator.port)
    made.declare(jail=filesystem("jail"))
    return made


def filesystems(emulator: Emulator) -> list[str]:
    """Ids of the filesystems that the cloud has."""
    path = emulator.folder / "nebius.sqlite"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        rows = database.execute("SELECT id FROM resources WHERE id LIKE 'computefilesystem-%'")
        return [id_ for (id_,) in rows]


def test_a_service_that_is_away_for_a_moment_is_asked_again(
    cloud: Cloud, emulator: Emulator, project: Project
) -> None:
    plant_fault(cloud, "unavailable", CREATE, 3)
    assert "+ 2 created" in project.up()
    assert filesystems(emulator) == [project.outputs()["jail"]]


def test_a_service_that_stays_away_ends_the_up_in_one_line_and_the_next_one_heals(
    cloud: Cloud, emulator: Emulator, project: Project
) -> None:
    plant_fault(cloud, "unavailable", CREATE, 5)
    output = project.up(fails=True)
    told = [line for line in output.splitlines() if line.lstrip().startswith("error: create ")]
    (line,) = told
    assert "create Filesystem 'jail': no answer from the emulated Nebius API" in line
    assert filesystems(emulator) == []
    project.up()
    assert filesystems(emulator) == [project.outputs()["jail"]]


@pytest.mark.parametrize(
    ("kind", "told"),
    [("lost-answer", "no answer"), at_night("expired-token", "the token has expired")],
)
def test_a_create_that_was_committed_and_not_told_is_taken_over_by_the_next_up(
    cloud: Cloud, emulator: Emulator, project: Project, kind: str, told: str
) -> None:
    plant_fault(cloud, kind, CREATE, 1)
    assert told in project.up(fails=True)
    project.up()
    assert filesystems(emulator) == [project.outputs()["jail"]]


@pytest.mark.nightly
def test_a_create_whose_operation_failed_is_replaced_by_the_next_up(
    cloud: Cloud, emulator: Emulator, project: Project
) -> None:
    plant_fault(cloud, "operation", CREATE, 1)
    output = project.up(fails=True)
    assert "operation failed (planted fault)" in output
    assert "Traceback" not in output
    project.up()
    assert filesystems(emulator) == [project.outputs()["jail"]]
    project.up("--expect-no-changes")


@pytest.mark.nightly
def test_an_update_whose_operation_failed_is_made_by_the_next_up(
    cloud: Cloud, emulator: Emulator, project: Project
) -> None:
    project.up()
    before = project.outputs()
    project.declare(jail=filesystem("jail", size_gibibytes=128))
    plant_fault(cloud, "operation", UPDATE, 1)
    assert "operation failed (planted fault)" in project.up(fails=True)
    project.up()
    assert project.outputs() == before
    project.up("--expect-no-changes")


def test_a_delete_whose_operation_failed_is_made_by_the_next_destroy(
    cloud: Cloud, emulator: Emulator, project: Project
) -> None:
    project.up()
    plant_fault(cloud, "operation", DELETE, 1)
    failed = project.run("destroy", "--yes", "--skip-preview", fails=True)
    assert "operation failed (planted fault)" in failed
    project.run("destroy", "--yes", "--skip-preview")
    assert filesystems(emulator) == []
