"""The generic provider against the emulator: what the engine tests do not show alone."""

import itertools
import re
import threading

import pytest

from infra.providers.engine.provider import UNKNOWN, PartialError, ProviderError
from infra.providers.nebius.provider import NebiusProvider

TYPE = "nebius:compute/v1:Filesystem"
_names = (f"fs-{number}" for number in itertools.count())


@pytest.fixture
def declared(provider):
    """A checked declaration with a name of its own, changed by `spec`."""
    name = next(_names)

    def declared(labels=None, **spec):
        metadata = {"parent_id": "project-e00p", "name": name}
        if labels is not None:
            metadata["labels"] = labels
        new = {"metadata": metadata, "spec": {"type": "network-ssd", "size_gibibytes": 1, **spec}}
        inputs, problems = provider.of(TYPE).check({}, new)
        assert not problems
        return inputs

    return declared


@pytest.fixture
def urn(declared):
    return f"urn:pulumi:local::soperator-stack::{TYPE}::{declared()['metadata']['name']}"


@pytest.fixture
def made(provider, declared, urn):
    return provider.of(TYPE).create(urn, declared())


@pytest.mark.feature("S002-26")
def test_a_create_waits_until_the_resource_is_ready(made):
    id_, state = made
    assert state["metadata"]["id"] == id_
    assert state["status"]["state"] == "READY"


def test_a_preview_creates_nothing(provider, declared, urn, served):
    before = dict(served.emulator.store.resources)
    state = provider.of(TYPE).preview(urn, "", {}, declared())
    assert served.emulator.store.resources == before
    assert state["status"] is UNKNOWN
    assert state["metadata"]["id"] is UNKNOWN


@pytest.mark.feature("S003-60")
def test_ownership_is_on_the_resource_and_in_no_input(provider, declared, made):
    id_, state = made
    owner = {"managed-by": "soperator-stack", "stack": "local", "project": "soperator-stack"}
    assert owner.items() <= state["metadata"]["labels"].items()
    _, _, inputs = provider.of(TYPE).read(id_, state, declared())
    assert inputs == declared()


def test_ownership_outlives_an_update_that_clears_the_labels(provider, declared, urn, made):
    id_, state = made
    labelled = declared(labels={"team": "ml"})
    state = provider.of(TYPE).update(urn, id_, state, labelled)
    assert state["metadata"]["labels"]["team"] == "ml"
    state = provider.of(TYPE).update(urn, id_, state, declared())
    assert set(state["metadata"]["labels"]) == {"managed-by", "stack", "project", "resource"}


def test_what_is_no_longer_declared_is_reset(provider, declared, urn, made):
    id_, state = made
    kept = declared(forbid_deletion=True)
    state = provider.of(TYPE).update(urn, id_, state, kept)
    assert state["spec"]["forbid_deletion"] is True
    state = provider.of(TYPE).update(urn, id_, state, declared())
    assert "forbid_deletion" not in state["spec"]


def test_an_update_in_a_preview_keeps_ids_and_status_known(provider, declared, urn, made):
    id_, state = made
    new = declared(size_gibibytes=2)
    found = provider.of(TYPE).preview(urn, id_, state, new)
    assert found["metadata"]["id"] == id_
    assert found["status"] == state["status"]
    assert found["spec"]["size_gibibytes"] == 2


def test_the_same_declaration_adopts_what_a_dead_engine_made(provider, declared, urn, made):
    assert provider.of(TYPE).create(urn, declared())[0] == made[0]


def test_a_destroyed_resource_is_made_anew(provider, declared, urn, made):
    provider.of(TYPE).delete(*made)
    again, _ = provider.of(TYPE).create(urn, declared())
    assert again != made[0]
    provider.of(TYPE).delete(again, {})
    assert provider.of(TYPE).create(urn, declared())[0] not in (made[0], again)


