"""A difference is named by path, the way the engine prints it."""

import pytest

from infra.providers.engine.provider import UNKNOWN, Diff, compare, first_keys, join
from tests.conformance.command_cases import archive


def test_equal_values_have_no_difference():
    assert compare({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}) == {}


def test_additions_deletions_and_updates_are_named_by_path():
    old = {"labels": {"a": "1", "b.c/d": "x"}, "disks": [1, 2], "gone": 1}
    new = {"labels": {"a": "2", "b.c/d": "y"}, "disks": [1, 3, 4], "fresh": 0}
    assert compare(old, new) == {
        "disks[1]": "update",
        "disks[2]": "add",
        "fresh": "add",
        "gone": "delete",
        "labels.a": "update",
        'labels["b.c/d"]': "update",
    }


def test_an_unknown_value_counts_as_changed_even_from_unknown():
    assert compare({"id": UNKNOWN}, {"id": UNKNOWN}) == {"id": "update"}


def test_true_and_one_are_different():
    assert compare({"x": 1}, {"x": True}) == {"x": "update"}


def test_an_archive_changes_with_its_hash():
    old, new = archive(path="/p", hash="1"), archive(path="/p", hash="2")
    assert compare({"source": old}, {"source": new}) == {"source": "update"}


@pytest.mark.parametrize(
    ("path", "expected"), [("spec", True), ("spec.size", True), ("spec[0]", True), ("specs", False)]
)
def test_a_replaced_path_covers_what_is_below_it(path, expected):
    assert Diff(replaces=("spec",)).replaced_by(path) is expected


def test_first_keys_reads_quoted_keys_back():
    path = join("", 'we"ird.key')
    assert first_keys([path, "spec.a[0]", "spec.b", "list[2]"]) == ['we"ird.key', "spec", "list"]
