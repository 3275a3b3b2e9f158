"""Long operations under the real engine: causes that the API tells, and waits that are taken up."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from infra.local.nebius_api.errors import Faults
from tests.engine.nebius_project import (
    PROJECT,
    Emulator,
    Project,
    filesystem,
    pulumi_binary,
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(pulumi_binary() is None, reason="no pulumi: run `make setup`"),
]
CREATE_GROUP = r"NodeGroupService\.Create$"
SUBNET = "vpcsubnet-e00pdefault"
QUOTA = {
    "quota_failure": {
        "violations": [
            {"quota": "compute.instance.gpu.h200", "limit": "8", "requested": "16", "message": "-"}
        ]
    }
}


@pytest.fixture
def project(tmp_path: Path, emulator: Emulator) -> Project:
    folder = tmp_path / "project"
    folder.mkdir()
    made = Project(folder, emulator.port)
    made.declare(**cluster())
    return made


def cluster() -> dict[str, Any]:
    """A kube cluster with one node group."""
    template = {
        "resources": {"platform": "cpu-d3", "preset": "4vcpu-16gb"},
        "boot_disk": {"size_gibibytes": 128, "type": "network-ssd"},
    }
    return {
        "kube": (
            "nebius:mk8s/v1:Cluster",
            {"parent_id": PROJECT, "name": "kube"},
            {"control_plane": {"version": "1.33", "subnet_id": SUBNET}},
        ),
        "workers": (
            "nebius:mk8s/v1:NodeGroup",
            {"parent_id": "id of kube", "name": "workers"},
            {"version": "1.33", "fixed_node_count": 2, "template": template},
        ),
    }


def ids(emulator: Emulator, kind: str) -> list[str]:
    """Ids of one kind that the cloud has."""
    path = emulator.folder / "nebius.sqlite"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        rows = database.execute("SELECT id FROM resources WHERE id LIKE ?", (f"{kind}-%",))
        return [id_ for (id_,) in rows]


def test_nodes_that_do_not_come_are_told_with_the_first_cause_and_its_fix(
    project: Project, emulator: Emulator
) -> None:
    """mk8s accepts a group over its quota; the recipe printed "Still creating..." for an hour."""
    event = {"code": "RESOURCE_EXHAUSTED", "error": "QuotaFailure", "message": "quota"}
    in_operation = {"method": CREATE_GROUP, "when": "operation"}
    faults = Faults(emulator.folder)
    faults.plant(
        [
            {**event, "method": "mk8snodegroup", "when": "event", "details": QUOTA},
            {**in_operation, "code": "SLOW", "seconds": 8},
            {**in_operation, "code": "INTERNAL", "message": "timed out"},
        ]
    )
    output = project.up(fails=True)
    told = "quota compute.instance.gpu.h200: 16 wanted in all, limit 8; lower what is declared"
    waits = [line for line in output.splitlines() if "blocked: " in line]
    # Once as it happened and once in the engine's summary; never again for an unchanged wait.
    (line,) = (line.strip() for line in waits if line.strip().startswith("create NodeGroup"))
    assert line.startswith("create NodeGroup 'workers': provisioning, 0 of 2 nodes ready; blocked")
    assert told in line
    assert "of at most 45 min passed" in line
    errors = [line for line in output.splitlines() if "timed out; first cause: " in line]
    assert errors
    assert all(told in line for line in errors)
    faults.plant([])
    project.up()
    assert len(ids(emulator, "mk8snodegroup")) == 1
    project.up("--expect-no-changes")


def test_capacity_that_ends_late_in_an_operation_is_named_with_what_to_do(
    project: Project, emulator: Emulator
) -> None:
    violation = {"resource_type": "gpu-h200-sxm", "message": "no machine", "requested": "2"}
    Faults(emulator.folder).plant(
        [
            {
                "method": CREATE_GROUP,
                "code": "RESOURCE_EXHAUSTED",
                "when": "operation",
                "message": "not enough resources",
                "details": {"not_enough_resources": {"violations": [violation]}},
            }
        ]
    )
    output = project.up(fails=True)
    assert "Nebius has no capacity now (gpu-h200-sxm: no machine); try another region" in output
    assert ids(emulator, "mk8snodegroup") == []
    project.up()
    assert len(ids(emulator, "mk8snodegroup")) == 1


def test_a_quota_that_is_found_late_leaves_nothing_half_made(
    project: Project, emulator: Emulator
) -> None:
    Faults(emulator.folder).plant(
        [
            {
                "method": CREATE_GROUP,
                "code": "RESOURCE_EXHAUSTED",
                "when": "operation",
                "message": "quota",
                "details": QUOTA,
            }
        ]
    )
    assert "quota compute.instance.gpu.h200: 16 wanted in all, limit 8" in project.up(fails=True)
    assert ids(emulator, "mk8snodegroup") == []
    project.up()
    project.up("--expect-no-changes")


@pytest.mark.nightly
def test_an_api_that_goes_away_in_the_middle_keeps_the_id_and_the_next_up_waits_on(
    project: Project, emulator: Emulator
) -> None:
    project.declare(jail=filesystem("jail"))
    slow = {"method": r"FilesystemService\.Create$", "code": "SLOW", "seconds": 3600}
    faults = Faults(emulator.folder)
    away = {"method": r"OperationService\.Get$", "code": "UNAVAILABLE", "retry": "CALL"}
    faults.plant([{**slow, "when": "operation"}, {**away, "times": 999}])
    output = project.up(fails=True)
    assert "no answer from the emulated Nebius API" in output
    assert "it goes on: run the command again" in output
    (made,) = ids(emulator, "computefilesystem")
    assert made in project.state()
    faults.plant([])
    emulator.kill()
    with closing(sqlite3.connect(emulator.folder / "nebius.sqlite")) as database, database:
        database.execute("UPDATE operations SET due = started")
    emulator.start()
    project.up()
    assert ids(emulator, "computefilesystem") == [made] == [project.outputs()["jail"]]
    project.up("--expect-no-changes")
