"""A change that deletes storage is told before it happens; one that grows it is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stacks.changes import LostStorage, declared_values, lost_storage, parents_of
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.nodes import BootDiskSpec, DataDisksSpec, NfsSpec
from stacks.spec.slurm import AxisSpec, SearchSpec, TrialSpec
from stacks.spec.storage import DiskType, FilesystemType, StorageSpec, SubmountSpec


@pytest.fixture
def keeping(public_key_file: Path) -> StackSpec:
    """A stack whose destroy keeps the data."""
    return load_stack("l40s-dev")


@pytest.fixture
def spec(keeping: StackSpec) -> StackSpec:
    """A stack whose destroy deletes the data."""
    return replace(keeping, storage=replace(keeping.storage, purge_on_destroy=True))


@pytest.fixture
def lost(spec: StackSpec) -> Callable[..., tuple[LostStorage, ...]]:
    """What a changed storage section deletes."""

    def changed(**storage: Any) -> tuple[LostStorage, ...]:
        after = replace(spec, storage=replace(spec.storage, **storage))
        return lost_storage(declared_values(spec), declared_values(after))

    return changed


def submounts(storage: StorageSpec, **changes: Any) -> tuple[SubmountSpec, ...]:
    """The submounts with the first changed."""
    first, *rest = storage.submounts
    return (replace(first, **changes), *rest)


def test_an_unchanged_stack_loses_nothing(spec: StackSpec):
    assert lost_storage(declared_values(spec), declared_values(spec)) == ()


def test_another_type_replaces_the_filesystem_and_says_what_is_lost(
    spec: StackSpec, lost: Callable[..., tuple[LostStorage, ...]]
):
    (found,) = lost(submounts=submounts(spec.storage, type=FilesystemType.WEKA))
    assert str(found) == (
        "DATA LOSS: storage.submounts[data].type: network-ssd -> weka: the filesystem "
        "at /mnt/data (1024 GiB) is replaced by an empty one; ALL DATA ON IT IS LOST. "
        "Copy it away first."
    )


def test_a_larger_filesystem_loses_nothing(
    spec: StackSpec, lost: Callable[..., tuple[LostStorage, ...]]
):
    assert lost(submounts=submounts(spec.storage, size_gib=2048)) == ()
    assert lost(jail=replace(spec.storage.jail, size_gib=512)) == ()


def test_a_removed_submount_is_deleted(
    spec: StackSpec, lost: Callable[..., tuple[LostStorage, ...]]
):
    (found,) = lost(submounts=spec.storage.submounts[1:])
    assert (found.key, found.change) == ("storage.submounts[data]", "removed")
    assert (found.what, found.is_replaced) == ("the filesystem at /mnt/data (1024 GiB)", False)


def test_a_renamed_submount_is_another_filesystem(
    spec: StackSpec, lost: Callable[..., tuple[LostStorage, ...]]
):
    (found,) = lost(submounts=submounts(spec.storage, name="datasets"))
    assert (found.key, found.is_replaced) == ("storage.submounts[data]", False)
    assert "at /mnt/data (" in found.what


def test_an_adopted_filesystem_deletes_the_one_that_was_made(
    spec: StackSpec, lost: Callable[..., tuple[LostStorage, ...]]
):
    (found,) = lost(submounts=submounts(spec.storage, size_gib=None, existing_id="fs-1"))
    assert (found.key, found.change) == ("storage.submounts[data].existing_id", "now fs-1")
    assert found.is_replaced


def test_a_filesystem_that_was_not_made_here_is_not_deleted(spec: StackSpec):
    adopted = replace(
        spec, storage=replace(
            spec.storage,
            submounts=submounts(spec.storage, size_gib=None, existing_id="fs-1"),
        )
    )  # fmt: skip
    without = replace(spec, storage=replace(spec.storage, submounts=spec.storage.submounts[1:]))
    assert lost_storage(declared_values(adopted), declared_values(without)) == ()


def test_another_mount_path_keeps_the_data(
    spec: StackSpec, lost: Callable[..., tuple[LostStorage, ...]]
):
    assert lost(submounts=submounts(spec.storage, mount_path="/mnt/datasets")) == ()


def test_the_jail_and_the_accounting_database_are_watched_too(
    spec: StackSpec, lost: Callable[..., tuple[LostStorage, ...]]
):
    (jail,) = lost(jail=replace(spec.storage.jail, type=FilesystemType.NETWORK_HDD))
    assert "the filesystem at / (" in str(jail)
    (database,) = lost(accounting=None)
    assert "at the accounting database (" in str(database)


def test_another_project_replaces_every_filesystem_and_bucket(spec: StackSpec):
    moved = replace(spec, nebius=replace(spec.nebius, project_id="project-e00other"))
    found = lost_storage(declared_values(spec), declared_values(moved))
    assert len(found) == 9
    assert {loss.key for loss in found} == {"nebius.project_id"}


def test_declared_values_are_named_as_the_user_writes_them(spec: StackSpec):
    values = declared_values(spec)
    assert values["nodes.workers[worker].nodes"] == "4"
    assert values["nodes.system.min_nodes"] == "3"
    assert values["storage.submounts[data].size_gib"] == "1024"
    assert "nodes.workers[worker].min_nodes" not in values
    assert not [key for key in values if "ssh" in key or key.startswith("login")]


def test_a_name_with_a_dot_is_one_step_of_a_key():
    assert list(parents_of("storage.submounts[v1.5].size_gib")) == [
        "storage",
        "storage.submounts",
        "storage.submounts[v1.5]",
        "storage.submounts[v1.5].size_gib",
    ]


def test_a_stack_that_keeps_its_data_loses_none_and_says_what_goes_on_costing(keeping: StackSpec):
    without = replace(
        keeping, storage=replace(keeping.storage, submounts=keeping.storage.submounts[1:])
    )
    (found,) = lost_storage(declared_values(keeping), declared_values(without))
    assert str(found) == (
        "storage.submounts[data]: removed: the filesystem at /mnt/data (1024 GiB) stays in its "
        "project and is paid for: soperator cluster orphans --stack STACK"
    )


def test_a_kept_filesystem_of_another_type_is_told_to_be_refused(keeping: StackSpec):
    changed = submounts(keeping.storage, type=FilesystemType.WEKA)
    after = replace(keeping, storage=replace(keeping.storage, submounts=changed))
    (found,) = lost_storage(declared_values(keeping), declared_values(after))
    assert str(found).endswith("cannot change its type, so `up` will refuse it; take the type back")


def test_a_bucket_that_goes_with_its_copies_or_configs_is_data_loss(
    spec: StackSpec, lost: Callable[..., tuple[LostStorage, ...]]
):
    found = lost(backup=None, config_bucket_gib=None)
    assert [str(each) for each in found] == [
        f"DATA LOSS: {key}: removed: the bucket of {what} is deleted; ALL DATA ON IT IS LOST. "
        "Copy it away first."
        for key, what in (
            ("storage.backup", "the jail's backups"),
            ("storage.config_bucket_gib", "run configs"),
        )
    ]


def test_a_registry_that_goes_with_its_images_is_data_loss(spec: StackSpec):
    with_images = replace(spec, storage=replace(spec.storage, registry_gib=10))
    (found,) = lost_storage(declared_values(with_images), declared_values(spec))
    assert str(found).startswith("DATA LOSS: storage.registry_gib: removed: the registry")
    grown = replace(spec, storage=replace(spec.storage, registry_gib=20))
    assert lost_storage(declared_values(with_images), declared_values(grown)) == ()


def test_copies_that_are_kept_are_told_to_need_their_password(keeping: StackSpec):
    without = replace(keeping, storage=replace(keeping.storage, backup=None))
    (found,) = lost_storage(declared_values(keeping), declared_values(without))
    assert "stays in its project" in str(found)
    assert str(found).endswith("pulumi stack output backup_password --show-secrets")


def test_fewer_copies_or_another_schedule_lose_no_bucket(
    spec: StackSpec, lost: Callable[..., tuple[LostStorage, ...]]
):
    backup = spec.storage.backup
    assert backup is not None
    assert lost(backup=replace(backup, keep_daily=1, schedule="@weekly", password_version=2)) == ()


NFS = NfsSpec(
    platform="cpu-d3",
    preset="8vcpu-32gb",
    boot_disk=BootDiskSpec(size_gib=64),
    data_disks=DataDisksSpec(size_gib=93, count=2),
)


def served(spec: StackSpec, after: NfsSpec | None) -> list[str]:
    """What is told of a change of the NFS server."""
    before = declared_values(replace(spec, nfs=NFS))
    return [str(each) for each in lost_storage(before, declared_values(replace(spec, nfs=after)))]


def test_a_server_that_goes_takes_its_disks_along_where_the_stack_purges(spec: StackSpec):
    (told,) = served(spec, None)
    assert told == (
        "DATA LOSS: nfs: removed: the data of the NFS server at /home (2 x 93 GiB) is "
        "deleted; ALL DATA ON IT IS LOST. Copy it away first."
    )


def test_a_server_that_goes_leaves_its_disks_where_the_stack_keeps(keeping: StackSpec):
    (told,) = served(keeping, None)
    assert "stays in its project and is paid for" in told


def test_another_count_of_disks_is_told_to_mount_nothing(spec: StackSpec, keeping: StackSpec):
    disks = replace(NFS.data_disks, count=3)
    for stack in (spec, keeping):
        (told,) = served(stack, replace(NFS, data_disks=disks))
        assert told.startswith("nfs.data_disks.count: 2 -> 3: ")
        assert told.endswith("no other count can mount; take the count back")


def test_another_type_of_kept_disks_is_told_to_be_refused(keeping: StackSpec):
    disks = replace(NFS.data_disks, type=DiskType.NETWORK_SSD)
    (told,) = served(keeping, replace(NFS, data_disks=disks))
    assert "cannot change its type" in told


def test_larger_disks_and_another_machine_lose_nothing(spec: StackSpec):
    disks = replace(NFS.data_disks, size_gib=186)
    assert served(spec, replace(NFS, data_disks=disks, preset="16vcpu-64gb")) == []


def test_the_values_of_a_search_go_by_setting_and_its_trials_by_their_place(spec: StackSpec):
    """No key of a trial names it: the program of a stack with a search ended in StopIteration."""
    search = SearchSpec(
        name="lr",
        job="finetune",
        metric="last_loss",
        grid=(AxisSpec(key="train.learning_rate", values=("1e-4", "2e-4")),),
        trials=(TrialSpec(settings=("lora.rank=8",)), TrialSpec(settings=("lora.rank=64",))),
    )
    found = declared_values(replace(spec, searches=(search,)))
    assert {key: value for key, value in found.items() if key.startswith("searches[")} == {
        "searches[lr].job": "finetune",
        "searches[lr].metric": "last_loss",
        "searches[lr].goal": "lowest",
        "searches[lr].grid[train.learning_rate].values": "1e-4, 2e-4",
        "searches[lr].trials[0].settings": "lora.rank=8",
        "searches[lr].trials[1].settings": "lora.rank=64",
        "searches[lr].at_once": "1",
    }
