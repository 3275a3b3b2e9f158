"""Filesystems and buckets: each declaration once, an existing filesystem not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from infra.render import names
from stacks.spec import StackSpec
from stacks.spec.storage import FilesystemSpec, FilesystemType, SubmountSpec
from tests import SHIPPED
from tests.components.conftest import Deploy

FILESYSTEM = "nebius:compute/v1:Filesystem"
BUCKET = "nebius:storage/v1:Bucket"
REGISTRY = "nebius:registry/v1:Registry"
OLD = "computefilesystem-e00old"


@pytest.mark.feature(
    "S000-70",
    "S000-74",
    "S000-76",
    "S000-78",
    "S000-79",
    "S000-80",
    "S002-04",
    "S002-09",
    "S002-10",
    "S002-16",
    "S003-15",
    "S003-44",
    "S003-63",
    "S003-64",
)
@pytest.mark.parametrize("stack", SHIPPED)
def test_every_declared_filesystem_is_made_once_at_its_size(
    deployed: Deploy, load: Callable[[str], StackSpec], stack: str
) -> None:
    made = deployed(stack).of(FILESYSTEM)
    assert set(Counter(each.name for each in made).values()) == {1}
    sizes = {each.name: each.inputs["spec"]["size_gibibytes"] for each in made}
    storage = load(stack).storage
    declared: dict[str, FilesystemSpec | SubmountSpec] = {
        "jail": storage.jail,
        "controller-spool": storage.controller_spool,
        **({} if storage.accounting is None else {"accounting": storage.accounting}),
        **{f"jail-submount-{each.name}": each for each in storage.submounts},
    }
    assert sizes == {f"{stack}-{name}": each.size_gib for name, each in declared.items()}


def test_an_existing_filesystem_is_mounted_by_its_id_and_not_made(
    deployed: Deploy, load: Callable[[str], StackSpec]
) -> None:
    """Made again it would be empty; in the state, `pulumi destroy` would delete it."""
    spec = load("local")
    old = SubmountSpec(name="old", mount_path="/mnt/old", existing_id=OLD)
    submounts = (*spec.storage.submounts, old)
    recorder = deployed(replace(spec, storage=replace(spec.storage, submounts=submounts)))
    assert len(recorder.of(FILESYSTEM)) == len(list(names.filesystems(spec)))
    worker = recorder.one("nebius:mk8s/v1:NodeGroup", "local-worker")
    attached = worker.inputs["spec"]["template"]["filesystems"]
    assert attached[-1] == {
        "attach_mode": "READ_WRITE",
        "mount_tag": "jail-submount-old",
        "existing_filesystem": {"id": OLD},
    }


@pytest.mark.parametrize("stack", ["h200-elastic", "local"])
def test_a_stack_that_declares_no_bucket_has_none(deployed: Deploy, stack: str) -> None:
    assert deployed(stack).of(BUCKET) == []


@pytest.mark.feature("S002-66")
@pytest.mark.parametrize("stack", ["h100-prod", "l40s-dev"])
def test_backups_and_configs_have_a_bucket_each_and_only_configs_keep_versions(
    deployed: Deploy, stack: str
) -> None:
    versioning = {
        each.name: each.inputs["spec"]["versioning_policy"].lower()
        for each in deployed(stack).of(BUCKET)
    }
    assert versioning == {f"{stack}-backups": "disabled", f"{stack}-configs": "enabled"}


@pytest.mark.feature("S003-85")
def test_a_registry_is_there_only_when_declared_and_its_images_outlive_a_destroy(
    deployed: Deploy, load: Callable[[str], StackSpec]
) -> None:
    assert deployed("h100-prod").of(REGISTRY) == []
    assert "registry" not in deployed("h100-prod").outputs
    spec = load("h100-prod")
    recorder = deployed(replace(spec, storage=replace(spec.storage, registry_gib=0)))
    registry = recorder.one(REGISTRY)
    assert registry.name == "h100-prod-images"
    assert registry.retain_on_delete
    assert recorder.outputs["registry"] == "cr.test/e00"


def test_a_filesystem_says_its_type_and_that_it_must_not_be_deleted(
    deployed: Deploy, load: Callable[[str], StackSpec]
) -> None:
    spec = load("h100-prod")
    jail = FilesystemSpec(size_gib=2048, type=FilesystemType.WEKA, forbid_deletion=True)
    recorder = deployed(replace(spec, storage=replace(spec.storage, jail=jail)))
    assert recorder.one(FILESYSTEM, "h100-prod-jail").inputs["spec"] == {
        "type": "weka",
        "size_gibibytes": 2048,
        "forbid_deletion": True,
    }


def test_a_jail_that_exists_is_used_by_its_id(
    deployed: Deploy, load: Callable[[str], StackSpec]
) -> None:
    spec = load("h100-prod")
    jail = FilesystemSpec(existing_id=OLD)
    recorder = deployed(replace(spec, storage=replace(spec.storage, jail=jail)))
    assert "h100-prod-jail" not in {each.name for each in recorder.of(FILESYSTEM)}
    system = recorder.one("nebius:mk8s/v1:NodeGroup", "h100-prod-system")
    attached = system.inputs["spec"]["template"]["filesystems"]
    assert attached[0]["existing_filesystem"] == {"id": OLD}