def test_a_create_that_failed_leaves_nothing_and_can_be_repeated(provider, declared, urn, served):
    served.plant("FilesystemService.Create", "INTERNAL", when="operation", message="disk on fire")
    with pytest.raises(ProviderError, match="disk on fire"):
        provider.of(TYPE).create(urn, declared())
    names = [one.metadata.name for one in served.emulator.store.of_kind("computefilesystem")]
    assert declared()["metadata"]["name"] not in names
    provider.of(TYPE).create(urn, declared())


def test_a_create_that_failed_says_why_even_where_its_rest_cannot_be_removed(
    provider, declared, urn, served, monkeypatch
):
    told: list[str] = []
    monkeypatch.setattr(provider.engine, "warning", lambda _urn, line: told.append(line))
    fault = {"method": "FilesystemService.Create", "code": "INTERNAL", "when": "operation"}
    held = {"method": "FilesystemService.Delete", "code": "PERMISSION_DENIED", "times": 9}
    served.emulator.faults.plant([{**fault, "message": "disk on fire"}, held])
    with pytest.raises(ProviderError, match="disk on fire"):
        provider.of(TYPE).create(urn, declared())
    (left,) = told
    assert re.match(r"computefilesystem-\S+ could not be removed \(.*PERMISSION_DENIED", left), left
    assert "soperator cluster orphans --stack local lists it" in left
    served.emulator.faults.plant([])
    provider.of(TYPE).create(urn, declared())


def test_what_was_made_is_in_the_state_though_nobody_could_look_at_it(
    provider, declared, urn, served, monkeypatch
):
    """A destroy after that left it: node groups, paid on."""
    monkeypatch.setattr(provider._api, "back_off_s", ())
    served.plant(r"FilesystemService\.Get$", "UNAVAILABLE", times=9)
    with pytest.raises(PartialError, match="no answer") as caught:
        provider.of(TYPE).create(urn, declared())
    served.emulator.faults.plant([])
    state = provider.of(TYPE).update(urn, caught.value.id, caught.value.state, declared())
    assert state["status"]["state"] == "READY"
    provider.of(TYPE).delete(caught.value.id, caught.value.state)
    assert caught.value.id not in served.emulator.store.resources


def test_an_outage_is_survived_with_one_key(provider, declared, urn, served):
    served.plant("FilesystemService.Create", "UNAVAILABLE", times=2)
    provider.of(TYPE).create(urn, declared())
    calls = served.calls("FilesystemService/Create")
    assert len(calls) == 3
    assert len({call["key"] for call in calls}) == 1


def test_a_quota_is_asked_once_and_told_in_gib(provider, declared, urn, served):
    served.emulator.calls.clear()
    with pytest.raises(ProviderError, match=r"limit 20480 GiB; .*docs\.nebius\.com"):
        provider.of(TYPE).create(urn, declared(size_gibibytes=30_000))
    assert len(served.calls("FilesystemService/Create")) == 1


def test_a_quota_error_without_a_retry_hint_is_asked_once_too(provider, declared, urn, served):
    violation = {"quota": "compute.disk.count", "limit": "1", "requested": "2", "message": "no"}
    details = {"quota_failure": {"violations": [violation]}}
    served.plant("FilesystemService.Create", "RESOURCE_EXHAUSTED", times=9, details=details)
    with pytest.raises(ProviderError, match=r"compute\.disk\.count: 2 wanted in all, limit 1"):
        provider.of(TYPE).create(urn, declared())
    assert len(served.calls("FilesystemService/Create")) == 1
    served.emulator.faults.plant([])


def test_refresh_shows_a_change_made_behind_its_back(provider, declared, made, served):
    id_, state = made
    resource = served.emulator.store.resources[id_]
    resource.spec.size_gibibytes = 5
    resource.metadata.labels["intruder"] = "yes"
    _, new_state, inputs = provider.of(TYPE).read(id_, state, declared())
    assert inputs["spec"]["size_gibibytes"] == new_state["spec"]["size_gibibytes"] == 5
    assert inputs["metadata"]["labels"] == {"intruder": "yes"}


def test_a_server_default_is_no_drift(provider, declared, made, served):
    id_, state = made
    served.emulator.store.resources[id_].spec.block_size_bytes = 4096
    assert provider.of(TYPE).read(id_, state, declared())[2] == declared()


