"""Planted faults reach the SDK as the real ones would, and idempotency keys make retries safe."""

import threading
from pathlib import Path

import nebius.api.nebius.compute.v1 as compute
import pytest
from nebius.aio.operation import OperationError
from nebius.aio.service_error import RequestError

from infra.local.nebius_api import errors
from tests.unit.nebius_api.resources import PROJECT, filesystem, make

CREATE = "FilesystemService.Create"
NO_CAPACITY = {
    "not_enough_resources": {
        "violations": [{"resource_type": "ssd", "message": "no capacity", "requested": "1"}]
    }
}


@pytest.fixture
def client(sdk):
    return compute.FilesystemServiceClient(sdk)


def test_unavailable_twice_is_survived_under_one_key(client, served):
    served.plant(CREATE, "UNAVAILABLE", times=2)
    make(client, filesystem())
    calls = served.calls("FilesystemService/Create")
    assert len(calls) == 3
    assert len({call["key"] for call in calls}) == 1


def test_unavailable_three_times_is_an_error(client, served):
    served.plant(CREATE, "UNAVAILABLE", times=3)
    with pytest.raises(RequestError):
        client.create(filesystem()).wait()
    assert len(served.calls("FilesystemService/Create")) == 3


def test_an_answer_that_was_lost_after_the_commit_makes_no_twin(client, served):
    served.plant(CREATE, "UNAVAILABLE", when="after")
    make(client, filesystem(name="lost-answer"))
    assert len(served.calls("FilesystemService/Create")) == 2
    listed = client.list(compute.ListFilesystemsRequest(parent_id=PROJECT)).wait().items
    assert [one.metadata.name for one in listed].count("lost-answer") == 1


def test_two_calls_with_one_key_are_one_operation(client):
    key = [("x-idempotency-key", "11111111-2222-4333-8444-555555555555")]
    first, second = (client.create(filesystem(), metadata=key).wait() for _ in range(2))
    assert first.id == second.id


def test_a_retry_hint_makes_an_internal_error_retriable(client, served):
    served.plant(CREATE, "INTERNAL", retry="CALL")
    make(client, filesystem())
    assert len(served.calls("FilesystemService/Create")) == 2


def test_an_operation_can_fail_after_it_started(client, served):
    served.plant(
        CREATE,
        "RESOURCE_EXHAUSTED",
        when="operation",
        error="NotEnoughResources",
        retry="UNIT_OF_WORK",
        details=NO_CAPACITY,
    )
    operation = client.create(filesystem()).wait()
    with pytest.raises(OperationError) as caught:
        operation.sync_wait(interval=0.02)
    assert caught.value.status.service_errors[0].details.field == "not_enough_resources"
    request = compute.GetFilesystemRequest(id=operation.resource_id)
    assert client.get(request).wait().status.state.name == "ERROR"


def test_an_outage_during_the_polling_is_survived(client, served):
    served.plant("OperationService.Get", "UNAVAILABLE", times=2)
    make(client, filesystem())
    assert served.emulator.faults.pending() == []


def test_a_fault_counts_down_in_its_file(client, served):
    served.plant(CREATE, "INTERNAL", times=2, retry="NOTHING")
    with pytest.raises(RequestError):
        client.create(filesystem()).wait()
    assert [fault["times"] for fault in served.emulator.faults.pending()] == [1]
    served.emulator.faults.plant([])


def test_a_fault_that_is_planted_while_another_is_counted_down_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`soperator local fault` during an `up`: the emulator wrote what it had read over it."""
    faults, slow = errors.Faults(tmp_path), errors.Faults(tmp_path)
    faults.plant([{"method": "Create", "code": "UNAVAILABLE", "times": 2}])

    def plant() -> None:
        with faults.alone():
            faults.plant([*faults.pending(), {"method": "Delete", "code": "INTERNAL"}])

    other = threading.Thread(target=plant)
    write = errors.files.write

    def begin_the_other(path: Path, text: str) -> None:
        monkeypatch.setattr(errors.files, "write", write)
        other.start()
        other.join(0.3)
        write(path, text)

    monkeypatch.setattr(errors.files, "write", begin_the_other)
    assert slow.take("any.Create", "before") is not None
    other.join()
    assert [each["method"] for each in faults.pending()] == ["Create", "Delete"]


@pytest.mark.parametrize("other", [None, {"method": "Delete"}, {"when": "after"}])
def test_a_call_that_no_fault_is_planted_for_takes_no_lock(
    tmp_path: Path, other: dict[str, str] | None
) -> None:
    """Four a call, on the event loop; most calls meet no fault."""
    faults = errors.Faults(tmp_path)
    if other is not None:
        faults.plant([{"method": "Create", "code": "UNAVAILABLE", **other}])
    before = sorted(tmp_path.iterdir())
    assert faults.take("any.Create", "before") is None
    assert faults.delay_s("any.Create", "before") is None
    assert sorted(tmp_path.iterdir()) == before
