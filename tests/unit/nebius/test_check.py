"""Inputs are checked as the API would, with the path of each value and what is allowed."""

import subprocess
import sys

import pytest

from infra.providers.engine.provider import UNKNOWN, ProviderError

METADATA = {"parent_id": "project-e00p", "name": "jail"}
FILESYSTEM = "compute/v1:Filesystem"
NODE_GROUP = "mk8s/v1:NodeGroup"


@pytest.fixture
def check(kind):
    def check(token, spec, metadata=METADATA, **rest):
        inputs, problems = kind(token).check({"metadata": metadata, "spec": spec, **rest})
        return inputs["spec"], dict(problems)

    return check


def test_enums_are_written_as_people_write_them_and_kept_in_one_spelling(check):
    for written in ("network-ssd", "NETWORK_SSD", "Network-SSD"):
        spec, problems = check(FILESYSTEM, {"type": written, "size_gibibytes": 1})
        assert (spec["type"], problems) == ("NETWORK_SSD", {})


def test_an_unknown_field_names_the_nearest_one(check):
    _, problems = check(FILESYSTEM, {"tipe": "network-ssd"})
    assert problems["spec.tipe"] == "unknown; did you mean type?"


def test_an_unknown_enum_value_lists_the_allowed_ones(check):
    _, problems = check(FILESYSTEM, {"type": "floppy", "size_gibibytes": 1})
    assert problems["spec.type"] == "'floppy' is not one of network-ssd, network-hdd, weka, vast"


def test_a_problem_deep_inside_carries_its_whole_path(check):
    taint = {"key": "a", "value": "b", "effect": "sometimes"}
    _, problems = check(NODE_GROUP, {"fixed_node_count": 1, "template": {"taints": [taint]}})
    assert "spec.template.taints[0].effect" in problems


@pytest.mark.parametrize("value", ["12 GiB", 1.5, True, [1]])
def test_a_size_is_a_whole_number(check, value):
    _, problems = check(FILESYSTEM, {"type": "network-ssd", "size_gibibytes": value})
    assert "is no whole number" in problems["spec.size_gibibytes"]


@pytest.mark.parametrize(
    ("written", "kept"), [("90s", "90s"), ("1h30m", "5400s"), (60, "60s"), ("1.5s", "1.5s")]
)
def test_durations_are_natural(check, written, kept):
    boot_disk = {"type": "network-ssd", "size_gibibytes": 128}
    resources = {"platform": "cpu-d3", "preset": "4vcpu-16gb"}
    spec = {
        "fixed_node_count": 1,
        "template": {"boot_disk": boot_disk, "resources": resources},
        "strategy": {"drain_timeout": written},
    }
    found, problems = check(NODE_GROUP, spec)
    assert (found["strategy"]["drain_timeout"], problems) == (kept, {})


def test_a_duration_without_a_unit_is_refused(check):
    spec = {"fixed_node_count": 1, "strategy": {"drain_timeout": "soon"}}
    assert "no duration" in check(NODE_GROUP, spec)[1]["spec.strategy.drain_timeout"]


def test_two_of_a_oneof_exclude_each_other(check):
    spec = {"type": "network-ssd", "size_gibibytes": 1, "size_bytes": 5}
    assert "declare one of the two" in check(FILESYSTEM, spec)[1]["spec.size_bytes"]


def test_a_rule_of_the_api_is_checked_in_a_preview(check):
    _, problems = check(FILESYSTEM, {"type": "network-ssd"})
    assert problems == {"spec.size": "exactly one field is required in oneof"}


def test_a_value_known_later_breaks_no_rule(check):
    spec, problems = check(FILESYSTEM, {"type": "network-ssd", "size_gibibytes": UNKNOWN})
    assert problems == {}
    assert spec["size_gibibytes"] is UNKNOWN
    metadata = {"parent_id": UNKNOWN, "name": "sub"}
    assert check("vpc/v1:Subnet", {"network_id": UNKNOWN}, metadata)[1] == {}


def test_an_unknown_value_hides_no_other_problem(check):
    _, problems = check(FILESYSTEM, {"type": "floppy", "size_gibibytes": UNKNOWN})
    assert list(problems) == ["spec.type"]


def test_the_parent_is_never_guessed(check):
    _, problems = check(FILESYSTEM, {"type": "network-ssd", "size_gibibytes": 1}, {"name": "x"})
    assert "metadata.parent_id" in problems


def test_the_server_owns_the_rest_of_the_metadata(check):
    metadata = {**METADATA, "resource_version": 3}
    _, problems = check(FILESYSTEM, {"type": "network-ssd", "size_gibibytes": 1}, metadata)
    assert list(problems) == ["metadata.resource_version"]


def test_a_key_beside_metadata_and_spec_is_refused(check):
    _, problems = check(FILESYSTEM, {"type": "network-ssd", "size_gibibytes": 1}, labels={})
    assert list(problems) == ["labels"]


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("compute/v1:Filesytem", "did you mean Filesystem"),
        ("compute/v9:Filesystem", "no package nebius.compute.v9"),
    ],
)
def test_a_wrong_token_says_what_there_is(kind, token, message):
    with pytest.raises(ProviderError, match=message):
        kind(token)


_READ_FIRST = """
from infra.providers.nebius.resource_type import ResourceType
from infra.providers.nebius.schema import Schema, plain
kind = ResourceType.of_token(Schema.shared(), "nebius:ai/v1:Endpoint")
there = kind.schema.message("nebius.ai.v1.Endpoint")()
there.spec.volumes.add().s3_config.mysterybox_secret.SetInParent()
plain(kind.schema, there)
volume = {"s3_config": {"mysterybox_secret": {}}}
_, found = kind.check({"metadata": {"parent_id": "project-1"}, "spec": {"volumes": [volume]}})
assert any("must set secret_id or version_id" in reason for _, reason in found), found
"""


def test_rules_hold_for_what_a_refresh_read_before_the_first_check():
    """protobuf keeps a message's options as they were read first: the rules were unknown then."""
    done = subprocess.run(
        [sys.executable, "-c", _READ_FIRST], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
