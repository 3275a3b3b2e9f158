"""Only an immutable field or another parent costs a replacement."""

import pytest

from infra.providers.engine.provider import UNKNOWN
from infra.providers.nebius.resource_type import find_changes

DISK = {"type": "NETWORK_SSD", "size_gibibytes": 64}


@pytest.fixture
def diff(kind):
    def diff(token, old, new, *, metadata=None):
        before = {"metadata": {"parent_id": "p", "name": "n"}, "spec": old}
        after = {"metadata": {"parent_id": "p", "name": "n", **(metadata or {})}, "spec": new}
        return find_changes(kind(token), before, after)

    return diff


def test_the_same_declaration_changes_nothing(diff):
    found = diff("compute/v1:Filesystem", DISK, dict(DISK))
    assert (found.detailed, found.replaces) == ({}, ())


def test_a_mutable_field_is_updated_in_place(diff):
    found = diff("compute/v1:Filesystem", DISK, {**DISK, "size_gibibytes": 128})
    assert (found.detailed, found.replaces) == ({"spec.size_gibibytes": "update"}, ())


def test_an_immutable_field_replaces_and_deletes_first(diff):
    found = diff("compute/v1:Filesystem", DISK, {**DISK, "type": "NETWORK_HDD"})
    assert found.replaces == ("spec.type",)
    assert found.delete_before_replace


def test_another_parent_replaces(diff):
    found = diff("compute/v1:Filesystem", DISK, DISK, metadata={"parent_id": "q"})
    assert found.replaces == ("metadata.parent_id",)


def test_a_new_name_or_label_is_an_update(diff):
    metadata = {"name": "m", "labels": {"a.b/c": "d"}}
    found = diff("compute/v1:Filesystem", DISK, DISK, metadata=metadata)
    assert (set(found.detailed), found.replaces) == ({"metadata.name", "metadata.labels"}, ())


def test_a_change_inside_an_immutable_message_replaces_at_the_message(diff):
    old = {"control_plane": {"subnet_id": "a"}, "kube_network": {"service_cidrs": ["/16"]}}
    new = {"control_plane": {"subnet_id": "a"}, "kube_network": {"service_cidrs": ["/20"]}}
    found = diff("mk8s/v1:Cluster", old, new)
    assert found.replaces == ("spec.kube_network.service_cidrs",)
    assert found.detailed == {"spec.kube_network.service_cidrs[0]": "update"}


def test_an_id_that_becomes_unknown_replaces_only_where_it_is_immutable(diff):
    old, new = {"network_id": "a"}, {"network_id": UNKNOWN}
    assert diff("vpc/v1:Subnet", old, new).replaces == ()
    control_plane = ({"control_plane": {"subnet_id": id_}} for id_ in ("a", UNKNOWN))
    assert diff("mk8s/v1:Cluster", *control_plane).replaces == ("spec.control_plane.subnet_id",)


def test_a_child_is_replaced_with_the_parent_that_it_is_in(kind):
    """The engine asks before it deletes the parent; a child that stayed would be in the way."""
    old = {"metadata": {"parent_id": "mk8scluster-1", "name": "n"}, "spec": {}}
    found = find_changes(kind("mk8s/v1:NodeGroup"), old, {**old, "metadata": UNKNOWN})
    assert found.replaces == ("metadata",)


def test_ids_stay_known_to_dependents(diff):
    assert "id" in diff("compute/v1:Filesystem", DISK, DISK).stables
