"""Everything that a stack makes in the cloud can be found again by its labels."""

from __future__ import annotations

import pytest

from infra.providers.nebius.adoption import NODE_GROUP, TYPES
from tests import SHIPPED
from tests.components.conftest import Deploy

INSIDE = {"nebius:iam/v1:AccessPermit", "nebius:iam/v1:GroupMembership"}
"""Belong to a group and go with it; they have no name and cost nothing."""


@pytest.mark.parametrize("stack", SHIPPED)
def test_every_type_that_a_stack_makes_is_looked_for_among_orphans(
    deployed: Deploy, stack: str
) -> None:
    made = {each.type for each in deployed(stack).registered if each.type.startswith("nebius:")}
    assert made - INSIDE <= {NODE_GROUP, *TYPES}


@pytest.mark.parametrize("stack", SHIPPED)
def test_what_holds_data_outlives_a_destroy_unless_the_stack_purges(
    deployed: Deploy, stack: str
) -> None:
    kept = {each.type for each in deployed(stack).registered if each.retain_on_delete}
    wanted = {
        "nebius:compute/v1:Filesystem",
        "nebius:storage/v1:Bucket",
        "soperator:storage:Object",
        # The password of copies, which the cluster keeps as long as it lives: test_backups.py.
        "kubernetes:core/v1:Secret",
    }
    assert kept <= wanted
    assert ("nebius:compute/v1:Filesystem" in kept) is (stack != "local")


def test_a_cluster_that_was_adopted_has_the_name_that_the_stack_looks_for(deployed: Deploy) -> None:
    """infra/cli/cluster/cloud.py gives it that name."""
    assert deployed("local").one("nebius:mk8s/v1:Cluster").name == "local-kube"