def test_a_size_in_another_unit_is_no_drift(provider, declared, made, served):
    id_, state = made
    served.emulator.store.resources[id_].spec.size_bytes = 1 << 30
    assert provider.of(TYPE).read(id_, state, declared())[2] == declared()


def test_an_import_takes_everything(provider, declared, made):
    id_, _ = made
    _, state, inputs = provider.of(TYPE).read(id_, {}, {})
    assert inputs == declared()
    assert state["status"]["state"] == "READY"


def test_what_is_gone_is_none_and_may_be_deleted_again(provider, declared, made):
    id_, state = made
    provider.of(TYPE).delete(id_, state)
    assert provider.of(TYPE).read(id_, state, declared()) is None
    provider.of(TYPE).delete(id_, state)


def test_a_delete_waits_for_the_operation_that_runs(provider, declared, urn, served):
    operation = provider.of(TYPE)._start_create(urn, declared())
    provider.of(TYPE).delete(operation.resource_id, {})
    assert operation.resource_id not in served.emulator.store.resources


def test_an_interruption_hands_over_the_resource(provider, declared, urn, served, monkeypatch):
    monkeypatch.setattr(served.emulator._operations, "_latency_s", 60)
    threading.Timer(0.3, provider.cancelled.set).start()
    with pytest.raises(PartialError, match="interrupted") as caught:
        provider.of(TYPE).create(urn, declared())
    assert caught.value.state["metadata"]["id"] == caught.value.id


def test_what_has_no_update_and_was_half_made_is_whole_at_the_next_run(
    provider, declared, served, monkeypatch
):
    """The engine updates what it has as half made: that was refused at each `up` from then on."""
    type_, name = "nebius:iam/v1:GroupMembership", declared()["metadata"]["name"]
    urn = f"urn:pulumi:local::soperator-stack::{type_}::{name}"
    group = {"metadata": {"parent_id": "tenant-e00t", "name": name}, "spec": {}}
    account = {"metadata": {"parent_id": "project-e00p", "name": name}, "spec": {}}
    group_id, _ = provider.of("nebius:iam/v1:Group").create(urn, group)
    account_id, _ = provider.of("nebius:iam/v1:ServiceAccount").create(urn, account)
    inputs = {"metadata": {"parent_id": group_id}, "spec": {"member_id": account_id}}
    monkeypatch.setattr(provider._api, "back_off_s", ())
    served.plant(r"GroupMembershipService\.Get$", "UNAVAILABLE", times=9)
    with pytest.raises(PartialError, match="no answer") as caught:
        provider.of(type_).create(urn, inputs)
    served.emulator.faults.plant([])
    state = provider.of(type_).update(urn, caught.value.id, caught.value.state, inputs)
    assert state["spec"] == inputs["spec"]
    other = {**inputs, "metadata": {**inputs["metadata"], "labels": {"team": "a"}}}
    with pytest.raises(ProviderError, match="cannot update"):
        provider.of(type_).update(urn, caught.value.id, state, other)


def test_a_resource_that_cannot_be_updated_says_so(provider):
    kind = provider.of("nebius:iam/v1:GroupMembership").kind
    with pytest.raises(ProviderError, match="cannot update"):
        kind.update_request("x", {"metadata": {"parent_id": "g"}, "spec": {"member_id": "m"}})


def test_a_dead_emulator_is_named_at_once(declared, urn, served, provider, monkeypatch):
    inputs = declared()
    monkeypatch.setenv("SOPERATOR_NEBIUS_ENDPOINT", "http://127.0.0.1:1")
    lost = NebiusProvider()
    monkeypatch.setattr("infra.providers.nebius.api._BACK_OFF_S", ())
    with pytest.raises(ProviderError, match="start it with `soperator local up`") as caught:
        lost.of(TYPE).create(urn, inputs)
    assert (
        getattr(caught.value.__cause__, "code", None) == "UNAVAILABLE"
    )  # not a timeout that was waited out
