"""Filesystems and buckets: each declaration once, an existing filesystem not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from infra.render import names
from stacks.load import stack_names
from stacks.spec import StackSpec
from stacks.storage_spec import SubmountSpec
from tests.components.conftest import Deploy

FILESYSTEM = "nebius:compute/v1:Filesystem"
BUCKET = "nebius:storage/v1:Bucket"
OLD = "computefilesystem-e00old"


@pytest.mark.parametrize("stack", stack_names())
def test_every_declared_filesystem_is_made_once_at_its_size(
    deployed: Deploy, load: Callable[[str], StackSpec], stack: str
) -> None:
    made = deployed(stack).of(FILESYSTEM)
    assert set(Counter(each.name for each in made).values()) == {1}
    sizes = {each.name: each.inputs["spec"]["size_gibibytes"] for each in made}
    assert sizes == {
        f"{stack}-{tag}": declared.size_gib for tag, declared in names.filesystems(load(stack))
    }


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


@pytest.mark.parametrize("stack", ["h100-prod", "l40s-dev"])
def test_backups_and_configs_have_a_bucket_each_and_only_configs_keep_versions(
    deployed: Deploy, stack: str
) -> None:
    versioning = {
        each.name: each.inputs["spec"]["versioning_policy"].lower()
        for each in deployed(stack).of(BUCKET)
    }
    assert versioning == {f"{stack}-backups": "disabled", f"{stack}-configs": "enabled"}
