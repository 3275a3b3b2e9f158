"""Mount tags and the list of filesystems that every layer shares."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from infra.render import names
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.storage import SubmountSpec
from tests import SHIPPED

pytestmark = pytest.mark.usefixtures("public_key_file")


@pytest.mark.parametrize("stack", SHIPPED)
def test_every_declared_filesystem_has_one_tag_of_its_own(stack: str) -> None:
    spec = load_stack(stack)
    found = dict(names.filesystems(spec))
    assert len(found) == len(list(names.filesystems(spec)))
    assert list(found.values()) == [
        spec.storage.jail,
        spec.storage.controller_spool,
        spec.storage.accounting,
        *spec.storage.submounts,
    ]


def test_a_stack_without_accounting_storage_has_no_such_filesystem(bare: StackSpec) -> None:
    assert [tag for tag, _ in names.filesystems(bare)] == ["jail", "controller-spool"]


@pytest.mark.parametrize("stack", SHIPPED)
def test_every_tag_is_a_kubernetes_name_that_the_chart_leaves_alone(
    stack: str, public_key_file: Path
) -> None:
    """The chart cuts and rewrites other characters, and the disk is then looked for in vain."""
    for tag, _ in names.filesystems(load_stack(stack)):
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", tag)
        assert len(tag) <= 63


def test_only_the_jail_and_its_submounts_go_to_jailed_nodes() -> None:
    submount = SubmountSpec(name="data", mount_path="/mnt/data", size_gib=1)
    assert names.is_jailed(names.JAIL)
    assert names.is_jailed(names.submount_tag(submount.name))
    assert not names.is_jailed(names.CONTROLLER_SPOOL)
    assert not names.is_jailed(names.ACCOUNTING)


def test_a_submount_called_accounting_is_no_accounting_filesystem() -> None:
    assert names.submount_tag(names.ACCOUNTING) != names.ACCOUNTING
