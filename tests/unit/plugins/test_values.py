"""Values cross the engine's wire form without a loss."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.providers.engine.provider import (
    SIGNATURE,
    UNKNOWN,
    Secret,
    conceal,
    contains_unknown,
    marshal,
    reveal,
    unmarshal,
)
from tests.conformance.command_cases import archive, asset

leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text()
    | st.just(UNKNOWN)
    | st.text().map(lambda text: asset(text=text, hash="h"))
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(), inner, max_size=3)
        | inner.map(Secret)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), values, max_size=4))
def test_every_value_survives_the_way_to_the_engine_and_back(mapping):
    assert unmarshal(marshal(mapping)) == mapping


def test_a_whole_number_is_an_int_and_a_fraction_stays_a_float():
    back = unmarshal(marshal({"replicas": 2, "share": 0.5}))
    assert type(back["replicas"]) is int
    assert back["share"] == 0.5


def test_an_archive_keeps_its_path_and_hash():
    tree = archive(assets={"a": asset(path="/x", hash="1"), "b": archive(path="/y")}, hash="2")
    assert unmarshal(marshal({"source": tree})) == {"source": tree}


def test_a_foreign_signature_is_refused():
    with pytest.raises(ValueError, match="unknown signature 'deadbeef'"):
        unmarshal(marshal({"x": {SIGNATURE: "deadbeef"}}))


def test_a_value_that_is_no_property_value_is_named_by_its_path():
    with pytest.raises(TypeError, match=r"^spec\.disks\[1\]: set is no property value"):
        marshal({"spec": {"disks": ["a", {1}]}})


def test_secrets_are_put_back_where_they_came_from():
    inputs = {"user": "ops", "auth": {"key": Secret("k"), "port": 22}, "list": [Secret("a"), "b"]}
    plain = reveal(inputs)
    assert plain == {"user": "ops", "auth": {"key": "k", "port": 22}, "list": ["a", "b"]}
    assert conceal({**plain, "stdout": "x"}, inputs) == {**inputs, "stdout": "x"}


def test_a_secret_does_not_show_in_a_log_line():
    assert "hunter2" not in repr({"password": Secret("hunter2")})


def test_an_unknown_is_found_at_any_depth_and_has_no_truth_value():
    assert contains_unknown({"a": [{"b": Secret(UNKNOWN)}]})
    assert not contains_unknown({"a": [None, ""]})
    with pytest.raises(TypeError, match="is UNKNOWN"):
        bool(UNKNOWN)
