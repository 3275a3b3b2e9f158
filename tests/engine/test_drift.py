"""Changes that somebody else makes in the cloud, behind the engine's back."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.providers.nebius.api import Api
from infra.providers.nebius.resource_type import ResourceType
from infra.providers.nebius.schema import Schema
from infra.providers.nebius.sdk import shared_sdk
from infra.state import Cache
from tests.engine.nebius_project import (
    FILESYSTEM,
    PROJECT,
    Emulator,
    Project,
    filesystem,
    pulumi_binary,
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.usefixtures("forks"),
    pytest.mark.skipif(pulumi_binary() is None, reason="no pulumi: run `make setup`"),
]


@pytest.fixture
def project(tmp_path: Path, emulator: Emulator) -> Project:
    """One filesystem of 64 GiB with a label."""
    folder = tmp_path / "project"
    folder.mkdir()
    made = Project(folder, emulator.port)
    token, metadata, spec = filesystem("jail")
    made.declare(jail=(token, {**metadata, "labels": {"team": "ml"}}, spec))
    made.up()
    return made


class Colleague:
    """Somebody with the same rights and other tools."""

    def __init__(self) -> None:
        self.schema = Schema(Cache.from_environ().root)
        self._api = Api(self.schema, threading.Event())

    def get(self, id_: str) -> Any:
        """The filesystem as the API has it."""
        service = self._service(FILESYSTEM)
        return self._api.call(service, "Get", self._api.request(service, "Get", id=id_))

    def change(self, id_: str, **fields: Any) -> None:
        """Updates labels, the size or other fields of the spec; the rest stays."""
        service, found = self._service(FILESYSTEM), self.get(id_)
        request = self._api.request(service, "Update", metadata=found.metadata, spec=found.spec)
        for key, value in fields.items():
            if key == "labels":
                request.metadata.labels.clear()
                request.metadata.labels.update(value)
            else:
                setattr(request.spec, key, value)
        kind = ResourceType.of_token(self.schema, FILESYSTEM)
        mask = kind.reset_mask(request)
        self._api.wait(service, self._api.call(service, "Update", request, mask=mask))

    def _service(self, token: str) -> Any:
        return ResourceType.of_token(self.schema, token).service


@pytest.fixture
def colleague(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Colleague]:
    monkeypatch.setenv("SOPERATOR_NEBIUS_ENDPOINT", f"http://127.0.0.1:{emulator.port}")
    monkeypatch.setenv("NEBIUS_IAM_TOKEN", "local-token")
    shared_sdk.cache_clear()
    yield Colleague()
    if shared_sdk.cache_info().currsize:
        shared_sdk().sync_close()
    shared_sdk.cache_clear()


def changes(project: Project) -> dict[str, list[str]]:
    """Operation -> paths of what the next `up` would do."""
    preview = json.loads(project.run("preview", "--json"))
    return {
        step["op"]: sorted(step.get("detailedDiff") or {})
        for step in preview["steps"]
        if step["op"] != "same"
    }


def test_labels_of_a_colleague_show_once_and_the_next_up_takes_them_away(
    project: Project, colleague: Colleague
) -> None:
    id_ = project.outputs()["jail"]
    own = dict(colleague.get(id_).metadata.labels)
    colleague.change(id_, labels={**own, "team": "bank", "owner": "me"})
    assert "~ 1 updated" in project.run("refresh", "--yes", "--skip-preview")
    assert changes(project) == {"update": ["metadata.labels.owner", "metadata.labels.team"]}
    project.run("refresh", "--yes", "--skip-preview", "--expect-no-changes")
    project.up()
    assert dict(colleague.get(id_).metadata.labels) == own
    project.up("--expect-no-changes")
    project.run("refresh", "--yes", "--skip-preview", "--expect-no-changes")


def test_a_size_that_a_colleague_raised_shows_once_and_is_declared_or_refused(
    project: Project, colleague: Colleague
) -> None:
    """A filesystem cannot shrink: the drift is told as that, and declaring it takes it over."""
    id_ = project.outputs()["jail"]
    colleague.change(id_, size_gibibytes=96)
    assert "~ 1 updated" in project.run("refresh", "--yes", "--skip-preview")
    refused = project.run("preview", fails=True)
    assert "64 GiB, but it has 96 GiB and cannot shrink" in refused
    token, metadata, spec = filesystem("jail", size_gibibytes=96)
    project.declare(jail=(token, {**metadata, "labels": {"team": "ml"}}, spec))
    project.up("--expect-no-changes")
    assert project.outputs()["jail"] == id_


def test_fields_that_nobody_declared_are_no_drift(project: Project, colleague: Colleague) -> None:
    """Servers fill in defaults, and colleagues set what the stack leaves open."""
    id_ = project.outputs()["jail"]
    colleague.change(id_, forbid_deletion=True)
    project.run("refresh", "--yes", "--skip-preview")
    project.up("--expect-no-changes")
    assert colleague.get(id_).spec.forbid_deletion


def test_a_refresh_of_an_untouched_stack_changes_nothing(project: Project) -> None:
    project.run("refresh", "--yes", "--skip-preview", "--expect-no-changes")
    project.up("--expect-no-changes")


def test_ownership_labels_that_a_colleague_removed_come_back_with_the_next_change(
    project: Project, colleague: Colleague
) -> None:
    id_ = project.outputs()["jail"]
    own = dict(colleague.get(id_).metadata.labels)
    colleague.change(id_, labels={"team": "ml"})
    project.run("refresh", "--yes", "--skip-preview")
    token, metadata, spec = filesystem("jail", size_gibibytes=96)
    project.declare(jail=(token, {**metadata, "labels": {"team": "ml"}}, spec))
    project.up()
    assert dict(colleague.get(id_).metadata.labels) == own
    project.up("--expect-no-changes")


def test_nodes_that_a_colleague_scaled_show_as_their_count_alone(
    project: Project, colleague: Colleague
) -> None:
    group = node_group()
    project.declare(**group)
    project.up()
    id_ = project.outputs()["workers"]
    scale(colleague, id_, 3)
    project.run("refresh", "--yes", "--skip-preview")
    assert changes(project) == {"update": ["spec.fixed_node_count"]}
    project.up()
    project.up("--expect-no-changes")


def node_group() -> dict[str, Any]:
    """A cluster with a group of two nodes."""
    template = {
        "resources": {"platform": "cpu-d3", "preset": "4vcpu-16gb"},
        "boot_disk": {"size_gibibytes": 128, "type": "network-ssd"},
    }
    subnet = {"version": "1.33", "subnet_id": "vpcsubnet-e00pdefault"}
    return {
        "kube": (
            "nebius:mk8s/v1:Cluster",
            {"parent_id": PROJECT, "name": "kube"},
            {"control_plane": subnet},
        ),
        "workers": (
            "nebius:mk8s/v1:NodeGroup",
            {"parent_id": "id of kube", "name": "workers"},
            {"version": "1.33", "fixed_node_count": 2, "template": template},
        ),
    }


def scale(colleague: Colleague, id_: str, nodes: int) -> None:
    """Sets the number of nodes of a group."""
    service = ResourceType.of_token(colleague.schema, "nebius:mk8s/v1:NodeGroup").service
    api = colleague._api
    found = api.call(service, "Get", api.request(service, "Get", id=id_))
    request = api.request(service, "Update", metadata=found.metadata, spec=found.spec)
    request.spec.fixed_node_count = nodes
    api.wait(service, api.call(service, "Update", request))
