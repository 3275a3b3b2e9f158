"""What a user hears while an operation runs, by a clock of the test."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from infra.providers.nebius.api import DEADLINES_S, EXPECTED_S, Api, ApiError, Watch, causes


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Heard:
    """Lines by whether they stay."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.passing: list[str] = []

    def __call__(self, line: str, *, passing: bool = False) -> None:
        (self.passing if passing else self.kept).append(line)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture
def group(schema):
    """A node group of 2 that is being made."""
    group: Any = schema.message("nebius.mk8s.v1.NodeGroup")()
    group.status.state = 1
    group.status.target_node_count = 2
    return group


@pytest.fixture
def operation(schema):
    return schema.message("nebius.common.v1.Operation")(id="op-1", resource_id="mk8snodegroup-1")


@pytest.fixture
def watch(schema, clock, heard, group):
    return Watch("create NodeGroup 'w'", "mk8snodegroup", schema, heard, lambda _: group, clock)


def blame(schema, group, message, *, at=0, level=4, quota=""):
    event = group.status.events.add()
    event.first_occurred_at.FromSeconds(100 + at)
    event.last_occurrence.level = level
    event.last_occurrence.message = message
    if quota:
        detail: Any = schema.message("nebius.common.v1.ServiceError")()
        detail.quota_failure.violations.add(quota=quota, limit="8", requested="16")
        event.last_occurrence.error.details.add().Pack(detail)


def test_a_short_wait_is_silent(watch, clock, heard, operation):
    clock.now += 4
    watch.poll(operation)
    assert heard.kept == heard.passing == []


def test_a_long_wait_tells_its_stage_once_and_then_in_passing(watch, clock, heard, operation):
    clock.now += 60
    watch.poll(operation)
    clock.now += 60
    watch.poll(operation)
    assert heard.kept == [
        "create NodeGroup 'w': provisioning, 0 of 2 nodes ready; 60 s of at most 45 min passed"
    ]
    assert heard.passing == [
        "create NodeGroup 'w': provisioning, 0 of 2 nodes ready; 2 min of at most 45 min passed"
    ]


def test_each_change_is_one_line(watch, clock, heard, operation, group, schema):
    clock.now += 60
    watch.poll(operation)
    group.status.ready_node_count = 1
    watch.poll(operation)
    blame(schema, group, "no luck", quota="compute.instance.gpu.h200")
    watch.poll(operation)
    watch.poll(operation)
    assert len(heard.kept) == 3
    assert "1 of 2 nodes ready" in heard.kept[1]
    assert "blocked: quota compute.instance.gpu.h200: 16 wanted in all, limit 8" in heard.kept[2]
    assert "docs.nebius.com/overview/limits" in heard.kept[2]


@pytest.mark.feature("S002-17", "S003-67")
def test_a_wait_that_passes_what_is_expected_says_so_once(watch, clock, heard, operation):
    clock.now += 60
    watch.poll(operation)
    clock.now += 45 * 60
    watch.poll(operation)
    watch.poll(operation)
    assert len(heard.kept) == 2
    assert heard.kept[1].endswith("46 min of at most 45 min passed (late)")


def test_the_oldest_event_is_the_first_cause(schema, group):
    blame(schema, group, "nodes are missing", at=5)
    blame(schema, group, "no capacity", at=1)
    blame(schema, group, "created", at=0, level=2)
    assert causes(schema, group) == ["no capacity", "nodes are missing"]


def test_the_first_cause_is_kept_when_it_has_gone(watch, clock, operation, group, schema):
    clock.now += 60
    blame(schema, group, "no capacity")
    watch.poll(operation)
    group.status.ClearField("events")
    watch.poll(operation)
    assert watch.cause == "no capacity"


def test_a_kind_without_measure_names_its_deadline(schema, clock, heard, operation):
    watch = Watch("create Cluster 'k'", "mk8scluster", schema, heard, lambda _: None, clock)
    clock.now += 300
    watch.poll(operation)
    assert heard.kept == ["create Cluster 'k': running; 5 min passed, given up after 60 min"]


def test_the_deadline_belongs_to_the_kind(watch, clock):
    clock.now += DEADLINES_S["mk8snodegroup"] - 1
    assert not watch.is_over
    clock.now += 2
    assert watch.is_over


def test_what_is_usual_is_less_than_what_is_allowed():
    assert EXPECTED_S
    assert all(expected_s < DEADLINES_S[kind] for kind, expected_s in EXPECTED_S.items())


def test_a_resource_that_cannot_be_looked_at_does_not_hide_how_its_operation_ends(
    schema, clock, heard, operation
):
    def look(_id: str) -> None:
        raise ApiError("PERMISSION_DENIED", "no permission to read node groups")

    watch = Watch("create NodeGroup 'w'", "mk8snodegroup", schema, heard, look, clock)
    clock.now += 60
    watch.poll(operation)
    assert heard.kept == ["create NodeGroup 'w': running; 60 s of at most 45 min passed"]
    operation.status.code = 8
    watch.finish(operation)
    assert watch.cause is None


@pytest.mark.parametrize("ends", ["cancelled", "deadline"])
def test_an_api_that_goes_on_naming_an_operation_that_has_ended_is_not_asked_for_ever(
    schema, operation, watch, clock, monkeypatch, ends
):
    """Two calls without a pause, again and again: not even an interruption ended that."""
    cancelled = threading.Event()
    api = Api(schema, cancelled)
    operation.status.code = 0
    monkeypatch.setattr(api, "operation", lambda *_: operation)
    conflict = SimpleNamespace(conflicting_operation_id="op-1", resource_id="mk8snodegroup-1")
    calls: list[str] = []

    def change() -> None:
        calls.append("change")
        if len(calls) == 2:
            clock.now += DEADLINES_S["mk8snodegroup"] + 1
            if ends == "cancelled":
                cancelled.set()
        assert len(calls) < 5
        raise ApiError("ABORTED", "conflict", (("operation_conflict", conflict),))

    with pytest.raises(ApiError, match="conflict"):
        api.when_idle(None, change, None if ends == "cancelled" else watch)
    assert len(calls) == 2
